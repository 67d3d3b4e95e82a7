"""Checkpoints block training

## What it measures
Time on the training thread inside `torch.save`, safetensors' `save_file`, and `save` of
`torch.distributed.checkpoint`; its share of the mean step, and how often they run. Samples measure
what is done beside these: the checkpoint's file moved, linked, copied or removed, and weights
written by hand (pickle, gzip, NumPy and similar, in code that names weights) or kept as copies
(`deepcopy`).

## Why it is slow
The training thread serialises and writes the weights. With a device, the weights are first copied
to the host, which waits for all queued work.

## What to do
Save less often, save less (the optimizer's state is often twice the weights), or hand a copy of the
weights to a thread that writes while training continues. `torch.distributed.checkpoint.async_save`
does that.

## How the gain is computed
High end: saving runs in the background. Low end: a quarter as many checkpoints, a tenth if they
come more often than once in 50 steps; nothing, if only one checkpoint and no end of an epoch was
seen: it may be rare. For what samples measure: within the sampling error, as much longer as the
work around the step takes in the clean steps; at the high end its part of the clean time after the
step. Weights written by hand with a device: nothing, because it may work at the same time.

## When this advice is wrong
In a short run one checkpoint costs a larger share than in a full run: compare the time of one
checkpoint with the time between two.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Saver, Savers
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import (
    Found,
    Gain,
    count,
    frac,
    held,
    known_to,
    ns,
    sampling_range,
    where,
)
from tdiag.rules.evaluation import SEEN_ONCE, abstain_unless_epoch_ended, seen_once
from tdiag.rules.examples import MS, budget, phases, stack, stacks
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import beside_the_step, copies_weights, most_of_clean, saved_by_hand
from tdiag.rules.thresholds import LOG_EVERY, LOG_LOW_FRAC, MIN_SAMPLES, RARER_LOW_FRAC
from tdiag.units import duration, per_step, percent

CODE = "TD803"
NAME = "checkpoint-blocks-training"
CLASS = "checkpoint"
UNTRIED = "how often is the user's choice; `ceiling.checkpoint` bounds the gain"

_SAVES = re.compile(r"\bsave\w*\(")  # not `trainer.fit(`, within which a framework saves
DISTRIBUTED = "torch.distributed.checkpoint."

AFFORDABLE_FRAC = Threshold(
    0.01,
    "of the training time",
    "Heuristic: one percent for saving is within what step times vary anyway; it sets the"
    " suggested interval.",
)


def check(
    budget: Budget,
    phases: Phases,
    stacks: Stacks | None,
    history: StepHistory | None,
    savers: Savers | None,
    steps: Steps | None,
    ops: Ops | None,
    trees: CallTrees | None,
) -> Found | None:
    saving = held(budget, "checkpoint")
    lines = saved_by_hand(stacks, ops, trees)
    by_hand = sum(line.self_frac for line in lines)
    if stacks is not None and stacks.samples >= MIN_SAMPLES and by_hand * budget.step_ns > saving:
        after = beside_the_step(AFTER_THE_STEP, stacks, ops, trees)
        sampled = phases.around_scale * sum(line.self_frac for line in after)
        return _by_hand(lines, by_hand, sampled, stacks.samples, budget, phases.around_scale)
    if not saving:
        abstain_unless_epoch_ended(history, "checkpoint")
        return None
    handled = by_hand * budget.step_ns
    shares = known_to(by_hand, stacks.samples) if stacks and lines else (0.0, 0.0)
    least, most = (share * budget.step_ns for share in shares)
    each = phases.checkpoint_ns_each
    kept, fewer = RARER_LOW_FRAC, "a quarter as many checkpoints"
    if phases.counts.get("checkpoint", 0.0) > 1 / LOG_EVERY:
        kept, fewer = LOG_LOW_FRAC, "a tenth as many checkpoints"
    often = phases.counts.get("checkpoint", 0.0)
    known = savers.savers if savers else ()
    names = tuple(dict.fromkeys(saver.name for saver in known)) or ("torch.save",)
    at = _place(stacks, known)
    once = seen_once("checkpoint", phases, steps, history)
    every = f", once in {1 / often:.0f} steps" if often else ""
    return Found(
        summary=(
            f"Saving ({', '.join(names)}) takes {percent(saving / budget.step_ns)} of the training"
            f" time{'' if each is None else f' ({duration(each)} each{every})'}"
            f"{_handling(lines, handled, budget)}."
        ),
        evidence=(
            ns("saving, per step", saving, "baseline"),
            *(frac(f"samples{where(x.at)}", x.self_frac, "sample") for x in lines[:1]),
            *(() if each is None else (ns("one checkpoint", each, "baseline"),)),
            count("checkpoints", often, "baseline", "per_step"),
        ),
        fix=_fix(budget.step_ns - saving, each, at, names),
        gain=Gain(
            0.0 if once else (saving + least) * kept,
            saving + most,
            f"low end: {SEEN_ONCE if once else fewer}; high end: they are"
            " written in the background.",
            ("checkpoint", *(("other", "unattributed", "prepare") if lines else ())),
        ),
        at=at,
        own=at is not None and _SAVES.search(linecache.getline(at.file, at.line)) is not None,
    )


def _handling(lines: Sequence[StackLine], handled: float, budget: Budget) -> str:
    """The work beside ``torch.save``: its file put in place, an older one removed."""
    if not lines:
        return ""
    return f", and its files {percent(handled / budget.step_ns)} more{where(lines[0].at)}"


def _by_hand(
    lines: Sequence[StackLine],
    share: float,
    sampled: float,
    samples: int,
    budget: Budget,
    scale: float,
) -> Found:
    """Weights written without ``torch.save``, so no mark times it: samples do, and the clean time
    after the step, of which these lines have their part. ``sampled``: samples after the step, as
    clean time; ``scale``: ``Phases.around_scale``."""
    at, (least, most) = lines[0].at, (scale * x for x in known_to(share, samples))
    share = scale * share
    clean = held(budget, "other") / budget.step_ns
    most = min(1.0, max(most, most_of_clean(clean, share, sampled)))
    what = "Copying weights" if copies_weights(at) else "Saving weights by hand"
    cost = per_step(share * budget.step_ns, budget.step_ns)
    return Found(
        summary=(f"{what} takes {cost}, most of it{where(at)} in {lines[0].leaf or at.function}."),
        evidence=(
            *(frac(f"samples{where(x.at)}", x.self_frac, "sample") for x in lines[:3]),
            count("samples of the training thread", samples, "sample"),
        ),
        fix=_fix(budget.step_ns * (1 - share), None, at, ()),
        gain=Gain(
            0.0 if budget.has_device else least * budget.step_ns * RARER_LOW_FRAC,
            most * budget.step_ns,
            f"low end: {'nothing' if budget.has_device else 'a quarter as many checkpoints'}; high"
            " end: they are written in the background."
            f" {sampling_range(samples, least, most)}.",
            ("other", "unattributed", "prepare"),
        ),
        at=at,
        own=True,
    )


def _fix(step_ns: float, each: float | None, at: Place | None, names: tuple[str, ...]) -> Fix:
    every = max(1, round(each / step_ns / AFFORDABLE_FRAC)) if each else 0
    rarer = f"every {every} steps or more" if every else "less often"
    less = (
        f"Save{where(at)} {rarer}, so that it takes at most {percent(AFFORDABLE_FRAC)} of the time."
    )
    if any(name.startswith(DISTRIBUTED) for name in names):
        own = f"{DISTRIBUTED}async_save"
        other = (
            ""
            if own in names
            else f" Or call {own}, which only copies the state on the training thread."
        )
        return Fix(
            f"{less}{other}",
            "manual",
            action=f"Save a checkpoint {rarer}",
            code="" if own in names else _ASYNC,
        )
    return Fix(
        f"{less} Or copy the state to the CPU and let a thread write it.",
        "manual",
        action=f"Save a checkpoint {rarer}",
        code="state = {name: x.to('cpu', copy=True) for name, x in model.state_dict().items()}\n"
        "threading.Thread(target=torch.save, args=(state, path)).start()",
    )


_ASYNC = """\
if saving is not None:
    saving.result()  # the one before
saving = torch.distributed.checkpoint.async_save(state, checkpoint_id=folder)"""


def _place(stacks: Stacks | None, savers: tuple[Saver, ...]) -> Place | None:
    """The line that saves, from samples; else the first line seen saving."""
    lines = [line for line in stacks.training if line.phase == "checkpoint"] if stacks else []
    if lines:
        return max(lines, key=lambda line: line.self_frac).at
    return next((saver.at for saver in savers if saver.at is not None), None)


def fires() -> Evidence:
    clean = replace(phases({"checkpoint": 0.1}, checkpoint=12), checkpoint_ns_each=120.0 * MS)
    step = budget(forward=8, backward=14, optimizer=2, checkpoint=12)
    return Evidence().add(step, clean, stacks((stack(95, 0.3, phase="checkpoint"),)))


def clear() -> Evidence:
    """A checkpoint of 120 ms once in a thousand steps."""
    clean = replace(phases({"checkpoint": 0.001}, checkpoint=0.12), checkpoint_ns_each=120.0 * MS)
    return Evidence().add(budget(forward=8, backward=14, optimizer=2, checkpoint=0.12), clean)
