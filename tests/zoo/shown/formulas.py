"""Five losses written out, as in their papers."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    distance = (x - y).abs()
    square = 0.5 * distance**2
    linear = 1.0 * (distance - 0.5)
    return torch.where(distance < 1.0, square, linear).mean()


def gaussian(x: torch.Tensor, y: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    variance = spread.exp().clamp(min=1e-6)
    error = (x - y) ** 2 / variance
    return (0.5 * (variance.log() + error)).mean()


def binary(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    chance = 1 / (1 + torch.exp(-logits))
    chance = chance.clamp(1e-6, 1 - 1e-6)
    hit = y * torch.log(chance)
    miss = (1 - y) * torch.log(1 - chance)
    return -(hit + miss).mean()


def classes(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    top = logits.max(dim=1, keepdim=True).values
    powers = torch.exp(logits - top)
    total = powers.sum(dim=1, keepdim=True)
    right = (logits - top).gather(1, y[:, None])
    return (total.log() - right).mean()


def cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    product = (x * y).sum(dim=1)
    lengths = (x * x).sum(dim=1).sqrt() * (y * y).sum(dim=1).sqrt()
    return (1 - product / lengths.clamp(min=1e-8)).mean()


net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(100_000):
    x, y, z = torch.randn(64, 64), torch.randn(64, 10), torch.randint(10, (64,))
    optimizer.zero_grad()
    box, spread, logits, kind = net(x).split(10, dim=1)
    loss = huber(box, y)
    loss = loss + gaussian(box, y, spread)
    loss = loss + binary(logits, (y > 0).float())
    loss = loss + classes(kind, z)
    loss = loss + cosine(box, y)
    loss.backward()
    optimizer.step()
