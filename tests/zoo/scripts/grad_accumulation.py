"""Four backward calls make one optimizer step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

ACCUMULATE = 4


def main() -> None:
    args = parser().parse_args()
    seed_all()
    loader = DataLoader(TensorDataset(*blobs()), batch_size=4, shuffle=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    steps = 0
    while True:
        for index, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
            loss.backward()
            losses.append(loss.item())
            if (index + 1) % ACCUMULATE:
                continue
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == args.steps:
                report(model.parameters(), losses)
                return


if __name__ == "__main__":
    main()
