"""An endless IterableDataset: no length, no epochs."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from zoo_common import blobs, make_model, parser, report, seed_all


class Stream(IterableDataset):
    def __init__(self) -> None:
        self.x, self.y = blobs()

    def __iter__(self):
        for index in itertools.cycle(range(len(self.x))):
            yield self.x[index], self.y[index]


args = parser().parse_args()
seed_all()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
for x, y in DataLoader(Stream(), batch_size=8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if len(losses) >= args.steps:
        break
report(model.parameters(), losses)
