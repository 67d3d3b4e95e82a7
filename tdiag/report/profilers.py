"""The profilers' own tables: ops, calls, hot lines, system calls, and the machine over the run.

``TABLES`` holds the options of ``tdiag report``; a page shows these tables and others. Times are
per step under that profiler. A new table is a function and its line in ``TABLES``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.machine import Syscalls, SystemHistory
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Phases, Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls, HostOp, HostOps, Ops
from tdiag.model.kind import Kind
from tdiag.probe.wire import IN_PROCESS
from tdiag.report.document import Block, Cell, Column, Line, Section, Table
from tdiag.report.words import NOTHING, component
from tdiag.units import count, disturbance, duration, percent, plural

# cProfile's names of functions written in C.
_METHOD = re.compile(r"<method '(.+)' of '(.+)' objects>")
_FUNCTION = re.compile(r"<built-in method (.+)>")


def sections(names: Iterable[str], evidence: Evidence) -> tuple[Section, ...]:
    """These of ``TABLES``; a table without evidence becomes a sentence that says why."""
    found: list[Section] = []
    for name in names:
        for block in TABLES[name](evidence):
            titled = isinstance(block, Table) and not block.absent
            title = block.title if isinstance(block, Table) and titled else ""
            aside = block.aside if isinstance(block, Table) and titled else ""
            if isinstance(block, SystemHistory):
                title, aside = "System", plural(len(block.t_ns), "sample")
            if title or not found:
                found.append(Section(id=name, title=title, aside=aside, blocks=(block,)))
            else:
                last = found.pop()
                both = (*last.blocks, block)
                found.append(Section(id=last.id, title=last.title, aside=last.aside, blocks=both))
    return tuple(found)


def every_table(evidence: Evidence) -> list[Table]:
    """The tables of a page: those with rows, then the reasons why others are missing."""
    every = [
        *_lines(evidence), *_ops(evidence), *_parts(evidence), *_op_lines(evidence),
        *_calls(evidence), *_syscalls(evidence),
    ]  # fmt: skip
    tables = [block for block in every if isinstance(block, Table)]
    return sorted(tables, key=lambda table: not table.rows)


def _lines(evidence: Evidence) -> Iterator[Block]:
    """The user's innermost lines by their share of the samples: of the training thread and,
    separately, of the workers while they fetched."""
    stacks = evidence.get(Stacks)
    if stacks is None:
        yield _absent("lines-training", "Hot lines", "sampled lines", Stacks, evidence,
                      "`tdiag run` samples stacks with py-spy; `tdiag doctor` says whether it may"
                      " attach here.")  # fmt: skip
        return
    unseen = "It cannot see DataLoader workers."
    outside = stacks.source != IN_PROCESS
    if outside:
        unseen = (
            "Only the workers' samples in which they fetched a batch count."
            if stacks.worker_samples
            else "No DataLoader worker was seen to fetch."
        )
    note = (
        f"Sampled {'by' if outside else 'from'} {stacks.source}"
        f" ({_cost('sample', evidence)}). Waiting counts like work. {unseen} The rest, up to"
        " 100%, was in no line of yours."
    )
    workers = bool(stacks.worker_samples)
    yield _line_table("lines-training", "Training process", stacks.training, stacks.samples,
                      "" if workers else note)  # fmt: skip
    if workers:
        yield _line_table("lines-workers", "DataLoader workers", stacks.workers,
                          stacks.worker_samples, note)  # fmt: skip


def _line_table(id: str, title: str, lines: Sequence[StackLine], samples: int, note: str) -> Table:
    columns = (
        Column("line", "start", "your innermost line"),
        Column("function", "end", wide=True),
        Column("mostly in", "end", "what it was waiting for"),
        Column("phase", "end"),
        Column("share", hint="of the samples"),
    )
    rows = tuple(
        (Cell("", place=line.at), Cell(line.at.function), Cell(_leaf(line)), _phase(line.phase),
         Cell(percent(line.self_frac), line.self_frac))
        for line in lines
    )  # fmt: skip
    return Table(title=title, columns=columns, rows=rows, id=id, aside=plural(samples, "sample"),
                 note=note, what="line")  # fmt: skip


def _leaf(line: StackLine) -> str:
    """The function that the line mostly called, as ``decode (PIL/Image.py)``."""
    own = f"{line.at.function} ({'/'.join(Path(line.at.file).parts[-2:])})"
    return "the line itself" if line.leaf == own else line.leaf


def _ops(evidence: Evidence) -> Iterator[Block]:
    """torch.profiler's host ops by name, as in ``key_averages().table()``. Device time is the sum
    of the kernels and copies that the op itself launched."""
    ops, steps = evidence.get(HostOps), evidence.get(TracedSteps)
    if ops is None or steps is None:
        yield _absent("host-ops", "Host ops", "host ops", HostOps, evidence,
                      "`tdiag run` records a trace after the clean steps: let the script take more"
                      " of them.")  # fmt: skip
        return
    device = evidence.get(DeviceParts)
    launched = {part.name: part for part in device.ops} if device else {}

    def on_device(op: HostOp) -> float:
        part = launched.get(op.name)
        return part.device_ns if part else 0.0

    columns = [
        Column("op", "start"), Column("calls", hint="per traced step"),
        Column("own CPU", hint="without the ops called inside"),
        Column("share", hint="of the traced step"), Column("total CPU", hint="with them"),
    ]  # fmt: skip
    columns += [Column("device"), Column("share", hint="of the traced step")] if device else []
    rows = []
    step_ns = float(steps.mean_ns)
    for op in sorted(ops.ops, key=lambda op: -max(op.self_ns, on_device(op))):
        row = [Cell(op.name), _count(op.count), *_of_step(op.self_ns, step_ns), _time(op.total_ns)]
        rows.append((*row, *(_of_step(on_device(op), step_ns) if device else ())))
    yield Table(
        title="Ops, per step",
        columns=tuple(columns),
        rows=tuple(rows),
        id="host-ops",
        aside=f"{plural(steps.count, 'traced step')}, {duration(steps.mean_ns)} each",
        note="Own CPU time is without the ops called inside. Shares are of the traced step. All"
        f" times include the time that torch.profiler adds ({_cost('trace', evidence)})."
        + (" Device time: kernels and copies that the op itself launched." if device else ""),
        what="op",
    )


def _parts(evidence: Evidence) -> Iterator[Table]:
    """Device time by kernel, op, module and function, for pages."""
    device, steps = evidence.get(DeviceParts), evidence.get(TracedSteps)
    if device is None:
        return
    step_ns = float(steps.mean_ns) if steps else 0.0
    for id, title, parts in (
        ("kernels", "Kernels and copies", device.kernels),
        ("device-ops", "Device time by op", device.ops),
        ("device-modules", "Device time by module (forward)", device.modules),
        ("device-functions", "Device time by your function (forward)", device.functions),
    ):
        if parts:
            yield _part_table(id, title, parts, step_ns)


def _part_table(id: str, title: str, parts: Sequence[DevicePart], step_ns: float) -> Table:
    columns = (
        Column("name", "kernel"), Column("count", hint="per traced step"),
        Column("device time", hint="per traced step"),
        Column("share", hint="of the traced step; concurrent work counts twice"),
        Column("mean", hint="each"),
    )  # fmt: skip
    rows = tuple(
        (Cell(part.name), _count(part.count), *_of_step(part.device_ns, step_ns),
         _time(part.device_ns / part.count if part.count else 0.0))
        for part in parts
    )  # fmt: skip
    return Table(title=title, columns=columns, rows=rows, id=id,
                 note="Per traced step, by torch.profiler.")  # fmt: skip


def _op_lines(evidence: Evidence) -> Iterator[Table]:
    """Torch calls by the user's line, counted, for pages."""
    found = evidence.get(Ops)
    if found is None:
        yield _absent("op-lines", "Torch calls by your line", "torch calls by line", Ops, evidence)
        return
    columns = (
        Column("line", "start"), Column("function", "end"), Column("phase", "end"),
        Column("torch calls", hint="per step, counted exactly"),
        Column("conversions", hint="tensor to Python value, per step"),
        Column("of which", "end"),
        Column("backward", hint="the clean backward × its measured share, per step"),
    )  # fmt: skip
    phases, whole = evidence.get(Phases), found.measured_backward_ns
    backward = phases.wall_ns.get("backward", 0.0) / whole if phases and whole else 0.0
    rows = []
    for line in sorted(found.lines, key=lambda line: -line.calls):
        kinds = sorted(line.conversions.items(), key=lambda pair: -pair[1])
        of_which = ", ".join(f"{count(n)} × {kind}" for kind, n in kinds)
        rows.append((Cell("", place=line.at), Cell(line.at.function), _phase(line.phase),
                     _count(line.calls), _count(sum(line.conversions.values())), Cell(of_which),
                     _some_time(line.backward.get("elapsed_ns", 0.0) * backward)))  # fmt: skip
    yield Table(
        title="Torch calls by your line", columns=columns, rows=tuple(rows), id="op-lines",
        note=f"Counted, not sampled ({_cost('ops', evidence)}).",
    )  # fmt: skip


