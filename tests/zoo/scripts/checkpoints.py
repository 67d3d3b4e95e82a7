"""Saves the state every 5 steps and the whole module, a class of ``__main__``, every 10.

What was saved is loaded again at the end: pickling has to work as under plain Python.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, parser, report, seed_all


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


def train(folder: Path, steps: int) -> tuple[nn.Module, list[float]]:
    loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    while len(losses) < steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 5 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "state.pt")
            if len(losses) % 10 == 0 or len(losses) == steps:
                torch.save(model, folder / "model.pt")
            if len(losses) == steps:
                break
    return model, losses


if __name__ == "__main__":
    args = parser().parse_args()
    seed_all()
    with tempfile.TemporaryDirectory() as name:
        model, losses = train(Path(name), args.steps)
        loaded = torch.load(Path(name) / "model.pt", weights_only=False)
    assert type(loaded) is Classifier
    report(loaded.parameters(), losses)
