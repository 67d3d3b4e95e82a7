"""Two ranks on gloo: every micro-batch is reduced, unused parameters are searched for, and rank 1
reads from a slower disk."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MICRO_BATCHES = 4


class Clips(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if dist.get_rank() == 1:
            time.sleep(0.002)  # stands for its disk
        return torch.full((256,), index / 100_000), index % 10


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
model = DistributedDataParallel(net, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = Clips()
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
for number, (x, y) in enumerate(loader, 1):
    (nn.functional.cross_entropy(model(x), y) / MICRO_BATCHES).backward()
    if number % MICRO_BATCHES == 0:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
