"""What the profilers saw, as tables to sort and search: ops, kernels, calls, hot lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tdiag.diagnose.details import Details
from tdiag.evidence.device import Part
from tdiag.evidence.kinds import StackLine
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.place import Place
from tdiag.report.html.parts import NOTHING, Cell, Table
from tdiag.report.text import clip_head, clip_middle, inert, kernel_name, spot
from tdiag.report.words import component
from tdiag.units import count, disturbance, duration, percent

ROOM = 160  # characters of a name
MOST_ROWS = 150  # of a table: no one reads further, and the page stays small


def tables(details: Details, diagnosis: Diagnosis, base: Path | None) -> Iterator[Table]:
    """Those with rows, then those that there is no evidence for, with the reason."""
    every = list(_tables(details, diagnosis, base))
    yield from (table for table in every if table.rows)
    yield from (table for table in every if not table.rows and table.why)


def _tables(details: Details, diagnosis: Diagnosis, base: Path | None) -> Iterator[Table]:
    step = details.traced_steps.mean_ns if details.traced_steps else 0
    slowed = diagnosis.perturbation
    yield _lines("lines-training", "Hot lines: training process", details, base, slowed)
    if details.stacks and details.stacks.worker_samples:
        yield _lines("lines-workers", "Hot lines: DataLoader workers", details, base, slowed)
    yield _ops(details, step, slowed)
    if device := details.device_parts:
        for name, title, parts in (
            ("kernels", "Kernels and copies", device.kernels),
            ("device-ops", "Device time by op", device.ops),
            ("device-modules", "Device time by module (forward)", device.modules),
            ("device-functions", "Device time by your function (forward)", device.functions),
        ):
            if parts:
                yield _parts(name, title, parts, step)
    yield _op_lines(details, base, slowed)
    yield _calls(details, base, slowed)


def _lines(
    name: str, title: str, details: Details, base: Path | None, slowed: dict[str, float]
) -> Table:
    stacks = details.stacks
    lines: Sequence[StackLine] = ()
    if stacks is not None:
        lines = stacks.training if name == "lines-training" else stacks.workers
    rows = [
        [_at(line.at, base), Cell(line.at.function), Cell(line.leaf), _phase(line.phase),
         _share(line.self_frac)]
        for line in lines[:MOST_ROWS]
    ]  # fmt: skip
    columns = {
        "line": "your innermost line", "function": "", "mostly in": "what it was waiting for",
        "phase": "", "share": "of these samples",
    }  # fmt: skip
    note = "What is missing to 100% was under no line of yours. Waiting counts like work."
    return Table(
        name, title, columns, rows, _cost(note, "sample", slowed), details.missing.get("stacks", "")
    )


def _ops(details: Details, step_ns: float, slowed: dict[str, float]) -> Table:
    found = details.host_ops
    ops = sorted(found.ops, key=lambda op: -op.self_ns)[:MOST_ROWS] if found else ()
    rows = [
        [_name(op.name), _count(op.count), _time(op.self_ns), _share_of(op.self_ns, step_ns),
         _time(op.total_ns)]
        for op in ops
    ]  # fmt: skip
    columns = {
        "op": "", "calls": "per traced step", "own CPU": "without the ops called inside",
        "share": "of the traced step", "total CPU": "with them",
    }  # fmt: skip
    note = "Per traced step, by torch.profiler."
    return Table(
        "host-ops", "Host ops", columns, rows, _cost(note, "trace", slowed),
        details.missing.get("host_ops", ""),
    )  # fmt: skip


def _parts(name: str, title: str, parts: Sequence[Part], step_ns: float) -> Table:
    rows = [
        [_name(kernel_name(part.name, ROOM)), _count(part.count), _time(part.device_ns),
         _share_of(part.device_ns, step_ns),
         _time(part.device_ns / part.count if part.count else 0.0)]
        for part in parts[:MOST_ROWS]
    ]  # fmt: skip
    columns = {
        "name": "", "count": "per traced step", "device time": "per traced step",
        "share": "of the traced step; what ran at once counts twice", "mean": "each",
    }  # fmt: skip
    return Table(name, title, columns, rows, "Per traced step, by torch.profiler.")


def _op_lines(details: Details, base: Path | None, slowed: dict[str, float]) -> Table:
    found = details.op_lines
    lines = sorted(found.lines, key=lambda line: -line.calls)[:MOST_ROWS] if found else ()
    rows = [
        [_at(line.at, base), Cell(line.at.function), _phase(line.phase), _count(line.calls),
         _count(sum(line.conversions.values())),
         Cell(", ".join(f"{n} × {kind}" for kind, n in _conversions(line.conversions)))]
        for line in lines
    ]  # fmt: skip
    columns = {
        "line": "", "function": "", "phase": "", "torch calls": "per step, counted exactly",
        "conversions": "tensor to Python value, per step", "of which": "",
    }  # fmt: skip
    return Table(
        "op-lines", "Torch calls by your line", columns, rows,
        _cost("Counted, not sampled.", "ops", slowed), details.missing.get("op_lines", ""),
    )  # fmt: skip


def _conversions(by_kind: dict[str, float]) -> list[tuple[str, str]]:
    return [(kind, count(n)) for kind, n in sorted(by_kind.items(), key=lambda p: -p[1])]


def _calls(details: Details, base: Path | None, slowed: dict[str, float]) -> Table:
    found = details.calls
    rows = [
        [_name(row.at.function), _at(row.at, base), _count(row.calls), _time(row.own_ns),
         _time(row.total_ns)]
        for row in (found.rows[:MOST_ROWS] if found else ())
    ]  # fmt: skip
    columns = {
        "function": "", "at": "", "calls": "per profiled step",
        "own": "without the functions called inside", "cumulative": "with them",
    }  # fmt: skip
    return Table(
        "calls", "Python calls", columns, rows,
        _cost("Per step of cProfile, which slows down every call.", "calls", slowed),
        details.missing.get("calls", ""),
    )  # fmt: skip


def _cost(note: str, window: str, slowed: dict[str, float]) -> str:
    frac = slowed.get(window)
    cost = "" if frac is None else f" Cost to the steps it watched: {disturbance(frac)}."
    return note + cost


def _at(at: Place, base: Path | None) -> Cell:
    said = spot(at, base) if at.file else "built-in"
    return Cell(clip_head(said, ROOM))


def _name(text: str) -> Cell:
    return Cell(clip_middle(inert(text, 1_000), ROOM))


def _phase(name: str) -> Cell:
    return Cell(component(name).label if name else NOTHING)


def _count(value: float) -> Cell:
    return Cell(count(value), value)


def _time(ns: float) -> Cell:
    return Cell(duration(ns), ns)


def _share(frac: float) -> Cell:
    return Cell(percent(frac), frac)


def _share_of(ns: float, step_ns: float) -> Cell:
    return _share(ns / step_ns) if step_ns else Cell(NOTHING)
