"""A Trainer class with callbacks, a schedule, gradient clipping and early stopping by count."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from zoo_common import blobs, make_model, parser, report, seed_all


class Blobs(Dataset):
    def __init__(self) -> None:
        self.x, self.y = blobs()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return {"features": self.x[index], "label": self.y[index]}


class Trainer:
    def __init__(self, model: nn.Module, loader: DataLoader, callbacks: list[Callable]) -> None:
        self.model, self.loader, self.callbacks = model, loader, callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10, 0.5)
        self.losses: list[float] = []

    def training_step(self, batch) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch["features"]), batch["label"])

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())

    def fit(self, max_steps: int) -> None:
        while True:
            for batch in self.loader:
                self.update(self.training_step(batch))
                for callback in self.callbacks:
                    callback(self)
                if len(self.losses) >= max_steps:
                    return


def print_loss(trainer: Trainer) -> None:
    if len(trainer.losses) % 5 == 0:
        print(f"[{len(trainer.losses)}] {trainer.losses[-1]:.4f}")


if __name__ == "__main__":
    args = parser().parse_args()
    seed_all()
    trainer = Trainer(make_model(), DataLoader(Blobs(), 8, shuffle=True), [print_loss])
    trainer.fit(args.steps)
    report(trainer.model.parameters(), trainer.losses)
