"""Reads the summary of ``strace -c``."""

from __future__ import annotations

import re
from pathlib import Path

from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.records import SyscallsRecord
from tdiag.evidence.syscalls import SyscallRow, Syscalls
from tdiag.probe.wire import syscalls_file

# "  0.25    0.004739          27       172       172 openat": share, seconds, µs a call, calls,
# errors (blank for none), name.
_ROW = re.compile(r"^\s*[\d.]+\s+([\d.]+)\s+\d+\s+(\d+)\s+(\d+)?\s*([a-z_][\w?]*)\s*$")


def make_syscalls(run_dir: Path, lead: Process) -> Syscalls | None:
    """None where strace was not asked for, was refused, or left no summary."""
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
