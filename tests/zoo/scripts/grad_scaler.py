"""Mixed precision with a GradScaler on the CPU; the third update overflows and is skipped."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

OVERFLOWS_AT = 2

args = parser().parse_args()
seed_all()
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        if len(losses) == OVERFLOWS_AT:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
