"""What the DataLoader workers fetched during the traced step of median length."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tdiag.evidence.from_run.events import Process, workers_of
from tdiag.evidence.from_run.records import FetchRecord
from tdiag.evidence.from_trace.median_step import event_lane
from tdiag.evidence.history import StepEvents


def with_workers(
    step: StepEvents, shift_ns: int, lead: Process, processes: list[Process]
) -> StepEvents:
    """A lane a worker that was seen to fetch meanwhile. ``shift_ns``: the trace's clock − ours."""
    lanes = [
        event_lane(
            f"worker {worker}", "worker", spans, step.begin_ns, step.begin_ns + step.duration_ns
        )
        for worker, spans in _fetches(shift_ns, lead, processes)
    ]
    seen = (msgspec.structs.replace(found, partial=True) for found in lanes if found.events)
    return msgspec.structs.replace(step, lanes=(*step.lanes, *seen))


def _fetches(
    shift_ns: int, lead: Process, processes: list[Process]
) -> Iterator[tuple[int, list[tuple[str, int, int]]]]:
    """Each worker's number and what it did, a fetch cut into loading and collating."""
    for process, _ in workers_of(lead, processes).values():
        spans = []
        fetches = [f for f in process.all(FetchRecord) if f.worker is not None]
        for fetch in fetches:
            begin = fetch.t + shift_ns
            middle = begin + (fetch.wall if fetch.load is None else fetch.load)
            spans.append(("load samples", begin, middle))
            if begin + fetch.wall > middle:
                spans.append(("collate", middle, begin + fetch.wall))
        if fetches:
            yield fetches[0].worker or 0, spans
