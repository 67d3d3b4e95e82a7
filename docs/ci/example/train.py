"""A small training: what the gate runs. Real ones run the first few hundred steps of theirs."""

import torch
from loss import loss_of
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 64))
for _epoch in range(1000):  # the gate ends it when it has seen enough
    for x, wanted in DataLoader(data, batch_size=16):
        loss = loss_of(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
