"""Few parameters, and a batch that takes long to compute."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 256, 16384

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                    nn.Linear(WIDTH, 10))  # fmt: skip
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))
for _ in range(2000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
