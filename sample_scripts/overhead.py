"""Trains a neural additive model: one little network for each column of a table, summed up.

What is slow: 48 networks are called one after another, on batches small enough that each of their
operations does next to nothing, and the optimizer goes through their 192 parameter tensors one
by one. The time goes into starting operations, thousands a step, not into arithmetic.

tdiag should find: class ``overhead``: operations of a few microseconds, as short as an operation
without any work; the optimizer's loop over many tiny tensors.

``overhead_fixed.py`` holds the same 48 networks in four stacked tensors and runs them together by
broadcasting. It starts from the same weights; losses agree up to rounding.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS, HIDDEN = 48, 16


class ColumnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, column: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(column)))


class AdditiveModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(ColumnNet() for _ in range(COLUMNS))

    def forward(self, table: Tensor) -> Tensor:
        parts = [net(table[:, i : i + 1]) for i, net in enumerate(self.columns)]
        return torch.cat(parts, dim=1).sum(1)


def make_table(rows: int) -> tuple[Tensor, Tensor]:
    """``(rows, COLUMNS)`` inputs and the ``(rows,)`` target, a sum of curves of the columns."""
    random = torch.Generator().manual_seed(1)
    table = torch.randn(rows, COLUMNS, generator=random)
    phase = torch.rand(COLUMNS, generator=random) * 6
    return table, torch.sin(1.5 * table + phase).mean(1) * COLUMNS**0.5


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = AdditiveModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step, loss, start = 0, torch.zeros(()), time.perf_counter()
    while step < steps:
        for table, target in loader:
            loss = F.mse_loss(model(table.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 200 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == steps:
                break
    seconds = time.perf_counter() - start
    print(f"{steps} steps, {seconds / steps * 1e3:.2f} ms each, last loss {loss.item():.6f}")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, default=2048)
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--steps", type=int, default=3000)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(*make_table(args.rows))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
