"""Trains a residual network on rows of a table: the fixed twin.

``debugging.py`` has torch's anomaly detection on. Here it is off, as torch has it. Losses are the
same to the last digit.

tdiag should find: a step of a few milliseconds, mostly fixed costs: of many small operations, and
of the optimizer's calls (``fused=True``).
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS, WIDTH, BLOCKS = 24, 32, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.gelu(self.hidden(self.norm(x))))


class TableNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(COLUMNS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, table: Tensor) -> Tensor:
        return self.leave(self.blocks(self.enter(table))).squeeze(1)


def make_table(rows: int) -> tuple[Tensor, Tensor]:
    """``(rows, COLUMNS)`` inputs and the ``(rows,)`` target, a sum of curves of the columns."""
    random = torch.Generator().manual_seed(1)
    table = torch.randn(rows, COLUMNS, generator=random)
    phase = torch.rand(COLUMNS, generator=random) * 6
    return table, torch.sin(1.5 * table + phase).mean(1) * COLUMNS**0.5


def train(loader: DataLoader, device: torch.device, steps: int) -> None:
    model = TableNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
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
    options.add_argument("--rows", type=int, default=4096)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--steps", type=int, default=3000)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(*make_table(args.rows))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
