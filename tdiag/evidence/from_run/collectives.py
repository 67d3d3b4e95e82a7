"""What the training thread waited for the other processes of its job, on a CPU, by line."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.places import location
from tdiag.evidence.from_run.records import CollectiveRecord
from tdiag.evidence.from_run.timeline import COMM, Timeline
from tdiag.evidence.training import Collective, Collectives


def make_collectives(process: Process, timeline: Timeline, clean: Clean) -> Collectives | None:
    """None where no collective was seen, in no step at all."""
    records = {record.id: record for record in process.all(CollectiveRecord)}
    if not records:
        return None
    steps = max(1, int(clean.mask.sum()))
    regions = np.flatnonzero((timeline.kind == COMM) & clean.mask[timeline.step])
    inside = np.isin(timeline.owner, regions)
    spent = np.bincount(timeline.owner[inside], timeline.ns[inside], len(timeline.kind))
    lines = []
    for number, record in records.items():
        mine = regions[timeline.arg[regions] == number]
        if len(mine):
            wall = float(spent[mine].sum()) / steps
            at = location(record.at)
            count = len(mine) / steps
            lines.append(Collective(name=record.name, at=at, count=count, wall_ns=wall))
    return Collectives(lines=tuple(sorted(lines, key=lambda line: -line.wall_ns)))
