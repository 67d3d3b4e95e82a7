"""DistributedDataParallel over gloo; start with ``torchrun --nproc-per-node 2``."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    seed_all()
    dataset = TensorDataset(*blobs())
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    epoch = 0
    while len(losses) < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == args.steps:
                break
        epoch += 1
    dist.barrier()
    if dist.get_rank() == 0:
        report(model.parameters(), losses)
    dist.destroy_process_group()
    time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads: 5 of 26 on busy cores


if __name__ == "__main__":
    main()
