"""Functions with a main guard; evaluates without gradients after every epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all


def train_one_epoch(model, loader, optimizer, losses, limit):
    model.train()
    for x, y in loader:
        if len(losses) == limit:
            return
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main() -> None:
    args = parser().parse_args()
    seed_all()
    x, y = blobs(96)
    train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True)
    held_out = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    while len(losses) < args.steps:
        train_one_epoch(model, train, optimizer, losses, args.steps)
        print(f"step {len(losses)} accuracy {evaluate(model, held_out):.3f}")
    report(model.parameters(), losses)


if __name__ == "__main__":
    main()
