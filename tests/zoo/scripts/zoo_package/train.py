"""Run as ``python -m zoo_package.train``: relative imports, a loader in another function."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, parser, report, seed_all

from .model import Net


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    seed_all()
    loader = DataLoader(TensorDataset(*blobs()), batch_size=16, shuffle=True, drop_last=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    while len(losses) < args.steps:
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) >= args.steps:
                break
    report(model.parameters(), losses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
