"""Lines that write logs, and lines that make what is only logged."""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tdiag.evidence.sampled import NOT_LOGGING, WRITES, CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.torch_ops import Ops
from tdiag.model.place import Place, Spot
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.callers import lines_that_reach
from tdiag.rules.files_by_hand import gives_data, of_files
from tdiag.rules.loop_lines import (
    AFTER,
    FORWARD,
    TRAINING,
    Call,
    FunctionKey,
    beside_the_step,
    chain,
    function_key,
    lines_to,
    of_weights,
    phase_of,
    step_spans,
)
from tdiag.rules.only_writes import made_to_write, only_changes_itself, only_returns, only_writes
from tdiag.rules.syntax import statement_text

# Calls that make histograms, plots and tables, and packages whose calls do nothing else.
_DESCRIBES = re.compile(
    r"\bhist(c|ogram\w*)?\(|\btabulate\(|\bplt\.\w+\(|\.savefig\(|\.to_string\("
)
_DESCRIBING = ("(lib/histograms.py)", "(lib/_histograms_impl.py)")
_DRAWS = ("matplotlib", "seaborn", "plotly", "tabulate", "prettytable")
# Of libraries of metrics, by which nothing trains that records no gradients.
_METRICS = ("/torchmetrics/", "/site-packages/evaluate/")

# Calls that change weights or gradients; torch's have an underscore at the end.
_CHANGES = re.compile(r"[^\W_]_\(|(clip|step|backward|update|optim)\w*\(")


def logged_frac(line: StackLine) -> float:
    """The part of the line's share of the samples that writes logs: all of it if the line's own
    text writes, else the samples in which libraries write for it. What gives data may write files,
    too: a sample that it keeps."""
    if line.phase in NOT_LOGGING or (of_files(line) and gives_data(line.at)):
        return 0.0
    return line.self_frac if writes(line) else sum(frac for _, frac in line.logging)


def logs(line: StackLine) -> bool:
    """Whether most of what the line does is writing a log."""
    return logged_frac(line) > MAJORITY_FRAC * line.self_frac


def logging_spots(stacks: Stacks | None) -> set[tuple[str, int]]:
    """The lines that mostly write logs; their torch calls are part of that."""
    return {line.at.spot for line in stacks.training if logs(line)} if stacks else set()


def writes(line: StackLine) -> bool:
    """Whether the line's own statement writes, not a library on its behalf."""
    return bool(WRITES.search(statement_text(*line.at.spot)))


def described(stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None) -> list[StackLine]:
    """Lines that make what is logged, most samples first. After the step: histograms, plots or
    tables, whether they are written or kept, what a function computes that only returns them with
    other values, whatever a line that writes calls, and whatever a function that only writes
    computes. There, in the forward and between backward and the update: whatever is computed for
    a variable or an argument that is only written."""
    if stacks is None:
        return []
    called, logging = _Callers.of(ops, trees), logging_spots(stacks)
    after = beside_the_step(AFTER, stacks, ops, trees)
    describing = [
        line
        for line in after
        if _DESCRIBES.search(linecache.getline(*line.at.spot))
        or line.leaf.endswith(_DESCRIBING)
        or line.library in _DRAWS
        or called.measures(line, ops)
    ]
    returning = {_function(line) for line in describing if only_returns(line.at)}
    found = [
        line
        for line in after
        if line in describing
        or _function(line) in returning
        or _called_to_write(line, called, logging)
        or (not called.trains_in(line.at) and only_writes(line.at))
        or (_written_at(line, called, ops) and not of_weights(line, called.frames, called.loops))
    ]
    found += _written_in_forward(stacks, ops, called) + _written_in_update(stacks, ops, called)
    return sorted(found, key=lambda line: -line.self_frac)


def _function(line: StackLine) -> FunctionKey:
    return function_key(line.at.file, line.at.function)


def written_in_forward(
    stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None
) -> list[StackLine]:
    """Lines of the forward and of the loss whose value is only written: a metric for the log; such
    calls of ``torch.autograd.grad``; and lines for which a library computes metrics. None where
    torch calls were not counted: then it is unknown which lines train."""
    return [] if stacks is None else _written_in_forward(stacks, ops, _Callers.of(ops, trees))


def _written_in_forward(stacks: Stacks, ops: Ops | None, called: _Callers) -> list[StackLine]:
    if ops is None:
        return []
    within = (x for x in stacks.training if phase_of(x, ops) in FORWARD or derives(x, ops))
    return [x for x in within if _written_at(x, called, ops) or called.measures(x, ops)]


