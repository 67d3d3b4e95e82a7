"""Logging blocks training

## What it measures
Samples of the training thread whose innermost user line prints, draws a progress bar, or writes a
log: by the library called there, and for `print` and file writes by the text of the line. After the
step also lines that make histograms, plots and tables, written or not, and functions that a line
that writes calls. There, in the forward and between backward and the update also what is computed
for a variable, a dictionary's key or a list that is only written (a metric for a progress bar,
norms of the gradients), by the source of the script. Logging by Lightning, the Hugging Face
Trainer or Accelerate counts at the user's line that called them. On a device, `print(loss.item())`
waits for the work before it and does not count.

## Why it is slow
Terminals, files and network writers are slow and synchronous. A line logged every step costs its
time every step.

## What to do
Log every N steps, collect values and write them together, or leave writing to a thread.

## How the gain is computed
The lines' share of the samples as time of the step, within the sampling error. Low end: one step
in ten logs; with a device nothing, because it may work at the same time. High end: one in fifty,
and other work of the same function becomes as rare.

## When this advice is wrong
The cost of a slow terminal (over ssh, in a notebook) disappears when output goes to a file.
"""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Sequence

from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, frac, held, known_to, sampling_range, where
from tdiag.rules.examples import budget, stack, stacks
from tdiag.rules.log_lines import derives, described, logged_frac, made_for_logs, writes, written_at
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import (
    beside_the_step,
    check_samples,
    most_of_clean,
    saved_by_hand,
    waits_for_device,
)
from tdiag.rules.thresholds import LOG_EVERY, LOG_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD804"
NAME = "logging-blocks-training"
CLASS = "logging"
UNTRIED = "how often is the user's choice; `ceiling.logging` bounds the gain"

_WHERE = ("other", "unattributed", "prepare", "loss", "optimizer", "forward", "evaluation")
# It formats its values even if its level is off.
_FORMATS = re.compile(r"\.debug\(\s*(f[\"']|.*\.format\(|[\"'][^\"']*[\"'] % )")
_LAZY = (
    "Pass the values as arguments, logger.debug('%s', x): they are formatted only if this level is"
    " on. "
)


def check(
    budget: Budget,
    stacks: Stacks,
    ops: Ops | None,
    trees: CallTrees | None,
    phases: Phases | None,
) -> Found | None:
    check_samples(stacks)
    writing = {
        line: logged
        for line in stacks.training
        if (logged := logged_frac(line)) and not waits_for_device(line, budget, ops)
    }
    describing = described(stacks, ops, trees)
    for line in describing:
        if not waits_for_device(line, budget, ops):
            writing[line] = line.self_frac
    # What grows with the run, such as a metric over all results, was sampled when it was shorter.
    scale = phases.around_scale if phases else 1.0
    beside = beside_the_step(AFTER_THE_STEP, stacks, ops, trees)
    for line in beside:
        if line in writing:
            writing[line] *= scale
    for line in saved_by_hand(stacks, ops, trees):
        writing.pop(line, None)
    lines = sorted(writing, key=lambda line: -writing[line])
    if not lines:
        return None
    share = sum(writing.values())
    top = lines[0]
    made_at = written_at(top, ops, trees) if top in describing else None
    inside = top.leaf if writes(top) else _parts([top])[0] or top.leaf
    cost = share * budget.step_ns
    made = sum(line.self_frac for line in made_for_logs(stacks, ops, trees))
    least, _ = known_to(share, stacks.samples)
    _, most = known_to(min(1.0, share + made), stacks.samples)
    # The clean steps measure all work after the step, without the sampler.
    mine = sum(writing.get(line, 0.0) for line in beside)
    clean = held(budget, "other") / budget.step_ns
    sampled = scale * sum(line.self_frac for line in beside)
    most = max(most, share - mine + made + most_of_clean(clean, mine, sampled))
    return Found(
        summary=(
            f"Logging{', with what is made for it,' if top in describing else ''} takes"
            f" {percent(share)} of the training thread's time ({duration(cost)}"
            f" per step), most of it{where(top.at)}{f' in {inside}' if inside else ''}"
            f"{f', for what is written{where(made_at)}' if made_at else ''}."
        ),
        evidence=(
            *(frac(f"samples{where(line.at)}", writing[line], "sample") for line in lines[:3]),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=Fix(
            f"{_LAZY if _FORMATS.search(linecache.getline(*top.at.spot)) else ''}"
            f"Log{where(made_at or top.at)} every {LOG_EVERY} steps and collect the values in"
            " between.",
            "safe",
            action=f"Log every {LOG_EVERY} steps",
            code=f"if step % {LOG_EVERY} == 0:\n    log(values)",
        ),
        gain=Gain(
            0.0 if budget.has_device else least * budget.step_ns * LOG_LOW_FRAC,
            most * budget.step_ns * (1 - 1 / LOG_EVERY),
            f"low end: {'nothing' if budget.has_device else 'one step in ten logs'}; high end: one"
            f" in {LOG_EVERY}{', and only these make what is logged' if made else ''}."
            f" {sampling_range(stacks.samples, least, most)}.",
            (*_WHERE, "backward") if any(derives(line, ops) for line in lines) else _WHERE,
        ),
        at=made_at or top.at,
        own=writes(top),
        parts=_parts(lines),
    )


def _parts(lines: Sequence[StackLine]) -> tuple[str, ...]:
    """The framework's parts that write these logs, most samples first: the first one, and others
    with a noticeable share. "" stands for other libraries."""
    shares: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, share in line.logging:
            shares[name] += share
    names = sorted(shares, key=lambda name: -shares[name]) or [""]
    return (names[0], *(name for name in names[1:] if shares[name] >= NOTICEABLE_FRAC))


def fires() -> Evidence:
    lines = (stack(70, 0.22, "refresh (tqdm/std.py)", "optimizer"), stack(60, 0.7, "", "forward"))
    return Evidence().add(budget(forward=10, backward=20, other=9), stacks(lines))


def clear() -> Evidence:
    """A progress bar that redraws ten times a second, whatever the step time."""
    lines = (stack(70, 0.004, "refresh (tqdm/std.py)"), stack(60, 0.9, "", "forward"))
    return Evidence().add(budget(forward=10, backward=20, other=1), stacks(lines))
