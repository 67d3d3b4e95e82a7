"""Hogwild: two processes train one shared model, with two threads for each core."""

import os

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PROCESSES = 2
THREADS = max(2, len(os.sched_getaffinity(0)))
WIDTH, BATCH, STEPS = 512, 256, 400


def train(rank: int, model: nn.Module) -> None:
    torch.manual_seed(rank)
    torch.set_num_threads(THREADS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model.share_memory()
    context = mp.get_context("spawn")
    processes = [context.Process(target=train, args=(n, model)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    model.eval()
    with torch.no_grad():
        data = TensorDataset(torch.randn(512, WIDTH), torch.randint(0, 10, (512,)))
        right = sum(
            (model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, BATCH // 16)
        )
    print(f"{right / len(data):.0%}")


if __name__ == "__main__":
    main()
