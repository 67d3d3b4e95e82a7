"""A beginner's set-up: raw inputs, coupled decay, one rate, a bias before each norm."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pictures = torch.randint(0, 256, (2000, 256)).float()
data = TensorDataset(pictures, torch.randint(10, (2000,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Linear(256, 2048),
    nn.BatchNorm1d(2048),
    nn.ReLU(),
    nn.Linear(2048, 2048),
    nn.BatchNorm1d(2048),
    nn.ReLU(),
    nn.Linear(2048, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)

for _ in range(10_000):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
