"""The median step event by event: threads, streams and copies, bounded in number."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tdiag.evidence.from_trace.median_step import MOST_EVENTS, RESOLUTION, merge
from tdiag.evidence.steps import StepEvents
from tdiag.evidence.store import Evidence
from tests.trace.making import call, copy, evidence_of, kernel, note, op, step

US = 1000


def events_of(evidence: Evidence) -> StepEvents:
    found = evidence.get(StepEvents)
    assert found is not None
    return found


def lanes(evidence: Evidence) -> dict[str, list[tuple[str, int, int]]]:
    return {
        f"{lane.role} {lane.name}": [
            (e.name, e.begin_ns // US, e.end_ns // US) for e in lane.events
        ]
        for lane in events_of(evidence).lanes
    }


def test_each_lane_names_what_ran_there_in_the_median_step(tmp_path: Path) -> None:
    found = evidence_of(
        tmp_path,
        [
            step(1, 1000, 900),
            step(2, 1900, 1000),
            step(3, 2900, 1100),
            note("enumerate(DataLoader)#Iter.__next__", 1900, 100),
            op("aten::linear", 2000, 60),
            op("aten::mm", 2010, 40),  # inside the one before
            call("cudaDeviceSynchronize", 2300, 200),
            kernel("gemm", 2100, 200),
            kernel("relu", 2200, 300, stream=8),
            kernel("ncclAllReduce", 2450, 250, stream=9),
            copy("Memcpy HtoD (Pinned -> Device)", 2050, 30),
            kernel("runs on", 2850, 100),
        ],
    )
    shown = lanes(found)
    assert (events_of(found).number, events_of(found).of) == (2, 3)
    host = [name for name in shown if name.startswith("host")]
    assert [shown[name] for name in host] == [
        [("aten::linear", 100, 160), ("cudaDeviceSynchronize", 400, 600)]
    ]
    assert shown["phases host"][0] == ("data_wait", 0, 100)
    assert shown["device device 0 stream 7"] == [("gemm", 200, 400), ("runs on", 950, 1000)]
    assert shown["device device 0 stream 8"] == [("relu", 300, 600)]
    assert shown["comm device 0 stream 9"] == [("ncclAllReduce", 550, 800)]
    assert shown["copies host to device"] == [("Memcpy HtoD (Pinned -> Device)", 150, 180)]


def test_events_too_short_to_be_seen_are_one_named_after_the_longest() -> None:
    tiny = [(f"k{i}", 10 * i, 10 * i + i) for i in range(9)]  # the first one is empty
    long, late = ("gemm", 1_000, 3_000), ("late", 9_000, 9_001)
    names, begin, end = zip(late, *tiny, long, strict=True)
    found = list(merge(names.__getitem__, np.array(begin), np.array(end), finest_ns=100))
    assert [(e.name, e.merged) for e in found] == [("k8", 8), ("gemm", 1), ("late", 1)]
    assert (found[0].begin_ns, found[0].end_ns) == (10, 88)
    assert found[0].busy_ns == sum(range(1, 9)), "what lies between them is not work"


def test_a_step_of_very_many_kernels_stays_drawable(tmp_path: Path) -> None:
    kernels = [kernel("k", 1000 + i, 1) for i in range(5 * RESOLUTION)]
    found = evidence_of(tmp_path, [step(1, 1000, 5 * RESOLUTION), *kernels])
    drawn = [lane for lane in events_of(found).lanes if lane.role == "device"]
    assert sum(e.merged for e in drawn[0].events) == 5 * RESOLUTION
    assert len(drawn[0].events) <= 2 * RESOLUTION


def test_a_step_of_very_many_lanes_is_drawn_more_coarsely(tmp_path: Path) -> None:
    """Seven lanes of five hundred events each."""
    length = 20 * RESOLUTION
    events = [
        kernel("k", 1000 + at, 15, stream=stream)
        for stream in range(4)
        for at in range(0, length, 40)
    ]
    events += [copy("Memcpy HtoD", 1000 + at, 15) for at in range(0, length, 40)]
    events += [copy("Memcpy DtoH", 1000 + at, 15) for at in range(0, length, 40)]
    events += [kernel("nccl", 1000 + at, 15, stream=9) for at in range(0, length, 40)]
    found = events_of(evidence_of(tmp_path, [step(1, 1000, length), *events]))
    assert len(events) > MOST_EVENTS >= sum(len(lane.events) for lane in found.lanes)
    drawn = [lane for lane in found.lanes if lane.role == "copies"]
    busy = sum(event.busy_ns for event in drawn[0].events)
    assert busy == 15 * US * length // 40, "as much work as there was"
