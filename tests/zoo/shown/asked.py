"""A pool makes each batch when the loop asks for it, and idles while the model trains."""

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
        for step in range(100_000):
            x = pool.apply(make, (step,))
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
