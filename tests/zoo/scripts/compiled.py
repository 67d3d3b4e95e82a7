"""A torch.compile'd model; ``--backend eager`` captures graphs without needing a compiler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

options = parser()
options.add_argument("--backend", default="eager")
args = options.parse_args()
seed_all()
model = make_model()
step_model = torch.compile(model, backend=args.backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(step_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
