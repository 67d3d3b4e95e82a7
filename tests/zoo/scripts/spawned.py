"""The process that was started never trains: torch.multiprocessing spawns the one that does."""

import torch
import torch.multiprocessing as mp
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all


def train(rank: int, steps: int) -> None:
    seed_all()
    x, y = blobs()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report(model.parameters(), losses)


if __name__ == "__main__":
    mp.spawn(train, args=(parser().parse_args().steps,), nprocs=1)
