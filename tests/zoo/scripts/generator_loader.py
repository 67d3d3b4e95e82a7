"""Batches come from a plain generator that augments them on the way."""

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all


def batches(size: int):
    x, y = blobs()
    while True:
        for chosen in torch.randperm(len(x)).split(size):
            yield x[chosen] + 0.05 * torch.randn(len(chosen), x.shape[1]), y[chosen]


def main() -> None:
    args = parser().parse_args()
    seed_all()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, nesterov=True, momentum=0.9)
    losses: list[float] = []
    for x, y in batches(8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
    report(model.parameters(), losses)


if __name__ == "__main__":
    main()
