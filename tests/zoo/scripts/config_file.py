"""Everything comes from a JSON file found beside the script; only ``--steps`` is an option."""

import itertools
import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, parser, report, seed_all


def build_model(hidden: list[int]) -> nn.Module:
    sizes = [16, *hidden]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 4))


options = parser()
options.add_argument("--config", default=Path(__file__).with_suffix(".json"))
args = options.parse_args()
config = json.loads(Path(args.config).read_text())
seed_all()
model = build_model(**config["model"])
make_optimizer = getattr(torch.optim, config["optimizer"]["name"])
optimizer = make_optimizer(model.parameters(), **config["optimizer"]["options"])
loader = DataLoader(TensorDataset(*blobs()), batch_size=config["batch_size"], shuffle=True)

batches = iter(loader)
losses: list[float] = []
for _step in range(args.steps):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model.parameters(), losses)
