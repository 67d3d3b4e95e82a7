"""LBFGS: one optimizer step calls its closure, and so forward and backward, several times.

With ``max_iter=4`` and no line search the first step evaluates four times: once at the start and
after each iteration but the last. ``--closures`` prints how many there were in all.
"""

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all

options = parser()
options.add_argument("--closures", action="store_true")
args = options.parse_args()
seed_all()
x, y = blobs()
model = make_model()
optimizer = torch.optim.LBFGS(
    model.parameters(), lr=0.1, max_iter=4, tolerance_grad=0.0, tolerance_change=0.0
)
losses: list[float] = []


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    losses.append(loss.item())
    return loss


for _ in range(args.steps):
    optimizer.step(closure)
if args.closures:
    print("closures", len(losses))
report(model.parameters(), losses)
