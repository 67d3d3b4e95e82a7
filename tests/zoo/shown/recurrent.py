"""A recurrence over a long sequence in float16, neither scaled nor clipped."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64, bias=False)
        self.head = nn.Linear(64, 10)
        nn.init.eye_(self.inner.weight)
        self.inner.weight.data.mul_(1.5)  # 1.5^40 > 65504, the largest number in float16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x
        for _ in range(40):
            hidden = torch.relu(self.inner(hidden))
        return self.head(hidden)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x, y = torch.randn(64, 64), torch.randint(10, (64,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
