"""What was counted in profiled windows: torch calls by line, Python functions, system calls."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from tdiag.evidence.device import SyncLine, SyncLines
from tdiag.evidence.from_run.counted_records import AgainRecord, CallsRecord, OpsLine, OpsRecord
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.model import longest, whole
from tdiag.evidence.from_run.records import (
    NOWHERE,
    DispatchRecord,
    SyscallsRecord,
    location,
)
from tdiag.evidence.machine import SyscallRow, Syscalls
from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import (
    Attention,
    CallRow,
    Calls,
    CopiedRows,
    Dispatch,
    FusedAttention,
    InputGradient,
    ModuleMove,
    NeverUsedLine,
    OpLine,
    Ops,
    PickedWeights,
    PrefixLine,
    SameInput,
    SameInputs,
)
from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.probe.wire import syscalls_file


def make_counted(lead: Process, phases: Phases | None) -> list[Kind]:
    """Ops, SyncLines, Calls, SameInputs and Dispatch, if their windows ended. ``phases``: of the
    clean steps."""
    kinds: list[Kind] = []
    if ops := longest(lead.all(OpsRecord)):
        wall = phases.wall_ns if phases else {}
        # Steps without an optimizer and a loader: no mark separates the update by hand from making
        # the next batch (docs/phases.md).
        apart = "prepare" in wall or "unattributed" not in wall
        beside = "prepare" if apart else "unattributed"
        functions = phases is not None and phases.without_modules
        learning = "forward" if functions else beside
        acts = phases is not None and phases.acts
        kinds.append(_ops(ops, whole(lead.all(OpsRecord)), (beside, learning), acts))
        if ops.syncs is not None or ops.synchronized:
            kinds.append(_sync_lines(ops))
    if calls := longest(lead.all(CallsRecord)):
        kinds.append(_calls(calls))
    if again := lead.last(AgainRecord):
        kinds.append(same_inputs(again))
    if dispatch := lead.last(DispatchRecord):
        kinds.append(
            Dispatch(
                op_ns=dispatch.op_ns,
                grad_op_ns=dispatch.grad_op_ns,
                profiled_ns=None
                if dispatch.op_unprofiled_ns is None
                else max(0.0, dispatch.op_ns - dispatch.op_unprofiled_ns),
            )
        )
    return kinds


def _ops(
    record: OpsRecord, passes: Sequence[OpsRecord], beside: tuple[str, str], acts: bool
) -> Ops:
    """The counts of ``record``. ``beside``: the phase of lines that the probe assigned to
    ``prepare``, and of those of them that record gradients; ``acts``: ``Phases.acts``. A line's
    time is that of its fastest pass: a single stall of the machine inside a call (0.6 s, in a line
    of 2 ms) would make all other lines look cheap."""
    steps = record.steps
    fastest: dict[tuple[object, ...], float] = {}
    backward: dict[tuple[object, ...], float] = {}
    called = [(each, line) for each in passes for line in each.lines if line.calls]
    for one, line in called:
        key = (*(line.at or ()), line.phase)
        fastest[key] = min(fastest.get(key, math.inf), line.elapsed / line.calls)
        if line.backward and one.backward_other is not None:
            spent = line.backward["elapsed"] / line.calls
            backward[key] = min(backward.get(key, math.inf), spent)

    # Constants are recognised only from the second counted step on.
    compared = steps / record.constant_steps if record.constant_steps else 0.0

    def time_of(line: OpsLine) -> float:
        return line.calls * fastest.get((*(line.at or ()), line.phase), 0.0) / steps

    # On a device, parts are of the estimated work: the host's time is divided by that.
    worked = sum(line.work for line in record.lines)
    per_work = sum(map(time_of, record.lines)) / worked if worked else 0.0

    def of_time(line: OpsLine, spent: float) -> float:
        return spent / line.elapsed * time_of(line) if line.elapsed else 0.0

    def part(line: OpsLine, spent: float) -> float:
        return spent * per_work if worked else of_time(line, spent)

    def in_backward(line: OpsLine) -> dict[str, float]:
        whole, each = line.backward.get("elapsed"), backward.get((*(line.at or ()), line.phase))
        if not whole or each is None:
            return {}
        scale = line.calls * each / whole / steps
        found = {f"{name}_ns": spent * scale for name, spent in line.backward.items()}
        if "constant_ns" in found:
            found["constant_ns"] *= compared
        return found

    lines = tuple(
        OpLine(
            at=location(line.at) or NOWHERE,
            phase=beside[line.grad_calls > 0] if line.phase == "prepare" else line.phase,
            calls=line.calls / steps,
            grad_calls=line.grad_calls / steps,
            conversions={name: count / steps for name, count in line.conversions.items()},
            constructions=line.constructions / steps,
            constructed_ns=of_time(line, line.constructed),
            elapsed_ns=time_of(line),
            work_ns=line.work * per_work,
            in_loop=line.in_loop,
            names={name: count / steps for name, count in line.names.items()},
            turns=(line.turns or steps) / steps,  # older runs did not count them
            repeated=line.repeated,
            one_row=line.one_row,
            series=line.series,
            looped_at=location(line.looped),
            shared=line.shared,
            shared_tensors=line.tensors,
            shared_at=location(line.shared_at),
            joined=line.joined,
            samples_at=location(line.samples_at),
            moved_again=line.moved_again / steps,
            moved_bytes=line.moved_bytes / steps,
            constant_ns=part(line, line.constant) * compared,
            frozen_ns=part(line, line.frozen),
            of_batch_ns=part(line, line.of_batch) * compared,
            thrown_away_ns=part(line, line.thrown_away),
            never_used_ns=part(line, line.never_used),
            mostly_zero_ns=part(line, line.mostly_zero),
            nonzero_ns=part(line, line.nonzero),
            unwritten_ns=part(line, line.unwritten),
            copied_ns=part(line, line.copied),
            low_rank_ns=part(line, line.low_rank),
            low_rank_used_ns=part(line, line.low_rank_used),
            gathered_ns=part(line, line.gathered),
            gathered_used_ns=part(line, line.gathered_used),
            separate_ns=of_time(line, line.separate),
            penalty_ns=part(line, line.penalty),
            factored_ns=part(line, line.factored),
            multiplied_out_ns=part(line, line.multiplied_out),
            alike_ns=part(line, line.alike),
            copied_on_ns=part(line, line.copied_on),
            copied_to_read_ns=part(line, line.copied_to_read),
            matrices=line.matrices,
            indexed_ns=part(line, line.indexed),
            fft_ns=part(line, line.fft),
            fft_length=line.fft_length,
            thin_ns=part(line, line.thin),
            thin_rank=line.thin_rank,
            thin_rows=line.thin_rows,
            prefix_ns=part(line, line.prefix),
            again_ns=part(line, line.again),
            parametrized_ns=part(line, line.parametrized),
            contracted_ns=part(line, line.contracted),
            contraction=line.contraction,
            backward=in_backward(line),
        )
        for line in record.lines
    )
    moves = tuple(
        ModuleMove(at=location(at), per_step=times / steps) for at, times in record.module_moves
    )
    attention = None
    if record.attention is not None:  # older runs did not follow it
        attention = tuple(
            Attention(at=location(at), per_step=times / steps) for at, times in record.attention
        )
    fused = tuple(
        FusedAttention(at=location(at), per_step=times / steps, unfused=tuple(why))
        for at, why, times in record.fused_attention
    )
    prefixes = tuple(
        PrefixLine(
            at=location(at), calls=calls / steps, positions=positions / steps, new=new / steps
        )
        for at, calls, positions, new in record.prefixes
    )
    never_used = tuple(
        NeverUsedLine(at=location(at), ns=elapsed / steps) for at, elapsed in record.never_used
    )
    copied = tuple(
        CopiedRows(at=location(at), ns=elapsed / steps, copies=copies)
        for at, elapsed, copies in record.copied
    )
    gathered = tuple(
        PickedWeights(at=location(at), picked=picked, weights=weights)
        for at, picked, weights in record.gathered
    )
    unread = tuple(
        InputGradient(at=location(at), alone=alone, nodes=nodes, alone_ns=alone_ns, ns=ns)
        for at, alone, nodes, alone_ns, ns in record.input_gradients
    )
    others = [x.backward_other / x.steps for x in passes if x.backward_other is not None]
    other = min(others, default=None)
    return Ops(
        steps=steps, lines=lines, module_moves=moves, attention=attention, fused_attention=fused,
        prefixes=prefixes, never_used=never_used, copied=copied,
        input_gradients=unread, gathered=gathered, acts=acts, backward_other_ns=other,
    )  # fmt: skip


def _sync_lines(record: OpsRecord) -> SyncLines:
    lines, asked = (
        tuple(SyncLine(at=location(at) or NOWHERE, per_step=n / record.steps) for at, n in found)
        for found in (record.syncs or [], record.synchronized)
    )
    return SyncLines(lines=lines, asked=asked)


def _calls(record: CallsRecord) -> Calls:
    steps = record.steps
    rows = tuple(
        CallRow(
            at=Place(file=file, line=line, function=function),
            calls=calls / steps,
            own_ns=own / steps,
            total_ns=total / steps,
        )
        for file, line, function, calls, own, total in record.rows
    )
    return Calls(steps=steps, rows=tuple(sorted(rows, key=lambda row: -row.own_ns)))


def same_inputs(record: AgainRecord) -> SameInputs:
    """Of the training thread per step, of a worker per fetch."""
    steps = record.steps
    lines = (
        SameInput(
            at=location(at) or NOWHERE,
            name=name,
            phase=phase,
            calls=calls / steps,
            again=again / steps,
            inputs=inputs,
            ns=ns / steps,
            again_ns=again_ns / steps,
            size=size,
        )
        for at, name, phase, calls, again, inputs, ns, again_ns, size in record.lines
    )
    return SameInputs(steps=steps, lines=tuple(lines))


# "  0.25    0.004739          27       172       172 openat": share, seconds, µs per call, calls,
# errors (blank for none), name.
_ROW = re.compile(r"^\s*[\d.]+\s+([\d.]+)\s+\d+\s+(\d+)\s+(\d+)?\s*([a-z_][\w?]*)\s*$")


def make_syscalls(run_dir: Path, lead: Process) -> Syscalls | None:
    """The counts; None if strace was not requested, was refused, or left no summary."""
    passes = [record for record in lead.all(SyscallsRecord) if record.steps > 0]
    try:
        text = (run_dir / syscalls_file(lead.pid)).read_text(errors="replace")
    except OSError:
        return None
    found = [match.groups() for line in text.splitlines() if (match := _ROW.match(line))]
    if not passes or not found:
        return None
    steps = passes[-1].steps
    rows = [
        SyscallRow(
            name=name,
            calls=int(calls) / steps,
            errors=int(errors or 0) / steps,
            ns=float(seconds) * 1e9 / steps,
        )
        for seconds, calls, errors, name in found
        if name != "total"
    ]
    return Syscalls(steps=steps, rows=tuple(sorted(rows, key=lambda row: -row.ns)))
