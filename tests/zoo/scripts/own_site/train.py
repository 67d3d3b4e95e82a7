"""Needs its own ``sitecustomize``, which the user's PYTHONPATH points at."""

import builtins
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
print("own sitecustomize ran:", getattr(builtins, "zoo_own_sitecustomize", False))
print("sitecustomize is", Path(sys.modules["sitecustomize"].__file__).parent.name)
seed_all()
x, y = blobs()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
for _ in range(args.steps):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model.parameters(), losses)
