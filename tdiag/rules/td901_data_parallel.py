"""`nn.DataParallel` drives several devices from one process

## What it measures
An outermost module of class `DataParallel` on a machine with several devices.

## Why it is slow
In each step, one Python thread per device shares the interpreter lock, the weights are copied to
every device, and the outputs are gathered on the first device, which also computes the loss.

## What to do
Use `DistributedDataParallel` with one process per device.

## How the gain is computed
No gain is claimed: the copies and the imbalance cannot be separated from the step.

## When this advice is wrong
With one device `DataParallel` does nothing, and this is not reported.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules, Settings
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count, text
from tdiag.rules.examples import budget, environment, module

CODE = "TD901"
NAME = "data-parallel"
CLASS = "comm"


def check(
    budget: Budget, modules: Modules, environment: Environment, settings: Settings | None
) -> Found | None:
    names = {module.name for module in modules.modules}
    devices = environment.device_count
    if "DataParallel" not in names or devices <= 1:
        return None
    made = settings.last("torch.nn.DataParallel") if settings else None
    return Found(
        summary=f"nn.DataParallel drives {devices} devices from one process.",
        evidence=(
            count("devices", devices, "probe"),
            text("outermost module", "DataParallel", "probe"),
        ),
        fix=Fix(
            "Replace DataParallel(model) by DistributedDataParallel(model), and start one process"
            f" per device: torchrun --nproc-per-node {devices} train.py.",
            "manual",
            action="Use DistributedDataParallel, one process per device",
            code='torch.distributed.init_process_group("nccl")\n'
            'device = int(os.environ["LOCAL_RANK"])\n'
            "model = torch.nn.parallel.DistributedDataParallel(model.to(device), [device])",
        ),
        at=made.at if made else None,
    )


def fires() -> Evidence:
    wrapped = Modules(modules=(module("DataParallel"),))
    return Evidence().add(budget(device=True, compute=20), wrapped, environment(device_count=4))


def clear() -> Evidence:
    """The same wrapper on one device."""
    wrapped = Modules(modules=(module("DataParallel"),))
    return Evidence().add(budget(device=True, compute=20), wrapped, environment(device_count=1))
