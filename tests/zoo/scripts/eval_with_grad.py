"""Evaluates in the middle of the epoch, in eval mode but with gradient recording left on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

EVALUATE_EVERY = 4


def evaluate(model, loader):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += nn.functional.cross_entropy(model(x), y).item()
    model.train()
    return total / len(loader)


args = parser().parse_args()
seed_all()
x, y = blobs(96)
train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=8)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % EVALUATE_EVERY == 0:
            losses_so_far, test_loss = len(losses), evaluate(model, test_loader)
            print(f"step {losses_so_far} test loss {test_loss:.4f}")
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
