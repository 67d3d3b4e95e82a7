"""TD216: what a trace tells of the loader it waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.model.diagnosis import Diagnosis, Finding
from tests.trace.making import Event, evidence_of, launched, note, op, span, step

FETCH_US, WORK_US = 4000, 2000


def training(iterator: str, python: tuple[tuple[str, float, float], ...] = ()) -> list[Event]:
    """Three steps: 4 ms for a batch, then 2 ms of float32 matrix kernels."""
    events = []
    for number in range(3):
        start = (FETCH_US + WORK_US + 100) * number
        events += [
            step(number, start, FETCH_US + WORK_US + 100),
            note(f"enumerate(DataLoader)#{iterator}.__next__", start, FETCH_US),
            *(span("python_function", name, start + at, dur) for name, at, dur in python),
            op("aten::mm", start + FETCH_US, 20),
            *launched(
                "ampere_sgemm_128x64", start + FETCH_US, start + FETCH_US + 20, WORK_US, number + 1
            ),
        ]
    return events


def diagnosed(tmp_path: Path, events: list[Event]) -> Diagnosis:
    return diagnose(evidence_of(tmp_path, events))


def first(diagnosis: Diagnosis) -> Finding:
    found = diagnosis.findings[0]
    assert found.code == "TD216"
    return found


def test_a_loader_without_workers_leads_and_names_the_function(tmp_path: Path) -> None:
    python = (
        ("torch/utils/data/dataloader.py(700): __next__", 1, 3990),
        ("data.py(29): __getitem__", 10, 3900),
        ("PIL/Image.py(2200): resize", 100, 3500),
        ("<built-in method resize of ImagingCore object at 0x7f>", 110, 3400),
    )
    diagnosis = diagnosed(tmp_path, training("_SingleProcessDataLoaderIter", python))
    assert diagnosis.verdict.cls == "input"
    found = first(diagnosis)
    assert "TD601" in {other.code for other in diagnosis.findings}  # which is behind it
    assert "num_workers=0" in found.summary and "resize (PIL/Image.py)" in found.summary
    assert found.location is not None
    assert (found.location.file, found.location.line) == ("data.py", 29)
    assert found.fix.text.startswith("DataLoader(..., num_workers=")
    assert found.fix.intervention == "loader.num_workers=2"


def test_workers_are_not_told_to_be_missing(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, training("_MultiProcessingDataLoaderIter"))
    found = next(f for f in diagnosis.findings if f.code == "TD216")
    assert "num_workers=0" not in found.summary
    assert found.speedup is not None and found.speedup.low == 1.0
    assert found.location is None


@pytest.mark.parametrize("iterator", ["_SingleProcessDataLoaderIter", "MyIter"])
def test_a_loader_that_is_not_waited_for_is_left_alone(tmp_path: Path, iterator: str) -> None:
    events = [e for e in training(iterator) if e["ph"] == "X"]
    for event in events:
        if event["name"].startswith("enumerate"):
            event["dur"] = 100.0
        elif event["cat"] != "user_annotation":
            event["ts"] -= FETCH_US - 100
        elif event["name"].startswith("ProfilerStep"):
            event["dur"] = WORK_US + 200.0
    assert "TD216" not in {f.code for f in diagnosed(tmp_path, events).findings}
