"""The merged trace: one clock, lanes that nest, and nothing that an importer would drop."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.errors import RunError
from tdiag.view import perfetto
from tdiag.view.lanes import FETCHES, MACHINE, PHASES, STEPS, WINDOWS

from .importers import complaints, end, ns, overlaps
from .making import NEXT_CALL, PID, WORKER, make_run

Event = dict[str, Any]


def merged(run_dir: Path) -> list[Event]:
    path, notes = perfetto.write(run_dir)
    assert notes == []
    events: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def spans(events: list[Event], pid: int, tid: int) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]


@pytest.fixture
def events(tmp_path: Path) -> list[Event]:
    return merged(make_run(tmp_path / "run"))


def test_no_importer_complains(events: list[Event]) -> None:
    assert complaints(events) == []
    assert overlaps(events) == []


def test_a_span_that_crosses_another_is_cut(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (path,) = (run / "tensorboard").iterdir()
    trace = json.loads(path.read_text())
    first = trace["traceEvents"][1]
    crossing = first | {"cat": "python_function", "name": "enter", "ts": first["ts"] - 90,
                        "dur": 100}  # fmt: skip
    trace["traceEvents"].append(crossing)
    path.write_text(json.dumps(trace))
    found = {e["name"]: e["dur"] for e in merged(run) if e["ph"] == "X"}
    assert found["enter"] == 90
    assert found["ProfilerStep#0"] == first["dur"]


def test_phases_hold_the_ops_that_ran_in_them(events: list[Event]) -> None:
    """Kineto's clock and the probe's agree to less than the 20 µs between a mark and its op."""
    phases = spans(events, PID, PHASES)
    for op, phase in ((NEXT_CALL, "data_wait"), ("aten::linear", "forward")):
        found = [e for e in spans(events, PID, PID) if e["name"] == op]
        assert len(found) == 2
        for event in found:
            around = [p for p in phases if ns(p["ts"]) <= ns(event["ts"]) and end(event) <= end(p)]
            assert [p["name"] for p in around] == [phase]


def test_a_wall_clock_that_was_set_is_told_by_the_first_span(tmp_path: Path) -> None:
    """A jump of an hour between the probe's start and the trace, and still one timeline."""
    run = make_run(tmp_path / "run", opened_us=0)
    (path,) = (run / "tensorboard").iterdir()
    trace = json.loads(path.read_text())
    trace["baseTimeNanoseconds"] += 3600 * 10**9
    path.write_text(json.dumps(trace))
    events = merged(run)
    (first, _) = (e for e in spans(events, PID, PID) if e["name"].startswith("ProfilerStep"))
    assert ns(first["ts"]) == ns(spans(events, PID, STEPS)[30]["ts"])


def test_lanes_tell_windows_steps_and_fetches(events: list[Event]) -> None:
    assert [(e["name"], e["dur"]) for e in spans(events, PID, WINDOWS)] == [
        ("baseline", 900_000.0), ("trace", 60_000.0),
    ]  # fmt: skip
    steps = spans(events, PID, STEPS)
    assert [e["name"] for e in steps] == [f"step {n}" for n in range(32)]
    assert steps[-1]["args"] == {"window": "trace"}
    fetch, load, collate = spans(events, WORKER, FETCHES)
    assert (fetch["dur"], load["dur"], collate["dur"]) == (10_000.0, 8_000.0, 2_000.0)
    assert fetch["args"] == {"loading on a core, %": 25, "read from storage, bytes": 4096}
    names = {(e["name"], e["pid"]): e["args"]["name"] for e in events
             if e["ph"] == "M" and "name" in e["args"] and e["name"] == "process_name"}  # fmt: skip
    assert names == {
        ("process_name", PID): "training",
        ("process_name", WORKER): "worker 0 of loader 0",
        ("process_name", MACHINE): "machine",
    }


def test_the_system_is_a_counter_for_each_measure(events: list[Event]) -> None:
    found = {e["name"]: e["args"] for e in events if e["ph"] == "C"}
    assert found["cores"] == {"in use": 3.0}
    assert found["disk read"] == {"MB/s": 0.001}
    assert {e["pid"] for e in events if e["ph"] == "C"} == {MACHINE}


def test_nothing_begins_before_the_file_does(events: list[Event]) -> None:
    assert min(e["ts"] for e in events if e["ph"] != "M") >= 0


def test_a_trace_that_is_gone_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (path,) = (run / "tensorboard").iterdir()
    path.unlink()
    _, notes = perfetto.write(run)
    assert notes == [f"tensorboard/{path.name} is gone"]


def test_a_run_that_recorded_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match="recorded anything"):
        perfetto.write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
