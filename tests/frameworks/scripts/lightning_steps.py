"""Lightning's steps: ``gan`` (two optimizers by hand), ``accumulate``, ``sanity``, ``twice``."""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

HOW = sys.argv[1]
loss_of = torch.nn.functional.mse_loss


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.other = torch.nn.Linear(32, 1), torch.nn.Linear(32, 1)
        self.automatic_optimization = HOW != "gan"

    def training_step(self, batch, index):
        x, y = batch
        if self.automatic_optimization:
            return loss_of(self.net(x), y)
        for optimizer, net in zip(self.optimizers(), (self.net, self.other), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss_of(net(x), y))
            optimizer.step()
        return None

    def validation_step(self, batch, index):
        x, y = batch
        loss_of(self.net(x), y)

    def configure_optimizers(self):
        nets = (self.net, self.other) if HOW == "gan" else (self.net,)
        return [torch.optim.Adam(net.parameters(), lr=1e-3) for net in nets]


def loader(size):
    return DataLoader(TensorDataset(torch.randn(size, 32), torch.randn(size, 1)), batch_size=64)


def trainer(**settings):
    return L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, check_val_every_n_epoch=10_000,
        **settings,
    )  # fmt: skip


def main():
    model, validation = Model(), loader(64 * 100) if HOW == "sanity" else None
    if HOW == "twice":
        trainer(max_epochs=1).fit(model, loader(64 * 30))
    steps = 4 if HOW == "accumulate" else 1
    last = trainer(max_epochs=10_000, accumulate_grad_batches=steps, num_sanity_val_steps=-1)
    last.fit(model, loader(4096), validation)


if __name__ == "__main__":
    main()