def _calls(evidence: Evidence) -> Iterator[Block]:
    """cProfile's functions, largest own time first."""
    calls = evidence.get(Calls)
    if calls is None:
        yield _absent("calls", "Python calls", "cProfile table", Calls, evidence,
                      "`tdiag run` runs cProfile after the trace: let the script take more"
                      " steps.")  # fmt: skip
        return
    columns = (
        Column("function", "start"), Column("at", "start"),
        Column("calls", hint="per profiled step"),
        Column("own", hint="without the functions called inside"),
        Column("cumulative", hint="with them"),
    )  # fmt: skip
    rows = tuple(
        (Cell(_function(row)), Cell("", place=row.at) if row.at.file else Cell("built-in"),
         _count(row.calls), _time(row.own_ns), _time(row.total_ns))
        for row in calls.rows
    )  # fmt: skip
    clean = evidence.get(Steps)
    instead = f" of {duration(clean.mean_ns)}" if clean else ""
    yield Table(
        title="Python calls, per step", columns=columns, rows=rows, id="calls",
        aside=f"{plural(calls.steps, 'step')} in cProfile", what="function",
        note=f"cProfile slows down every call ({_cost('calls', evidence)}): compare these times"
        f" with each other, not with the clean step{instead}.",
    )  # fmt: skip


