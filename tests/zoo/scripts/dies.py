"""Ends before its time: ``--how`` says in which way, ``--at`` after how many steps."""

import os
import signal
import sys

import torch
from torch import nn
from zoo_common import blobs, make_model, parser, report, seed_all


def crash() -> None:
    raise ValueError("the loss is not what it was")


WAYS = {
    "crash": crash,
    "os_exit": lambda: os._exit(9),
    "sys_exit": lambda: sys.exit(7),
    "exit_message": lambda: sys.exit("stopped: nothing left to learn"),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "abort": os.abort,
}


def main() -> None:
    options = parser()
    options.add_argument("--how", choices=sorted(WAYS), required=True)
    options.add_argument("--at", type=int, default=3)
    args = options.parse_args()
    seed_all()
    x, y = blobs()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []
    try:
        for step in range(args.steps):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            print("step", step, flush=True)
            if step + 1 == args.at:
                WAYS[args.how]()
        report(model.parameters(), losses)
    finally:
        print("finally ran", flush=True)


if __name__ == "__main__":
    main()
