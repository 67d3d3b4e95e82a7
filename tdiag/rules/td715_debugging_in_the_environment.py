"""Debugging environment variables are set

## What it measures
Environment variables that make torch, CUDA or Python check or wait at every call:
`CUDA_LAUNCH_BLOCKING`, `HIP_LAUNCH_BLOCKING` and `AMD_SERIALIZE_KERNEL` if the training uses a
device, `TORCH_DISTRIBUTED_DEBUG=DETAIL` if it has several ranks, `PYTHONMALLOC=debug` and Python's
development mode (`PYTHONDEVMODE`, `-X dev`).

## Why it is slow
With blocking launches the host waits for each kernel before it issues the next one, so the device
idles between kernels. `DETAIL` compares the shapes of all ranks before each collective. Python's
debug allocator fills and checks every block of memory.

## What to do
Unset them, also in job scripts and container images; set them only for a run that searches for an
error.

## How the gain is computed
For Python's debug allocator, from the time of Python's own work: making batches, and work outside
the model. High end: it was 1.8 times as fast without. Low end: nothing, because torch calls were
hardly slower. The other variables' cost was not measured: no gain is claimed.

## When this advice is wrong
If this run is the one that searches for an error.
"""

from __future__ import annotations

from tdiag.evidence.machine import DebugVariables, Environment
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, held, text
from tdiag.rules.examples import budget, environment

CODE = "TD715"
NAME = "debugging-in-the-environment"
CLASS = "overhead"

ALLOCATOR_TIMES = Threshold(
    1.8,
    "times as long",
    "Measured, CPU time, Python 3.11: building strings and dicts took 1.8 times as long with"
    " PYTHONMALLOC=debug and with -X dev; steps of a small model took 1.0 to 1.26 times"
    " (benchmarks/rule_constants.py td715).",
)
# Where Python itself works: making batches, and between the model's calls.
OF_PYTHON = (*DATA_WAIT, "prepare", "other")
ON_A_DEVICE = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
WITH_RANKS = ("TORCH_DISTRIBUTED_DEBUG",)


def check(
    budget: Budget, variables: DebugVariables, environment: Environment | None
) -> Found | None:
    ranks = environment.world_size if environment else 1
    idle = (*(() if budget.has_device else ON_A_DEVICE), *(() if ranks > 1 else WITH_RANKS))
    on = {name: value for name, value in variables.values.items() if name not in idle}
    if not on:
        return None
    pythons = [name for name in on if name.startswith("PYTHON")]
    said = [f"{name}={value}" for name, value in on.items()]
    gain = Gain(
        0.0,
        held(budget, *OF_PYTHON) * (1 - 1 / ALLOCATOR_TIMES),
        f"high end: Python's own work takes {ALLOCATOR_TIMES} times as long with the debug"
        " allocator; low end: nothing, because torch itself is hardly slower.",
        OF_PYTHON,
    )
    return Found(
        summary=f"Set in the environment during training: {', '.join(said)}.",
        evidence=tuple(text("set in the environment", one, "probe") for one in said),
        fix=Fix(
            f"Unset {', '.join(on)} for runs that do not search for an error, also in job scripts"
            " and container images.",
            "safe",
            "process.debugging=off",
            action=f"Unset {next(iter(on))}",
        ),
        gain=gain if pythons else None,
    )


def fires() -> Evidence:
    """Left from the search for an illegal memory access."""
    variables = DebugVariables(values={"CUDA_LAUNCH_BLOCKING": "1"})
    return Evidence().add(budget(device=True, compute=60, launch=40), variables, environment())


def clear() -> Evidence:
    """The same variable in a training on the CPU."""
    variables = DebugVariables(values={"CUDA_LAUNCH_BLOCKING": "1"})
    return Evidence().add(budget(forward=60, backward=40), variables, environment())
