"""Ranks of torch.multiprocessing.spawn. With ``queue`` the parent waits for a result."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def train(rank, store, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(1_000_000):
        loss = model(torch.randn(128, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if queue is not None:
        queue.put(rank)


if __name__ == "__main__":
    queue = mp.get_context("spawn").SimpleQueue() if "queue" in sys.argv else None
    mp.spawn(train, args=(Path("store").resolve(), queue), nprocs=2)
    if queue is not None:
        queue.get()
    print("after the ranks")
