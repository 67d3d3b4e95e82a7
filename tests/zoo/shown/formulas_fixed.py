"""The same losses, as torch has them."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
torch.set_num_threads(1)


net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(100_000):
    x, y, z = torch.randn(64, 64), torch.randn(64, 10), torch.randint(10, (64,))
    optimizer.zero_grad()
    box, spread, logits, kind = net(x).split(10, dim=1)
    loss = functional.huber_loss(box, y)
    loss = loss + functional.gaussian_nll_loss(box, y, spread.exp())
    loss = loss + functional.binary_cross_entropy_with_logits(logits, (y > 0).float())
    loss = loss + functional.cross_entropy(kind, z)
    loss = loss + (1 - functional.cosine_similarity(box, y)).mean()
    loss.backward()
    optimizer.step()
