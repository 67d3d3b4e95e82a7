"""Swallows every exception of a step, ``BaseException`` included, and goes on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        try:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except BaseException as error:
            print("ignored", type(error).__name__)
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
