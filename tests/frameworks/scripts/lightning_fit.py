"""Lightning's Trainer: alone, or with the strategy named (``ddp_spawn``)."""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    strategy = sys.argv[1] if len(sys.argv) > 1 else "auto"
    data = TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1))
    trainer = L.Trainer(
        max_epochs=1000, accelerator="cpu", devices=1 if strategy == "auto" else 2,
        strategy=strategy, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=True,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=64))


if __name__ == "__main__":
    main()
