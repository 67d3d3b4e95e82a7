"""DataLoader workers of every kind: ``--workers``, ``--start-method``, ``--persistent``."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from zoo_common import blobs, make_model, parser, report, seed_all


class Noisy(Dataset):
    """Draws random numbers in the worker, which torch seeds from the training process."""

    def __init__(self, samples: int) -> None:
        self.x, self.y = blobs(samples)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        noise = torch.randn(16) * 0.1 + random.random() * 0.01
        return self.x[index] + noise, self.y[index]


def main() -> None:
    options = parser()
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options.add_argument("--persistent", action="store_true")
    options.add_argument("--samples", type=int, default=64)
    args = options.parse_args()
    seed_all()
    loader = DataLoader(
        Noisy(args.samples),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start_method,
        persistent_workers=args.persistent,
    )
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    while len(losses) < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == args.steps:
                break
    report(model.parameters(), losses)


if __name__ == "__main__":
    main()