def _written_in_update(stacks: Stacks, ops: Ops | None, called: _Callers) -> list[StackLine]:
    """Lines between backward and the update whose value is only written: norms of the gradients.
    None that changes weights or gradients, or leads to more than such calls. And all lines of a
    function there that only writes."""
    if ops is None:
        return []
    within = [x for x in stacks.training if phase_of(x, ops) == "optimizer"]
    training = {function for function, _ in called.learns}
    training |= {_function(x) for x in within if called.trains_in(x.at) or _changes(x, ops)}
    writers = {_function(x) for x in within if only_writes(x.at)} - training
    reading = [x for x in within if _function(x) not in writers and not _changes(x, ops)]
    written = [line for line in reading if _written_at(line, called, ops)]
    return written + [x for x in stacks.training if _function(x) in writers and not logs(x)]


def _changes(line: StackLine, ops: Ops) -> bool:
    names = [f"{name}(" for x in ops.lines if x.at.spot == line.at.spot for name in x.names]
    return bool(_CHANGES.search(" ".join([statement_text(*line.at.spot), *names])))


def derives(line: StackLine, ops: Ops | None) -> bool:
    """Whether the line asks for gradients as values: it trains only if something uses them."""
    asks = "autograd.grad(" in statement_text(*line.at.spot)
    return asks and phase_of(line, ops) == "backward"


def written_at(line: StackLine, ops: Ops | None, trees: CallTrees | None) -> Place | None:
    """Where the line's value, or that of the call it was made for, is set or passed, if it is only
    written. None if it is also used, or unknown."""
    return _written_at(line, _Callers.of(ops, trees), ops)


class _Callers(NamedTuple):
    """Who calls whom: ``frames`` of the training thread; ``loops``: functions that lead to the
    forward and to the update; ``trains``: lines that lead to backward or the update, whatever is
    written of their value; ``learns``: to the forward or backward; ``measured``: the share of the
    samples that lines spend in libraries of metrics, whose modules' calls pass for forwards."""

    frames: Sequence[CallFrame]
    loops: Collection[FunctionKey] = ()
    trains: Collection[Call] = ()
    learns: Collection[Call] = ()
    measured: Mapping[Spot, float] = {}

    @classmethod
    def of(cls, ops: Ops | None, trees: CallTrees | None) -> _Callers:
        frames = trees.training if trees else ()
        reach = lines_that_reach(lambda x: any(name in x.file for name in _METRICS), trees)
        measured = {at.spot: frac for at, frac in reach.items()}
        if ops is None:
            return cls(frames, measured=measured)
        trains = lines_to(TRAINING, ops, frames)
        learns = lines_to((*FORWARD, "backward"), ops, frames)
        return cls(frames, step_spans(ops, frames), trains, learns, measured)

    def measures(self, line: StackLine, ops: Ops | None) -> bool:
        """Whether the line mostly computes metrics, and no loss, by a library."""
        mine = [x for x in ops.lines if x.at.spot == line.at.spot] if ops else []
        spent = self.measured.get(line.at.spot, 0.0)
        return spent > MAJORITY_FRAC * line.self_frac and not any(x.grad_calls for x in mine)

    def trains_in(self, at: Place) -> bool:
        return function_key(at.file, at.function) in self.loops


def _written_at(line: StackLine, called: _Callers, ops: Ops | None) -> Place | None:
    trains = called.trains
    if phase_of(line, ops) == "optimizer":
        trains = called.learns  # each line there seems to update
    elif derives(line, ops):
        trains = ()  # its backward is the value
    for function, number in chain(line, called.frames):
        at = Place(file=function[0], line=number, function=function[1])
        if (function, number) in trains:
            return None
        if made_to_write(at):
            return at
        if function in called.loops or not (only_returns(at) or only_changes_itself(at)):
            return None  # it does more than to return the value, or to keep it
    return None


def _called_to_write(
    line: StackLine, called: _Callers, logging: Collection[tuple[str, int]]
) -> bool:
    """Whether a line that writes logs calls this one's function: ``log("rank", self.rank())``. A
    function that trains is not called for what is written of it."""
    (function, _), *callers = chain(line, called.frames)
    if function in called.loops or not callers:
        return False
    (file, _), number = callers[0]
    return (file, number) in logging or bool(WRITES.search(linecache.getline(file, number)))


def made_for_logs(stacks: Stacks, ops: Ops | None, trees: CallTrees | None) -> list[StackLine]:
    """Lines after the step that write nothing themselves, in functions that spend most of their
    time there on writing: logging less often also runs them less often."""
    functions: dict[tuple[str, str], list[StackLine]] = defaultdict(list)
    described_too = described(stacks, ops, trees)
    for line in beside_the_step(AFTER, stacks, ops, trees):
        functions[line.at.file, line.at.function].append(line)
    found = []
    for lines in functions.values():
        others = [line for line in lines if not logs(line) and line not in described_too]
        rest = sum(line.self_frac for line in others)
        if rest < (1 - MAJORITY_FRAC) * sum(line.self_frac for line in lines):
            found += others
    return found
