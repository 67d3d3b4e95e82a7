"""Runs torch.profiler itself over steps 2 to 5, by its schedule."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True)
losses: list[float] = []


def print_table(done: profile) -> None:
    steps = sum(event.name.startswith("ProfilerStep") for event in done.events())
    print("profiled steps", steps)


with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
    on_trace_ready=print_table,
) as own:
    while len(losses) < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            own.step()
            if len(losses) == args.steps:
                break
report(model.parameters(), losses)
