"""Looks at the training between two windows, where no step's time is: a `look` record each.

What changes slowly or is dear to read belongs here: learning rates, gradients, parameters that
got none. Nothing is written to; on a device reading costs a synchronisation or two.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .schedules import Schedules
from .tensors import nbytes, plain, watched_by_script

if TYPE_CHECKING:
    from .core import Probe

MOST_GROUPS = 8  # learning rates written down for one optimizer
# Reading 512 MB of gradients takes 50–100 ms on one core; a model with more is left alone there.
MOST_BYTES_ON_CPU = 1 << 29


class Looks:
    """One a process. ``optimizers``: weak references by number, ``ddp``: one to the last
    DistributedDataParallel seen."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.schedules = Schedules(probe)
        self.optimizers: dict[int, Any] = {}
        self.ddp: Any = None

    def install(self) -> None:
        self.schedules.install()

    def made(self, number: int, optimizer: Any) -> None:
        """An optimizer has been made."""
        self.optimizers[number] = weakref.ref(optimizer)

    def look(self, window: str) -> None:
        """Write the `look` record at the end of ``window``."""
        alive = {n: o for n, o in ((n, r()) for n, r in self.optimizers.items()) if o is not None}
        record: dict[str, Any] = {
            "window": window,
            "step": self.probe.step,
            "rates": {n: _rates(optimizer) for n, optimizer in alive.items()},
            "scheduled": self.schedules.steps(),
        }
        with torch.no_grad():
            for optimizer in alive.values():
                if id(optimizer) == self.probe.boundary.lead:
                    record["gradient"] = gradient_norm(optimizer)
        self.probe.recorder.write("look", **record)


def _rates(optimizer: Any) -> list[float | None]:
    rates = [group.get("lr") for group in optimizer.param_groups[:MOST_GROUPS]]
    return [_number(rate) for rate in rates]


def _number(rate: Any) -> float | None:
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else None
    return float(rate) if isinstance(rate, (int, float)) else None


def gradient_norm(optimizer: Any) -> float | str | None:
    """Total L2 norm of the gradients as the step used them, after any clipping.

    ``"not finite"`` where it is inf or NaN. None where it cannot be read at little cost: no
    gradients left, sharded, sparse or very many of them, a graph being captured, a profiler or a
    dispatch mode of the script's own that would see the reading.
    """
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    gradients = [g for g in gradients if g is not None]
    if not gradients or not all(map(plain, gradients)) or watched_by_script():
        return None
    if not gradients[0].is_cuda and sum(map(nbytes, gradients)) > MOST_BYTES_ON_CPU:
        return None
    with torch._C.DisableTorchFunction():
        norms = [torch.linalg.vector_norm(g.detach(), dtype=_wide(g)) for g in gradients]
        total = math.sqrt(sum(float(norm) ** 2 for norm in norms))
    return total if math.isfinite(total) else "not finite"


def _wide(tensor: torch.Tensor) -> torch.dtype | None:
    """Sums of squares overflow in 16 bits; None keeps the tensor's own."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