def _function(row: CallRow) -> str:
    """``TensorBase.item`` instead of cProfile's ``<method 'item' of …>``."""
    name = row.at.function
    if row.at.file:
        return name
    if found := _METHOD.fullmatch(name):
        return f"{found[2].rpartition('.')[2]}.{found[1]}"
    found = _FUNCTION.fullmatch(name)
    return found[1] if found else name


def _syscalls(evidence: Evidence) -> Iterator[Block]:
    """strace's system calls of all threads and workers, longest first."""
    found = evidence.get(Syscalls)
    if found is None:
        yield _absent("syscalls", "System calls", "table of system calls", Syscalls, evidence,
                      "`tdiag run --syscalls` attaches strace after the other"
                      " profilers.")  # fmt: skip
        return
    rows = tuple(
        (Cell(row.name), _count(row.calls),
         _count(row.errors) if row.errors else Cell(""), _time(row.ns),
         _time(row.ns / row.calls) if row.calls else Cell(""))
        for row in found.rows
    )  # fmt: skip
    columns = (Column("call", "start"), Column("calls"), Column("failed"), Column("time"),
               Column("each"))  # fmt: skip
    yield Table(
        title="System calls, per step", columns=columns, rows=rows, id="syscalls",
        aside=f"{plural(found.steps, 'step')} in strace", what="call",
        note="Times are wall time of all threads and workers, waiting included: futex, poll"
        " and epoll_wait are idle threads. strace stops the program at every call"
        f" ({_cost('syscalls', evidence)}): compare these times with each other.",
    )  # fmt: skip


def _system(evidence: Evidence) -> Iterator[Block]:
    """One strip over the whole run for each resource."""
    history = evidence.get(SystemHistory)
    if history is None:
        yield _absent("system", "System", "system samples", SystemHistory, evidence,
                      "`tdiag run` samples the machine every half second: let the script run"
                      " longer.")  # fmt: skip
        return
    yield history
    no_gpu = f" No GPU: {history.no_gpu}." if history.no_gpu else ""
    yield Line(
        'The whole run, profiled steps included. A full bar is the limit in column "of", or'
        " the maximum if there is none. Memory shared by several processes counts for each."
        + no_gpu,
        tone="quiet",
    )


TABLES: dict[str, Callable[[Evidence], Iterator[Block]]] = {
    "ops": _ops,
    "calls": _calls,
    "lines": _lines,
    "system": _system,
    "syscalls": _syscalls,
}


def _absent(
    id: str, title: str, what: str, kind: type[Kind], evidence: Evidence, how: str = ""
) -> Table:
    why = f"No {what}: {evidence.why_missing(kind)}. {how}".strip()
    return Table(title=title, columns=(), rows=(), id=id, absent=why)


def _cost(window: str, evidence: Evidence) -> str:
    """``cost to the steps it watched: +38%``, for the profiler of this window."""
    frac = evidence.perturbation.get(window)
    return f"cost to the steps it watched: {'unknown' if frac is None else disturbance(frac)}"


def _phase(name: str) -> Cell:
    return Cell(component(name).label if name else NOTHING)


def _count(value: float) -> Cell:
    return Cell(count(value), value)


def _time(ns: float) -> Cell:
    return Cell(duration(ns), ns)


def _some_time(ns: float) -> Cell:
    return _time(ns) if ns else Cell(NOTHING, 0.0)


def _of_step(ns: float, step_ns: float) -> list[Cell]:
    if not ns:
        return [Cell(NOTHING, 0.0), Cell(NOTHING, 0.0)]
    return [_time(ns), Cell(percent(ns / step_ns), ns) if step_ns else Cell(NOTHING)]
