"""Trains a neural additive model: one little network a column, summed up: the fixed twin.

``overhead.py`` calls 48 little networks one after another. Here their weights are stacked into
four tensors and all columns are computed together by broadcasting. The weights are drawn by
``nn.Linear`` in the same order, so that both start alike; losses agree up to rounding.

tdiag should find: far fewer operations a step. What is left is a step of about a millisecond, still
mostly fixed costs: of the optimizer's calls (``fused=True``) and of fetching row by row.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS, HIDDEN = 48, 16


class AdditiveModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        drawn = [(nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, 1)) for _ in range(COLUMNS)]
        hidden, out = zip(*drawn, strict=True)
        self.hidden_weight = nn.Parameter(torch.stack([x.weight[:, 0].detach() for x in hidden]))
        self.hidden_bias = nn.Parameter(torch.stack([x.bias.detach() for x in hidden]))
        self.out_weight = nn.Parameter(torch.stack([x.weight[0].detach() for x in out]))
        self.out_bias = nn.Parameter(torch.cat([x.bias.detach() for x in out]))

    def forward(self, table: Tensor) -> Tensor:
        hidden = torch.relu(table[:, :, None] * self.hidden_weight + self.hidden_bias)
        return (hidden * self.out_weight).sum(2).add(self.out_bias).sum(1)


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
    options.add_argument("--steps", type=int, default=20000)
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(*make_table(args.rows))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train(loader, device, args.steps)


if __name__ == "__main__":
    main()
