"""Trains in a thread that is not the main one, as servers and some notebooks do."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

losses: list[float] = []


def train(model: nn.Module, steps: int) -> None:
    loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    while len(losses) < steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                return


if __name__ == "__main__":
    args = parser().parse_args()
    seed_all()
    model = make_model()
    thread = threading.Thread(target=train, args=(model, args.steps))
    thread.start()
    thread.join()
    report(model.parameters(), losses)
