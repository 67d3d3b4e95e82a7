"""Keeps cProfile on over the whole training and prints how often ``train_step`` was called."""

import cProfile
import pstats

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all


def train_step(model, optimizer, x, y) -> float:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    args = parser().parse_args()
    seed_all()
    x, y = blobs()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    profiler = cProfile.Profile()
    profiler.enable()
    losses = [train_step(model, optimizer, x, y) for _ in range(args.steps)]
    profiler.disable()
    stats = pstats.Stats(profiler).stats
    calls = {name: row[0] for (_, _, name), row in stats.items()}
    print("train_step calls", calls.get("train_step"))
    report(model.parameters(), losses)


if __name__ == "__main__":
    main()
