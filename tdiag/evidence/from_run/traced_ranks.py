"""Ranks that trained on devices: whom the others wait for, by the steps that all of them traced."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tdiag.errors import RunError
from tdiag.evidence.device import Ranks
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.records import TraceRecord
from tdiag.evidence.from_run.traced import trace_file
from tdiag.evidence.from_trace.ranks_of_traces import compare_ranks
from tdiag.evidence.from_trace.trace_files import read_files


def by_traces(run_dir: Path, lead: Process, processes: Iterable[Process]) -> Ranks | None:
    """None where nobody traced the steps of a trace of the lead's with it. The later pass counts:
    its trace holds more steps."""
    passes = sorted({record.number for record in lead.all(TraceRecord)}, reverse=True)
    everybody = list(processes)
    for number in passes:
        files: dict[int, Path] = {}
        for process in everybody:
            for record in process.all(TraceRecord):
                path = trace_file(run_dir / record.file)
                if record.number == number and path is not None:
                    files[process.rank] = path
        if lead.rank not in files or len(files) < 2:
            continue
        read = dict(zip(files, read_files(list(files.values())), strict=True))
        found = {rank: f.evidence for rank, f in read.items() if not isinstance(f, RunError)}
        if len(found) > 1:
            return compare_ranks(found)
    return None
