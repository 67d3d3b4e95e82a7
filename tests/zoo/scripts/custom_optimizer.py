"""An Optimizer subclass, and an inner backward for a gradient penalty in every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all


class SignSGD(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])


args = parser().parse_args()
seed_all()
model = make_model()
optimizer = SignSGD(model.parameters())
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        x.requires_grad_()
        loss = nn.functional.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        optimizer.zero_grad()
        (loss + slope.square().sum()).backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
