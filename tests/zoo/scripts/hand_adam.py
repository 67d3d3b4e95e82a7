"""A hand-written Adam class that is no torch.optim.Optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all


class Adam:
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8) -> None:
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        b1, b2 = self.betas
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m_hat, v_hat = m / (1 - b1**self.t), v / (1 - b2**self.t)
            p -= self.lr * m_hat / (v_hat.sqrt() + self.eps)


args = parser().parse_args()
seed_all()
model = make_model()
optimizer = Adam(model.parameters())
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
