"""No DataLoader: a permutation indexes the tensors by hand."""

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all

BATCH = 8


def main() -> None:
    args = parser().parse_args()
    seed_all()
    x, y = blobs()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    while True:
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == args.steps:
                report(model.parameters(), losses)
                return


main()
