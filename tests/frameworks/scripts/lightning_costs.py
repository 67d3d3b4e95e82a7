"""Lightning's Trainer with what is named: ``self.log``, ``logger`` or ``checkpoint``."""

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

WHAT = sys.argv[1]


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        for i in range(40 if WHAT == "self.log" else 1):
            self.log(f"loss_{i}", loss * i)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    data = TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1))
    logs, saves = WHAT == "logger", WHAT == "checkpoint"
    trainer = L.Trainer(
        max_epochs=1000, accelerator="cpu", devices=1, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=saves, log_every_n_steps=1,
        logger=[CSVLogger("logs", name, flush_logs_every_n_steps=1) for name in "ab"] * logs,
        callbacks=[ModelCheckpoint("saved", every_n_train_steps=2)] * saves,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=64))


if __name__ == "__main__":
    main()
