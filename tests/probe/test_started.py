"""Which processes the probe records as started by the script."""

from __future__ import annotations

from pathlib import Path

from .harness import watch_code

SCRIPT = """
import multiprocessing
import torch
from torch.utils.data import DataLoader
def work(): pass
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
context = multiprocessing.get_context("fork")
for step in range(20):
    if step % 10 == 5:
        process = context.Process(target=work)
        process.start()  # HERE
        process.join()
        for _ in DataLoader(torch.ones(4, 4), num_workers=1, multiprocessing_context=context): pass
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


def test_the_scripts_own_and_no_workers_of_a_loader(tmp_path: Path) -> None:
    watched = watch_code(tmp_path, SCRIPT, windows=[])
    assert watched.returncode == 0 and watched.of("failure") == [], watched.err
    assert [record["at"][1] for record in watched.of("started")] == [HERE, HERE]
