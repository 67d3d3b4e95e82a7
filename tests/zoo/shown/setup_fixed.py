"""The same, as advised."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pictures = torch.randint(0, 256, (2000, 256)).float()
pictures = (pictures - pictures.mean()) / pictures.std()
data = TensorDataset(pictures, torch.randint(10, (2000,)))
loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Linear(256, 2048, bias=False),
    nn.BatchNorm1d(2048),
    nn.ReLU(),
    nn.Linear(2048, 2048, bias=False),
    nn.BatchNorm1d(2048),
    nn.ReLU(),
    nn.Linear(2048, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)

for _ in range(10_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
