"""The same input is processed again and again

## What it measures
For 20 steps, and in the first fetches of a loader's first worker, tdiag compares the arguments and
the result of each function that a line of the script calls with those of earlier calls: the content
of numbers, texts, arrays, tensors and collections of them, by a sample of each and its sum; the
weights' versions of a module; the attributes of the script's own objects. A call counts if both are
as before, and if it left its arguments as they were. The line's time is its share of the stack
samples. Before the forward it is preprocessing, unless the loop calls the function again later in
the step, such as a schedule.

## Why it is slow
A recording is filtered as a whole for each window that is cut out of it, a document is tokenised
for each of its sentences, a mask is built in each step. The same input has the same result, which
was known already.

## What to do
Do it once for each input, before training or when it is first needed, and keep the result: in a
list or a dict by the input's number. Then cut out what the step needs. Workers share what was made
before they started.

## How the gain is computed
The line's share of the step. High end: all of it, because in a long run all inputs come again. Low
end: the share of its calls whose input had come before within the compared steps.

## When this advice is wrong
If the results of all inputs do not fit into memory: the steps that were compared show only some of
them. Then keep them on disk. If the caller changes the result in place, it needs a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops, SameInput, SameInputs
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Spot
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import (
    DATA_WAIT,
    Found,
    Gain,
    bytes_,
    count,
    frac,
    held,
    known_to,
    sampling_range,
    where,
)
from tdiag.rules.both_sides import on_both_sides
from tdiag.rules.callers import inclusive_of_lines, lines_below
from tdiag.rules.examples import MB, MS, at, budget, call_tree, stacks
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, feed_of, share_of_rank
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.loop_lines import BEFORE, beside_the_step, check_samples
from tdiag.units import duration, per_step, percent, size

CODE = "TD229"
NAME = "same-input-again"
CLASS = "cpu"
UNTRIED = "what tells the inputs apart is known to the script alone; `--freeze` bounds the gain"
AFTER = {"TD209": "kept samples need none of it"}

# Phase → the components that may hold its time, and the class of what is done there.
_PHASES = {
    "data_wait": (DATA_WAIT, CLASS),
    "prepare": (("prepare", "other", "unattributed"), CLASS),
    "evaluation": (("evaluation", "other", "prepare", "unattributed"), "eval"),
}
_IN_STEP = "overhead"  # work that the step need not do; "compute" if torch does it
_SAMPLES = "samples in these lines"
_WHY = "high end: each input is processed once; low end: only those that came again in "


def check(
    budget: Budget,
    same: SameInputs,
    stacks: Stacks,
    trees: CallTrees,
    ops: Ops | None,
    phases: Phases | None,
    loaders: Loaders | None,
    system: System | None,
    threads: Threads | None,
    dispatch: Dispatch | None,
) -> Found | None:
    check_samples(stacks)
    return _in_step(budget, same, stacks, trees, ops, system, dispatch) or _in_workers(
        budget, stacks, trees, phases, loaders, share_of_rank(system, threads) if system else None
    )


def _in_step(
    budget: Budget,
    same: SameInputs,
    stacks: Stacks,
    trees: CallTrees,
    ops: Ops | None,
    system: System | None,
    dispatch: Dispatch | None,
) -> Found | None:
    """Of the training thread."""
    share, lines = _main(same.lines, system, trees, lambda x: _share(x, budget, stacks, ops, trees))
    if not lines:
        return None
    phase = lines[0].phase
    components, cls = _PHASES.get(phase, ((phase,), _IN_STEP))
    if phase == "prepare" and lines[0].at.spot in on_both_sides(ops, trees):
        cls = _IN_STEP  # it makes no batch
    if budget.has_device and cls == _IN_STEP:
        return None  # the device may work meanwhile
    if cls == _IN_STEP and _computes(lines, share * budget.step_ns, ops, dispatch, trees):
        cls = "compute"
    least, most = known_to(share, stacks.samples)
    if least * _again(lines) < NOTICEABLE_FRAC:
        return None
    seen = f"{same.steps} steps. {sampling_range(stacks.samples, least, most)}."
    takes = per_step(share * budget.step_ns, budget.step_ns)
    gain = Gain(
        least * _again(lines) * budget.step_ns,
        most * budget.step_ns,
        _WHY + seen,
        components,
        fetches=components == DATA_WAIT,
    )
    return _found(lines, takes, frac(_SAMPLES, share, "sample"), gain, cls)


def _in_workers(
    budget: Budget,
    stacks: Stacks,
    trees: CallTrees,
    phases: Phases | None,
    loaders: Loaders | None,
    system: System | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system) if loaders and system else None
    if fed is None:
        return None
    each = fed.wall / fed.batches

    def share_of(lines: Sequence[SameInput]) -> float:
        timed = sum(x.ns for x in lines) / each
        return min(timed, inclusive_of_lines(_spots(lines), trees, workers=True))

    share, lines = _main(fed.loader.again, system, trees, share_of, workers=True)
    if not lines:
        return None
    least, most = known_to(share, stacks.worker_samples)
    low = fed.gain_of_saving(fed.wall * least * _again(lines))
    if low < NOTICEABLE_FRAC * budget.step_ns:
        return None
    seen = f"its first fetches. {sampling_range(stacks.worker_samples, least, most)}."
    takes = f"{percent(share)} of the fetch ({duration(share * fed.wall)} per step)"
    gain = Gain(low, fed.gain_of_saving(fed.wall * most), _WHY + seen, DATA_WAIT, fetches=True)
    return _found(lines, takes, frac(_SAMPLES, share, "fetch"), gain, CLASS)


def _main(
    known: Sequence[SameInput],
    system: System | None,
    trees: CallTrees | None,
    share_of: Callable[[Sequence[SameInput]], float],
    workers: bool = False,
) -> tuple[float, Sequence[SameInput]]:
    """The lines of the function that repeats most, and their share of the time. Of functions that
    call each other and repeat as much, the outermost: the calls that it makes are all that need be
    kept."""
    functions: dict[tuple[str, str, str], list[SameInput]] = defaultdict(list)
    for line in known:
        if _kept(line, system):
            functions[line.at.file, line.at.function, line.phase].append(line)
    found = [(share_of(lines), lines) for lines in functions.values()]
    if not found:
        return 0.0, ()
    most = max(found, key=_repeated)
    below = [lines_below(_spots(lines), trees, workers) for _, lines in found]
    above = [
        (len(lower), one)
        for one, lower in zip(found, below, strict=True)
        if _repeated(one) >= (1 - NOTICEABLE_FRAC) * _repeated(most) and _spots(most[1]) & lower
    ]
    return max(above, key=lambda x: x[0])[1] if above else most


def _repeated(found: tuple[float, Sequence[SameInput]]) -> float:
    """The share of the time that inputs take that had come before."""
    share, lines = found
    return share * _again(lines)


def _found(lines: Sequence[SameInput], takes: str, samples: Measure, gain: Gain, cls: str) -> Found:
    worst = lines[0]
    # A module's call has a name of torch's own.
    what = "a module" if worst.name.startswith("Module._") else worst.name or "what is called"
    return Found(
        summary=(
            f"{what.capitalize() if ' ' in what else what} is given the same input again"
            f"{where(worst.at)}: {percent(_again(lines))} of its time goes to inputs that it had"
            " before, with the same result. That line"
            f"{' and others of its function take' if lines[1:] else ' takes'} {takes}."
        ),
        evidence=(
            samples,
            count("calls", worst.calls, "probe", "per_step"),
            count("of them with an input as before", worst.again, "probe", "per_step"),
            count("inputs that came again", worst.inputs, "probe"),
            bytes_("largest result", worst.size, "probe"),
        ),
        fix=Fix(
            f"Call {what}{where(worst.at)} once for each input and keep the result"
            f" ({size(worst.size)}), before training or in a dict; then take from it what the step"
            " needs.",
            "review",
            action="Keep what was computed for an input",
            code="known = {}  # input's number → result\n"
            "if number not in known:\n"
            "    known[number] = process(inputs[number])\n"
            "part = known[number][start:stop]",
        ),
        gain=gain,
        at=worst.at,
        cls=cls,
    )


def _again(lines: Sequence[SameInput]) -> float:
    """The share of their time that went to inputs that had come before."""
    return sum(x.again_ns for x in lines) / sum(x.ns for x in lines)


def _spots(lines: Sequence[SameInput]) -> set[Spot]:
    return {line.at.spot for line in lines}


def _share(
    lines: Sequence[SameInput],
    budget: Budget,
    stacks: Stacks,
    ops: Ops | None,
    trees: CallTrees,
) -> float:
    """Of the step, 0..1, what the lines spend in these calls. Before the forward: of the clean time
    there, their share of the samples there. What computes on all cores has too many samples, and
    those of the forward are not told apart from these."""
    share, phase = inclusive_of_lines(_spots(lines), trees), lines[0].phase
    timed = sum(x.ns for x in lines) / budget.step_ns  # longer than without comparing
    if phase == "prepare" and share:
        clean = held(budget, phase) / budget.step_ns
        sampled = sum(x.self_frac for x in beside_the_step(BEFORE, stacks, ops, trees))
        share = max(share, clean * share / max(share, sampled))
    return min(share, timed)


def _computes(
    lines: Sequence[SameInput],
    spent: float,
    ops: Ops | None,
    dispatch: Dispatch | None,
    trees: CallTrees | None,
) -> bool:
    """Whether torch's work, at these lines or below them, takes most of these ns: more than the
    fixed cost of its calls."""
    spots = _spots(lines) | lines_below(_spots(lines), trees)
    called = [x for x in (ops.lines if ops else ()) if x.at.spot in spots]
    work = sum(x.elapsed_ns for x in called)
    fixed = FIXED_COST_FACTOR * dispatch.least_ns(called) if dispatch else 0.0
    return work >= MAJORITY_FRAC * spent and work > fixed


def _kept(line: SameInput, system: System | None) -> bool:
    """Whether the results seen fit into memory."""
    free = system.ram_available_bytes if system else None
    return free is None or line.inputs * line.size <= RAM_FOR_DATA_FRAC * free


def fires() -> Evidence:
    """Recordings filtered as a whole for each window."""
    return _filtered(again=12.0)


def clear() -> Evidence:
    """Each recording comes once an epoch."""
    return _filtered(again=0.2)


def _filtered(again: float) -> Evidence:
    each = 1.5 * MS
    line = SameInput(
        at=at(40, "window"), name="bandpass", phase="prepare", calls=16.0, again=again, inputs=30,
        ns=16 * each, again_ns=again * each, size=round(2 * MB),
    )  # fmt: skip
    same = SameInputs(steps=20, lines=(line,))
    trees = call_tree(("window", 40, 0.45))
    return Evidence().add(budget(prepare=25, forward=15, backward=15), same, trees, stacks())
