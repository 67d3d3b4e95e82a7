"""A pool makes the next batch while the model trains on this one."""

import multiprocessing

import torch
from torch import nn


def make(step: int) -> torch.Tensor:
    rows = torch.randn(64, 256, generator=torch.Generator().manual_seed(step))
    return torch.stack([row.sort().values.cumsum(0) for row in rows for _ in range(2)])[::2] / 16


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (1,)) as pool:
        answer = pool.apply_async(make, (0,))
        for step in range(100_000):
            x, answer = answer.get(), pool.apply_async(make, (step + 1,))
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
