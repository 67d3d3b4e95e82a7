"""Two ranks on gloo whose model holds a table as a buffer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.rand(1500, 1500))
        self.score = nn.Sequential(nn.Linear(1500, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.score(self.times[places])


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(Router())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    loss = model(torch.randint(0, 1500, (256,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
