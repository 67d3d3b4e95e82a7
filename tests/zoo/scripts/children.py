"""Starts other processes while training: a shell command, another Python, a fork."""

import os
import subprocess
import sys

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all

args = parser().parse_args()
seed_all()
x, y = blobs()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses: list[float] = []
for step in range(args.steps):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 1:
        subprocess.run(["sh", "-c", "echo from a shell"], check=True)
    elif step == 2:
        subprocess.run([sys.executable, "-c", "print('from another Python')"], check=True)
    elif step == 3:
        child = os.fork()
        if child == 0:
            model(x).sum().item()
            os._exit(5)
        print("forked child left with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
report(model.parameters(), losses)
