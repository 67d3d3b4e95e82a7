"""What a trace shows of compiled code: graphs, what runs between them, and guards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.compiling import (
    BrokenAt,
    Compilation,
    CompiledRegions,
    Compiles,
    graph_breaks,
)
from tdiag.model.place import Place

from .making import Event, evidence_of, op, step


def compiled_step(number: int, begin: float, graph: str = "CompiledFunction") -> list[Event]:
    """1,000 µs: a graph of 300, a break of 100 with an op of 60, a graph of 200 in what follows,
    and an op of 50 outside."""
    return [
        step(number, begin, 1000),
        op("TorchDynamo Cache Lookup", begin + 5, 10),
        op("Torch-Compiled Region: 0/1", begin + 20, 700),
        op(graph, begin + 30, 300),
        op("aten::mm", begin + 40, 250),
        op("aten::item", begin + 340, 60),
        op("TorchDynamo Cache Lookup", begin + 410, 10),
        op("Torch-Compiled Region: 1/0", begin + 430, 280),
        op(graph, begin + 450, 200),
        op("aten::add", begin + 800, 50),
    ]


def regions(tmp_path: Path, graph: str) -> CompiledRegions:
    events = [event for n in range(3) for event in compiled_step(n, 1000.0 * n, graph)]
    found = evidence_of(tmp_path, events).get(CompiledRegions)
    assert found is not None
    return found


@pytest.mark.parametrize("graph", ["CompiledFunction", "## Call CompiledFxGraph fabc ##"])
def test_every_part_of_a_compiled_step(tmp_path: Path, graph: str) -> None:
    found = regions(tmp_path, graph)
    assert found.entered == {"0/1": 1.0, "1/0": 1.0}
    assert found.graphs_ns == pytest.approx(500_000)
    assert found.broken_ns == pytest.approx(60_000)
    assert found.eager_ns == pytest.approx(50_000)
    assert found.guards_ns == pytest.approx(20_000)
    assert found.gap_ns == pytest.approx({"1/0": 100_000})


def test_a_back_end_that_marks_no_graph_leaves_its_time_unknown(tmp_path: Path) -> None:
    found = regions(tmp_path, "aten::relu")
    assert found.entered == {"0/1": 1.0, "1/0": 1.0}
    assert (found.graphs_ns, found.broken_ns, found.eager_ns) == (None, None, None)
    assert found.gap_ns == {}


def test_a_trace_without_compiled_code_has_none(tmp_path: Path) -> None:
    plain = [
        make for n in range(3) for make in (step(n, 100.0 * n, 100), op("aten::mm", 100.0 * n, 50))
    ]
    assert evidence_of(tmp_path, plain).get(CompiledRegions) is None


def test_a_break_in_a_called_function_counts_where_it_happened(tmp_path: Path) -> None:
    """Its caller's graph ends there, too: both rests follow it, once a step."""
    inner, outer = (Place(file="/m.py", line=n, function=f) for n, f in ((6, "note"), (12, "run")))
    rests = tuple(
        Compilation(number=number, at=at, ops=1, ns=1, resumed_at=at.line)
        for number, at in (("0/1", inner), ("1/0", outer))
    )
    breaks = (
        BrokenAt(lines=(inner, outer), reason="print", times=2),
        BrokenAt(lines=(inner,), reason="print", times=1),
        BrokenAt(lines=(Place(file="/m.py", line=30, function="rare"),), reason="log", times=1),
    )
    compiles = Compiles(
        frames=4, recompiles=0, total_ns=1, clean_recompiles=0.0, clean_ns=0.0, reasons=(),
        limit_hit=False, compilations=rests, breaks=breaks,
    )  # fmt: skip
    met, rare = graph_breaks(compiles, regions(tmp_path, "CompiledFunction"))
    assert (met.at, met.times, met.per_step, met.ns) == (inner, 3, 1.0, pytest.approx(100_000))
    assert (rare.per_step, rare.ns) == (None, None), "nothing was compiled behind it"
