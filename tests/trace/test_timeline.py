"""The median step drawn along time: spans where they were, totals that stay true when thinned."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from tdiag.evidence.from_trace.median_step import lane
from tdiag.evidence.store import Evidence
from tdiag.model.timeline import CELLS, Lane, Span, Timeline
from tests.trace.making import call, copy, evidence_of, kernel, note, op, span, step

US = 1000


def drawn(evidence: Evidence) -> Timeline:
    found = evidence.get(Timeline)
    assert found is not None
    return found


def lanes(evidence: Evidence) -> dict[str, list[tuple[int, int, str]]]:
    return {
        found.name: [(x.begin_ns // US, x.end_ns // US, x.kind) for x in found.spans]
        for found in drawn(evidence).lanes
    }


def test_each_lane_shows_what_ran_there_from_the_steps_begin(tmp_path: Path) -> None:
    found = evidence_of(
        tmp_path,
        [
            step(1, 1000, 900),
            step(2, 1900, 1000),
            step(3, 2900, 1100),
            note("enumerate(DataLoader)#Iter.__next__", 1900, 100),
            op("aten::mm", 2000, 50),
            call("cudaDeviceSynchronize", 2300, 200),
            kernel("gemm", 2100, 200),
            kernel("gemm", 2200, 300, stream=8),
            kernel("ncclAllReduce", 2450, 250, stream=9),
            copy("Memcpy HtoD (Pinned -> Device)", 2050, 30),
            copy("Memcpy DtoH (Device -> Pinned)", 2600, 10),
            kernel("of the next step", 2950, 40),
        ],
    )
    assert drawn(found).step_ns == 1000 * US
    assert (drawn(found).source, drawn(found).steps) == ("trace", 3)
    assert lanes(found) == {
        "host": [(0, 100, "data_wait"), (100, 150, "launch"), (400, 600, "sync")],
        "compute": [(200, 600, "compute")],
        "comm": [(550, 800, "comm")],
        "copies": [(150, 180, "h2d"), (700, 710, "d2h")],
    }


def test_ops_of_a_trace_without_a_device_launch_nothing(tmp_path: Path) -> None:
    found = evidence_of(tmp_path, [step(1, 0, 1000), op("aten::mm", 100, 700)])
    assert lanes(found) == {"host": [(100, 800, "ops")]}


def test_a_trace_without_steps_is_drawn_whole(tmp_path: Path) -> None:
    found = evidence_of(tmp_path, [kernel("gemm", 100, 600), op("aten::mm", 500, 600)])
    assert (drawn(found).steps, drawn(found).step_ns) == (0, 1000 * US)


def test_a_span_over_a_steps_end_is_cut_there(tmp_path: Path) -> None:
    events = [step(i, 1000 * i, 1000) for i in range(1, 4)]
    found = evidence_of(tmp_path, [*events, kernel("long", 500, 2900)])
    assert lanes(found) == {"compute": [(0, 1000, "compute")]}


def test_the_host_of_a_sampled_trace_is_not_drawn(tmp_path: Path) -> None:
    ops = [op("aten::mm", 10 * i, 5, **{"External id": 7 * i}) for i in range(1, 40)]
    found = evidence_of(tmp_path, [step(1, 0, 1000), *ops, kernel("gemm", 100, 200)])
    assert set(lanes(found)) == {"compute"}


def total(found: Lane, kind: str) -> int:
    return sum(x.end_ns - x.begin_ns for x in found.spans if x.kind == kind)


def test_a_lane_of_many_spans_is_thinned_and_keeps_its_totals_in_every_cell() -> None:
    step_ns = 1_000_003
    begin = np.sort(np.random.default_rng(1).choice(step_ns - 10, 5000, replace=False))
    spans = np.stack([begin, np.minimum(begin + 7, np.r_[begin[1:], step_ns])], axis=1)
    kinds = {"h2d": spans[::2], "d2h": spans[1::2]}
    found = lane("copies", kinds, step_ns)
    assert not found.exact
    assert len(found.spans) <= 2 * CELLS
    edges = [cell * step_ns // CELLS for cell in range(CELLS + 1)]
    for kind, exact in kinds.items():
        for low, high in itertools.pairwise(edges):
            want = np.clip(exact, low, high)
            mine = [
                np.clip((x.begin_ns, x.end_ns), low, high) for x in found.spans if x.kind == kind
            ]
            assert sum(int(b - a) for a, b in mine) == int((want[:, 1] - want[:, 0]).sum())
    ends = [(x.begin_ns, x.end_ns) for x in found.spans]
    assert all(a < b <= c for (a, b), (c, _) in itertools.pairwise(ends))


def test_a_lane_of_few_spans_is_exact_and_overlap_goes_to_the_first_kind() -> None:
    found = lane("copies", {"a": np.array([[0, 10]]), "b": np.array([[5, 20]])}, 30)
    assert found == Lane(name="copies", spans=(Span(0, 10, "a"), Span(10, 20, "b")), exact=True)


def test_an_unknown_accelerators_work_is_drawn_as_compute(tmp_path: Path) -> None:
    work = span("npu_kernel", "matmul", 100, 300, pid=0, tid=1, stream=1, device=0)
    assert lanes(evidence_of(tmp_path, [step(1, 0, 1000), work])) == {
        "compute": [(100, 400, "compute")]
    }
