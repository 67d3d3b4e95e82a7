"""The loop waits for files between steps

## What it measures
In a training without a DataLoader: the time from the end of a step to the first forward call, its
share that no core works, and the lines that samples show there. It counts if most of that time is
waited, and most of its samples are at lines that open, read or write files. With a device: the
device's idle time during that time, from the trace.

## Why it is slow
While the loop or a generator waits for a file, nothing trains: the step is the *sum* of waiting and
computing.

## What to do
Keep what the files hold in memory if it fits, and write a file once, not each time. Otherwise let a
DataLoader with workers make the batches: several wait at the same time, while the step trains.

## How the gain is computed
High end: nothing is left of the lines that work with files, as with the data in memory. Low end:
the files are as slow with more requests, and the rest of the step hides as much of the wait as it
takes itself.

## When this advice is wrong
A file that others read while it is written, such as a queue on a disk, must be waited for. Files
that were read for the first time may stay in the page cache; then a longer run does not wait.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, frac, ns, where
from tdiag.rules.evaluation import acts
from tdiag.rules.examples import MS, budget, environment, op_line, ops, phases, stack, stacks
from tdiag.rules.fetch_lines import by_hand_ns
from tdiag.rules.files_by_hand import file_lines, waited_ns
from tdiag.rules.loop_lines import BEFORE, beside_the_step
from tdiag.units import duration, per_step

CODE = "TD106"
NAME = "files-awaited-in-the-loop"
CLASS = "io"
UNTRIED = "the loop's own code must keep the data or become a dataset"


def check(
    budget: Budget,
    phases: Phases,
    stacks: Stacks,
    environment: Environment | None,
    loaders: Loaders | None,
    ops: Ops | None,
    trees: CallTrees | None,
    calls: Calls | None,
    flags: Flags | None,
) -> Found | None:
    waited = waited_ns(budget, phases, environment, loaders)
    if waited < NOTICEABLE_FRAC * budget.step_ns or phases.acts or acts(flags, calls):
        return None
    beside = beside_the_step(BEFORE, stacks, ops, trees)
    lines = file_lines(beside)
    if not lines:
        return None
    top, rest = lines[0], budget.step_ns - waited
    share = sum(line.self_frac for line in lines) / sum(line.self_frac for line in beside)
    least = min(rest, waited)
    return Found(
        summary=(
            f"Between steps the loop waits for files, most of it{where(top.at)}:"
            f" {per_step(waited, budget.step_ns)}. Nothing trains during that time."
        ),
        evidence=(
            ns("waited between steps", waited, "baseline"),
            ns("rest of the step", rest, "baseline"),
            *(frac(f"samples{where(line.at)}", line.self_frac, "sample") for line in lines[:3]),
        ),
        fix=Fix(
            f"Keep in memory what the files hold, so that nothing waits{where(top.at)}. Or make the"
            " batches in an IterableDataset, in DataLoader workers, which wait while the step"
            " trains.",
            "manual",
            action="Keep the data in memory",
        ),
        gain=Gain(
            least,
            max(waited, share * by_hand_ns(budget, phases, environment, loaders)),
            "high end: nothing is left of these lines; low end: the rest of the step hides"
            f" {duration(least)} of the wait.",
            ("prepare",),
        ),
        at=top.at,
    )


def fires() -> Evidence:
    """A generator that reads each batch from an archive on a slow disk."""
    return _made(on_core_ms=6)


def clear() -> Evidence:
    """The same, from memory: the page cache has the files, and reading copies them."""
    return _made(on_core_ms=38)


def _made(on_core_ms: float) -> Evidence:
    made = phases(prepare=40, forward=8, backward=10, optimizer=2)
    made = replace(made, cpu_ns={**made.cpu_ns, "prepare": on_core_ms * MS})
    read = stack(14, 0.6, "read (python3.11/zipfile.py)", "prepare", "batches")
    return Evidence().add(
        budget(prepare=40, forward=8, backward=10, optimizer=2), made, environment(),
        stacks((read,)), ops(op_line(30, "forward", 20)),
    )  # fmt: skip
