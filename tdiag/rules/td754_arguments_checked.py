"""Distributions check their arguments in each step

## What it measures
Share of the training thread's samples in which a distribution of `torch.distributions` checks its
parameters when it is made, or a sample whose probability is asked, and the user's line that has
most of them. Without a device.

## Why it is slow
A check compares each number with its bounds and reads the answer. A covariance is compared with its
transpose and factored. Such checks are on by default, like an `assert`; torch's documentation of
`Distribution.set_default_validate_args` says that they may be expensive.

## What to do
Switch them off once the model works: `torch.distributions.Distribution.set_default_validate_args(
False)`, or `validate_args=False` where the distribution is made.

## How the gain is computed
The share of the samples, with its sampling error.

## When this advice is wrong
While the model changes: without checks, a negative scale gives NaN instead of an error.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, frac, known_to, sampling_range, where
from tdiag.rules.callers import lines_that_reach
from tdiag.rules.examples import budget, call_tree, stacks
from tdiag.rules.loop_lines import check_samples
from tdiag.units import percent

CODE = "TD754"
NAME = "arguments-checked"
CLASS = "overhead"

_CONSTRAINTS = "torch/distributions/constraints.py"
_DISTRIBUTION = "torch/distributions/distribution.py"
_CHECKS = {"__init__", "_validate_sample"}  # of the base class, which do little else


def check(budget: Budget, stacks: Stacks, trees: CallTrees) -> Found | None:
    if budget.has_device:
        return None  # a check waits for the device: TD401
    check_samples(stacks)
    lines = lines_that_reach(_checks, trees)
    if not lines:
        return None
    share, at = sum(lines.values()), max(lines, key=lambda x: lines[x])
    least, most = known_to(share, stacks.samples)
    return Found(
        summary=(
            "Distributions of torch check their arguments in each step, most of the time"
            f"{where(at)}: {percent(share)} of the step."
        ),
        evidence=(
            frac("samples in these checks", share, "sample"),
            count("lines that cause them", len(lines), "sample"),
        ),
        fix=Fix(
            f"Once the model works, switch off the checks{where(at)} and elsewhere:"
            " torch.distributions.Distribution.set_default_validate_args(False).",
            "safe",
            "torch.validate_args=off",
            action="Switch off the checks of distributions",
            code="torch.distributions.Distribution.set_default_validate_args(False)",
        ),
        gain=Gain(
            least * budget.step_ns,
            most * budget.step_ns,
            f"{sampling_range(stacks.samples, least, most)}.",
            ("forward", "loss", "prepare", "evaluation", "other", "unattributed"),
        ),
        at=at,
    )


def _checks(frame: CallFrame) -> bool:
    name = frame.name.rpartition(".")[2]
    return frame.file.endswith(_CONSTRAINTS) or (
        frame.file.endswith(_DISTRIBUTION) and name in _CHECKS
    )


def fires() -> Evidence:
    """An agent makes a distribution of actions in each step."""
    return _acting("site-packages/torch/distributions/constraints.py")


def clear() -> Evidence:
    """It makes one without checks."""
    return _acting("site-packages/torch/distributions/categorical.py")


def _acting(file: str) -> Evidence:
    act, inside = call_tree(("act", 30, 0.3), ("check", 0, 0.2)).training
    library = replace(inside, file=file, user=False)
    trees = CallTrees(training=(act, library), workers=())
    return Evidence().add(budget(forward=40, loss=20, backward=40), stacks(), trees)
