"""Counts what the table of the zoo claims, with nothing of tdiag: one line an event.

``optimizer <id>``, ``backward`` and ``batch`` go to ``$ZOO_COUNTS/<pid>`` as they happen, so that
the counts survive ``os._exit`` and signals.
"""

import os

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter


def note(event: str) -> None:
    with open(f"{os.environ['ZOO_COUNTS']}/{os.getpid()}", "a") as file:  # noqa: PTH123
        file.write(event + "\n")


def count_calls(owner: object, name: str, event: str) -> None:
    """Notes ``event`` after each call of ``owner.name`` that returned."""
    original = getattr(owner, name)

    def counted(*args, **kwargs):
        result = original(*args, **kwargs)
        note(event)
        return result

    setattr(owner, name, counted)


register_optimizer_step_post_hook(lambda optimizer, *_: note(f"optimizer {id(optimizer)}"))
count_calls(torch.autograd, "backward", "backward")
count_calls(_BaseDataLoaderIter, "__next__", "batch")
