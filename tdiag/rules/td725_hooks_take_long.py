"""Hooks take long

## What it measures
Samples in functions that torch calls beside a module's forward: forward hooks of the script or of a
library, and functions that keep the tensors which autograd saves for backward
(`saved_tensors_hooks`). They are told by the sampled stacks: a module's call leads to hooks, and
they lead to no other module; torch's layers call a function that saves. torch's own are left out.
Whether one module, or all together, have the same hook more than once is read between two windows.

## Why it is slow
A hook runs at every call of every module that has it. One that computes statistics, checks values
for overflow or copies activations may take as long as the forward itself. One that saves tensors
elsewhere, on a disk or in the host's memory, runs for each of them, in forward and in backward.
A hook that is registered for each epoch or trial and never removed runs once more in each of them.

## What to do
Remove a debugging hook when it has done its work: `register_forward_hook` returns a handle that
does it. Let one that watches the training return at once in all but one of many steps, or register
it for a few modules only. If memory allows, let autograd keep its tensors itself; if not, compute a
few layers again (`torch.utils.checkpoint`).

## How the gain is computed
The hooks' share of the samples, with its sampling error, as time of the step. High end: without the
hooks. Low end: they run in one step of ten; of those that save tensors, half of it; of one that is
registered several times, all but one.

## When this advice is wrong
Hooks that do a part of the model's work (offloading, quantisation, parallelism) must stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import RepeatedHooks
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, frac, known_to, sampling_range, where
from tdiag.rules.examples import at, budget, stacks
from tdiag.rules.hooks import hook_frames, saved_tensor_hooks
from tdiag.rules.loop_lines import check_samples
from tdiag.rules.thresholds import LOG_EVERY, LOG_LOW_FRAC, LOW_END_FRAC
from tdiag.units import percent

CODE = "TD725"
NAME = "hooks-take-long"
CLASS = "overhead"
UNTRIED = "which hooks may be removed is the user's choice; `--freeze` of one bounds the gain"
AFTER = {"TD711": "a hook that loops over values is slow because of the loop"}


def check(
    budget: Budget, stacks: Stacks, trees: CallTrees, repeated: RepeatedHooks | None
) -> Found | None:
    check_samples(stacks)
    shares: Counter[Place] = Counter()
    callers: dict[Place, Place | None] = {}
    saving = saved_tensor_hooks(trees)
    for number in {*hook_frames(trees), *saving}:
        hook = trees.training[number]
        place = Place(hook.file, hook.line if hook.user else 0, hook.name)
        shares[place] += hook.frac  # type: ignore[assignment]
        callers[place] = place if hook.user else _caller(number, trees.training)
    share = min(1.0, sum(shares.values()))
    least, most = known_to(share, stacks.samples)
    if least < NOTICEABLE_FRAC:
        return None
    top, of_top = shares.most_common(1)[0]
    named = f"{top.function} ({'/'.join(top.file.split('/')[-2:])})"
    step, here = budget.step_ns, where(top)
    of_saving = sum(trees.training[n].frac for n in saving)
    saved = of_saving > MAJORITY_FRAC * share
    times = repeated.of(top) if repeated else 1
    if times > 1:
        what, low, how = f", which is registered {times} times", 1 - 1 / times, f"one of {times}"
        fix = _removed(named, here)
    elif saved:
        what, low, how = ", which saves tensors for backward", LOW_END_FRAC, "half of it"
        fix = _kept_by_autograd(here)
    else:
        what, low, how = "", LOG_LOW_FRAC, "in one step of ten"
        fix = _rarely(named, here)
    return Found(
        summary=(
            f"{'Hooks' if saved else 'Hooks on modules'} take {percent(share)} of the step, most of"
            f" it in {named}{here}{what}."
        ),
        evidence=(
            frac("samples in hooks", share, "sample"),
            frac(f"samples in {named}", of_top, "sample"),
            *([count("times it is registered in one place", times, "probe")] if times > 1 else []),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=fix,
        gain=Gain(
            0.0 if budget.has_device else least * step * low,
            most * step,
            f"high end: no hooks; low end: {how}. {sampling_range(stacks.samples, least, most)}.",
            ("forward", "backward", "launch"),
        ),
        at=callers[top],
    )


def _removed(named: str, place: str) -> Fix:
    return Fix(
        f"Register the hook {named}{place} once: keep the handle and remove it when the epoch or"
        " trial ends.",
        "review",
        action="Remove hooks that are no longer needed",
        code="handle = model.register_forward_hook(hook)\n...  # train\nhandle.remove()",
    )


def _rarely(named: str, place: str) -> Fix:
    return Fix(
        f"Remove the hook {named}{place}, or let it return at once in all but one of {LOG_EVERY}"
        " steps.",
        "review",
        action="Remove the hooks or run them rarely",
        code=f"if step % {LOG_EVERY}:\n    return  # first in the hook",
    )


def _kept_by_autograd(place: str) -> Fix:
    return Fix(
        f"Let autograd keep its tensors itself, without the hook{place}, if memory allows; else"
        " compute a few layers again in backward.",
        "review",
        action="Let autograd keep its own tensors",
        code="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    )


def _caller(number: int, frames: Sequence[CallFrame]) -> Place | None:
    """The user's innermost line above a library's hook."""
    while number >= 0 and not frames[number].user:
        number = frames[number].parent
    return (
        Place(frames[number].file, frames[number].line, frames[number].name)
        if number >= 0
        else None
    )


def fires() -> Evidence:
    return _hooked("check")


def clear() -> Evidence:
    """The module's own forward."""
    return _hooked("Net.forward")


def _hooked(name: str) -> Evidence:
    module = "/lib/torch/nn/modules/module.py"
    frames = (
        CallFrame(name="main", file=at(9).file, line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="_call_impl", file=module, line=0, parent=0, frac=0.7, user=False),
        CallFrame(name=name, file=at(9).file, line=20, parent=1, frac=0.4, user=True),
    )
    step = budget(forward=40, backward=50, optimizer=10)
    return Evidence().add(step, stacks(), CallTrees(training=frames, workers=()))
