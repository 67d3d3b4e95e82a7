"""Labelled and unlabelled loaders zipped in one step, and a third for validation every 8 steps."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
x, y = blobs(128)
labelled = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=4, shuffle=True)
unlabelled = DataLoader(TensorDataset(x[32:96]), batch_size=8, shuffle=True)
validation = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = make_model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

losses: list[float] = []
while len(losses) < args.steps:
    for (seen, label), (unseen,) in zip(labelled, unlabelled, strict=True):
        guess = model(unseen)
        consistency = F.mse_loss(model(unseen + 0.1 * torch.randn_like(unseen)), guess.detach())
        loss = F.cross_entropy(model(seen), label) + 0.1 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 8 == 0:
            model.eval()
            with torch.inference_mode():
                missed = sum((model(a).argmax(1) != b).sum().item() for a, b in validation)
            model.train()
            print(f"step {len(losses)} missed {missed}")
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
