"""An optimizer with a parameter group for each weight decay, updated at once."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(150)))
groups = [
    {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 1e-4, "weight_decay": 0.0},
    {"params": [p for p in model.parameters() if p.dim() > 1], "lr": 1e-4, "weight_decay": 0.1},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
while True:
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
