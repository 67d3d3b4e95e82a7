"""An optimizer with a parameter group for each tensor, as constructors of settings by name make."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(150)))
groups = []
for parameter in model.parameters():
    decay = 0.0 if parameter.dim() == 1 else 0.1
    groups.append({"params": [parameter], "lr": 1e-4, "weight_decay": decay})
optimizer = torch.optim.AdamW(groups, lr=1e-4)
while True:
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
