"""The loop of every tutorial, at module level, without functions or a main guard."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()

losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
    print(f"step {len(losses)} loss {losses[-1]:.4f}")
report(model.parameters(), losses)
