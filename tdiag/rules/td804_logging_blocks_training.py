"""Logging blocks training

## What it measures
Samples of the training thread whose innermost user line prints, draws a progress bar, or writes to
a log: by the library that they were in, and for `print` and file writes by the text of the line.

## Why it is slow
Terminals, files and network writers are slow and synchronous; a line logged in every step is paid
in every step.

## What to do
Log every N steps, collect values and write them together, or leave writing to a thread.

## How the gain is computed
The lines' share of the samples, as time of the step, as well as so many samples tell it. Low end:
half as much logging; high end: one step in fifty logs.

## When this advice is wrong
Output to a slow terminal (over ssh, in a notebook) goes away when it is sent to a file.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, where
from tdiag.rules.examples import budget, stack, stacks
from tdiag.rules.log_lines import logs
from tdiag.rules.measures import count, frac, known_to
from tdiag.units import duration, percent

CODE = "TD804"
NAME = "logging-blocks-training"
CLASS = "logging"

# Under so many samples a share of 2 % (the least that is reported) is two samples or fewer.
MIN_SAMPLES = 100
# Half as much logging is the mildest change worth making.
RARER_LOW_FRAC = 0.5
# Logging every so many steps is the usual choice.
LOG_EVERY = 50


def check(budget: Budget, stacks: Stacks) -> Found | None:
    if stacks.samples < MIN_SAMPLES:
        raise Abstain(f"only {stacks.samples} samples of the training thread were taken")
    lines = sorted(filter(logs, stacks.training), key=lambda line: -line.self_frac)
    if not lines:
        return None
    share = sum(line.self_frac for line in lines)
    top = lines[0]
    cost = share * budget.step_ns
    least, most = known_to(share, stacks.samples)
    return Found(
        summary=(
            f"{percent(share)} of the training thread's time writes logs ({duration(cost)} a step),"
            f" most of it{where(top.at)}{f' in {top.leaf}' if top.leaf else ''}."
        ),
        evidence=(
            *(frac(f"samples{where(line.at)}", line.self_frac, "sample") for line in lines[:3]),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=Fix(
            f"Log{where(top.at)} every {LOG_EVERY} steps (`if step % {LOG_EVERY} == 0:`),"
            " collecting the values in between.",
            "safe",
        ),
        gain=Gain(
            least * budget.step_ns * RARER_LOW_FRAC,
            most * budget.step_ns * (1 - 1 / LOG_EVERY),
            f"low end: half as much logging; high end: one step in {LOG_EVERY} logs;"
            f" {stacks.samples:,} samples put the share between {percent(least)} and"
            f" {percent(most)}.",
            ("other", "unattributed", "prepare", "loss", "optimizer", "forward", "evaluation"),
        ),
        at=top.at,
    )


def fires() -> Evidence:
    lines = (stack(70, 0.22, "refresh (tqdm/std.py)", "optimizer"), stack(60, 0.7, "", "forward"))
    return Evidence().add(budget(forward=10, backward=20, other=9), stacks(lines))


def clear() -> Evidence:
    """A progress bar that is redrawn ten times a second, whatever the step takes."""
    lines = (stack(70, 0.004, "refresh (tqdm/std.py)"), stack(60, 0.9, "", "forward"))
    return Evidence().add(budget(forward=10, backward=20, other=1), stacks(lines))
