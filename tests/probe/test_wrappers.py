"""What the probe's wrappers cost a script that looks at its own stack."""

from __future__ import annotations

from pathlib import Path

from .harness import watch_code

# inspect.stack() looks for the module of a frame's file that does not exist through all modules.
LOOKS = """
import inspect
import torch
looked = []
original = inspect.getabsfile
def getabsfile(thing, file=None):
    looked.append(file)
    return original(thing, file)
inspect.getabsfile = getabsfile
class Net(torch.nn.Linear):
    def forward(self, x):
        Net.names = [frame.function for frame in inspect.stack()]
        return super().forward(x)
net = Net(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 10:
        print(len(Net.names), [file for file in looked if file and "tdiag" in file])
"""


def test_a_scripts_own_stack_does_not_look_for_the_wrappers_source(tmp_path: Path) -> None:
    watched = watch_code(tmp_path, LOOKS, windows=[])
    assert watched.returncode == 0, watched.err
    frames, _, looked = watched.out.strip().partition(" ")
    assert looked == "[]"
    assert int(frames) > 4  # with a wrapper of the probe's around the module's call
