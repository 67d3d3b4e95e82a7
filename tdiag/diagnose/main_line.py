"""The user's line that a verdict names if no finding does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tdiag.diagnose.sampled_lines import OUTSIDE, preparing_line
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, phase_of_component
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding, Roofline
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import DATA_WAIT, same_function, where
from tdiag.rules.fetch_lines import FETCH_SAMPLES, fetch_measure, top_fetch_lines
from tdiag.rules.loop_lines import phase_of
from tdiag.rules.thresholds import MIN_SAMPLES
from tdiag.units import percent


def unexplained_place(evidence: Evidence, component: str) -> str:
    """Where the unexplained time of this budget component lies."""
    if component == "other":
        return "after the optimizer's step"
    if component == "unattributed":
        return "outside of every measured phase"
    phases = evidence.get(Phases)
    if phases is not None and "data_wait" not in phases.wall_ns:
        return "between the step's end and the first forward"
    return "between the batch and the first forward"


def sampled_there(evidence: Evidence, component: str) -> str:
    """The training thread's line with most samples in this component, or that none is known.

    If no line belongs to this component, a line outside the measured phases is used.
    """
    stacks, ops = evidence.get(Stacks), evidence.get(Ops)
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return "the cause is unknown"
    phase = phase_of_component(component)
    there = [x for x in stacks.training if phase_of(x, ops) == phase]
    top = _top(there or [x for x in stacks.training if phase_of(x, ops) in OUTSIDE])
    return f"most samples:{named(top)}" if top else "the cause is unknown"


def most_lost(roofline: Roofline, evidence: Evidence) -> str:
    """The user's function whose heaviest ops lose most time against the machine's rates, at its
    line with most samples. A backward of the user's own (torch.autograd.Function) that takes most
    of the step comes first: a trace assigns its ops to the forward."""
    if by_hand := _by_hand(evidence):
        return by_hand
    lost: Counter[Place] = Counter()
    for line in roofline.lines:
        if line.at is not None:
            lost[line.at] += line.ns - line.best_ns
    if not lost:
        return ""
    at = max(lost, key=lambda place: lost[place])
    op = next(line.name for line in roofline.lines if line.at == at).removeprefix("aten::")
    stacks = evidence.get(Stacks)
    # A trace may name a file relative to the working directory.
    there = [
        x.at
        for x in (stacks.training if stacks else ())
        if x.at.file.endswith(at.file)
        and same_function(x.at, msgspec.structs.replace(at, file=x.at.file))
    ]
    place = there[0] if there else at
    return f"; most is lost in {at.function}{where(place)}, first by {op}"


def _by_hand(evidence: Evidence) -> str:
    """The user's functions that backward calls, if these have most of the samples; else ""."""
    stacks, trees = evidence.get(Stacks), evidence.get(CallTrees)
    frames = trees.training if trees else ()
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return ""
    engine = {
        (frame.file, frame.line)
        for frame in frames
        if frame.user and any("_engine_run_backward" in x.name for x in _above(frame, frames))
    }
    inside = [line for line in stacks.training if line.at.spot in engine]
    whole = sum(line.self_frac for line in inside)
    if whole <= MAJORITY_FRAC:
        return ""
    top = max(inside, key=lambda line: line.self_frac).at
    return f"; {percent(whole)} is {top.function} and what it calls, most of it{where(top)}"


def _above(frame: CallFrame, frames: Sequence[CallFrame]) -> Iterator[CallFrame]:
    while frame.parent >= 0:
        frame = frames[frame.parent]
        yield frame


def fetched_by(evidence: Evidence, budget: Budget, findings: Sequence[Finding]) -> str:
    """The line that fetches or makes the batch, for an input verdict without a finding."""
    loaders, stacks = evidence.get(Loaders), evidence.get(Stacks)
    train = loaders.train() if loaders else None
    if findings:
        return ""
    if (line := preparing_line(evidence, budget)) is not None:
        return f"; most samples:{named(line)}"
    if stacks is not None:
        waiting = [x for x in stacks.training if x.phase == "data_wait"]
        top = _top(stacks.workers if train and train.num_workers else waiting)
        if top:
            of = " of the workers' samples" if train and train.num_workers else ""
            return f"; most samples:{named(top)}{of}"
    return f"; the loader is created{where(train.created_at)}" if train and train.created_at else ""


def framework_loop(line: StackLine) -> str:
    """The share that the framework called by this line takes around the step."""
    return f"; the loop of {line.library}, called{where(line.at)}, takes {percent(line.framework)}"


def with_fetch_lines(evidence: Evidence, findings: Sequence[Finding]) -> list[Finding]:
    """Add the lines on which fetching spends its time to the first finding about the input, and
    place it at the line that takes most of it, unless it is about the loader's own settings."""
    loaders, stacks = evidence.get(Loaders), evidence.get(Stacks)
    train = loaders.train() if loaders else None
    lead = next((f for f in findings if _about_input(f)), None)
    lines = top_fetch_lines(train, stacks) if train else []
    if lead is None or train is None or not lines:
        return list(findings)
    others = (x for x in lead.evidence if not x.name.startswith(FETCH_SAMPLES))
    shown = (*map(fetch_measure, lines), *others)  # first, because a terminal shows eight numbers
    most = lines[0] if lines[0].self_frac > MAJORITY_FRAC else None
    of_dataset = lead.location is not None and lead.location == train.dataset_at
    at = most.at if most is not None and of_dataset else lead.location
    changed = msgspec.structs.replace(lead, evidence=shown, location=at)
    return [changed if finding is lead else finding for finding in findings]


def _about_input(finding: Finding) -> bool:
    about = bool(finding.components) and set(finding.components) <= set(DATA_WAIT)
    return not finding.advisory and about


def _top(lines: Sequence[StackLine]) -> StackLine | None:
    return max(lines, key=lambda line: line.self_frac, default=None)


def named(line: StackLine) -> str:
    function = f" in {line.at.function}" if line.at.function else ""
    return f"{where(line.at).removeprefix(' at')}{function}, {percent(line.self_frac)}"
