"""The line of a copy, a wait, a matrix product or the gradient of a slice.

A trace shows only the function of each, and where that function begins; the counted calls have
their lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from tdiag.evidence.device import Sync, SyncLine, SyncLines, Syncs, Transfers
from tdiag.evidence.roofline import ADDS, FILLS, OpWork, Work
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import TAKING, OpLine, Ops
from tdiag.model.place import Place

# Calls that copy between host and device, by their names in Python.
COPYING = {"to", "cuda", "copy_"}
# Matrix products and convolutions: their names in Python, by a part of the op's name.
PRODUCTS = {
    "conv": re.compile("^conv"),
    "attention": re.compile("attention"),
    "mm": re.compile(r"^(linear|matmul|__r?matmul__|mm|bmm|addmm|baddbmm|einsum|bilinear)$"),
}


def pinpoint(evidence: Evidence) -> None:
    """Replace the places of Transfers, Syncs and Work's products by lines of the same function that
    made such calls, if there are any: by the line that spent most time in them."""
    ops, transfers, syncs = evidence.get(Ops), evidence.get(Transfers), evidence.get(Syncs)
    work = evidence.get(Work)
    if ops is None:
        return
    if transfers is not None:
        kinds = {"h2d": _sends, "d2h": _reads}
        copies = (
            replace(x, at=_line(x.at, ops.lines, kinds.get(x.direction, _sends)))
            for x in transfers.copies
        )
        evidence.add(Transfers(copies=tuple(copies)))
    if syncs is not None:
        lines = evidence.get(SyncLines)
        find = partial(_sync_line, ops=ops.lines, asked=lines.asked if lines else ())
        evidence.add(Syncs(syncs=tuple(replace(x, at=find(x)) for x in syncs.syncs)))
    if work is not None:
        found = (replace(x, at=_line(x.at, ops.lines, partial(_makes, x))) for x in work.ops)
        evidence.add(replace(work, ops=tuple(found)))


def _line(
    at: Place | None, lines: Sequence[OpLine], made: Callable[[OpLine], bool]
) -> Place | None:
    if at is None:
        return None
    mine = [x for x in lines if _in(x.at, at)]
    found = max(filter(made, mine), key=lambda x: x.elapsed_ns, default=None)
    return found.at if found else at


def _sync_line(sync: Sync, ops: Sequence[OpLine], asked: Sequence[SyncLine]) -> Place | None:
    """A synchronisation within an op reads a value; one without was asked for by name."""
    if sync.op or sync.at is None:
        return _line(sync.at, ops, _reads)
    mine = [x for x in asked if _in(x.at, sync.at)]
    found = max(mine, key=lambda x: x.per_step, default=None)
    return found.at if found else _line(sync.at, ops, _reads)


def _in(at: Place, traced: Place) -> bool:
    """Whether the line is in the traced function."""
    return at.function == traced.function and _same(at.file, traced.file)


def _same(file: str, traced: str) -> bool:
    """Whether both are one file; a trace may name it relative to the working directory."""
    return file == traced or file.endswith(f"/{traced}")


def _sends(line: OpLine) -> bool:
    """Whether the line copies to the device, or makes a tensor from Python data."""
    return bool(COPYING & line.names.keys()) or line.constructions > 0


def _reads(line: OpLine) -> bool:
    """Whether the line copies to the host, or reads values (``item``, ``cpu``, ``print``)."""
    return bool(COPYING & line.names.keys() or line.conversions)


def _makes(op: OpWork, line: OpLine) -> bool:
    """Whether one of the line's calls became this op, or this op of its backward."""
    if op.backward and op.name in FILLS + ADDS:
        return bool(TAKING & line.names.keys()) and line.grad_calls > 0
    names = next((names for part, names in PRODUCTS.items() if part in op.name), None)
    return names is not None and any(map(names.search, line.names))
