"""Handles signals itself: SIGUSR1 asks for a status line, SIGTERM for a clean stop.

It sends itself SIGUSR1 at step 2; ``--pause SECONDS`` after each step leaves time to send more.
"""

import os
import signal
import time

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all

stopping = False
losses: list[float] = []


def status(number: int, frame: object) -> None:
    print("status: step", len(losses), flush=True)


def stop(number: int, frame: object) -> None:
    global stopping
    stopping = True


def main() -> None:
    options = parser()
    options.add_argument("--pause", type=float, default=0.0)
    args = options.parse_args()
    signal.signal(signal.SIGUSR1, status)
    signal.signal(signal.SIGTERM, stop)
    seed_all()
    x, y = blobs()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    while len(losses) < args.steps and not stopping:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(args.pause)
    if stopping:
        print("stopped by SIGTERM")
    report(model.parameters(), losses)


main()
