"""One optimizer for each parameter, stepped by a hook while backward still runs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
model = make_model()
optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}


def update(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)

loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []
while len(losses) < args.steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if len(losses) == args.steps:
            break
report(model.parameters(), losses)
