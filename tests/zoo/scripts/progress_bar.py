"""A tqdm bar on stderr that redraws itself, and warnings on stderr beside it."""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
loader = DataLoader(TensorDataset(*blobs(8 * args.steps)), batch_size=8, shuffle=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
bar = tqdm(loader, desc="train")
for x, y in bar:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    bar.set_postfix(loss=f"{losses[-1]:.3f}")
    if len(losses) == 2:
        warnings.warn("a warning of the script's own", stacklevel=1)
report(model.parameters(), losses)
