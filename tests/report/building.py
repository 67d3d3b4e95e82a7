"""What the sample diagnoses are made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tdiag import report
from tdiag.model.diagnosis import (
    Abstained,
    Component,
    Diagnosis,
    Finding,
    Fix,
    Measure,
    Origin,
    Part,
    Safety,
    Speedup,
    StepTime,
    Top,
    Verdict,
)
from tdiag.model.notes import Captured
from tdiag.model.place import Place
from tdiag.model.timeline import Lane, Span, Timeline
from tdiag.report.of_diagnosis import document
from tdiag.report.page import Page

_PAGE = ("width", "color", "all_findings", "base_dir", "run_dir", "latest")
HOME = Path("/home/ada/project")
RUN_DIR = HOME / ".tdiag/runs/20261121-124500-train"
MS = 1_000_000

CPU: dict[str, Any] = {
    "torch": "2.13.0",
    "python": "3.11.7",
    "device": "cpu",
    "device_count": 0,
    "tdiag": "0.1.0",
    "command": ["python", "train.py", "--epochs", "2"],
    "script": "train.py",
    "hostname": "lab-7",
    "platform": "Linux-6.1-x86_64",
    "rank": 0,
    "world_size": 1,
}
GPU = CPU | {"device": "NVIDIA H200", "device_count": 1, "torch": "2.13.0+cu130"}
CAPTURED = {
    "steps": Captured("captured"),
    "fetches": Captured("captured"),
    "py-spy": Captured("captured"),
    "trace": Captured("captured"),
    "calls": Captured("captured"),
    "ops": Captured("captured"),
    "system": Captured("captured"),
}
PERTURBATION = {"sample": 0.012, "trace": 0.384, "calls": 1.12, "ops": 8.4}
NO_DEVICE = "no CUDA device in this run"
GPU_RULES = tuple(
    Abstained(code, name, NO_DEVICE)
    for code, name in (
        ("TD301", "pageable-copies"),
        ("TD302", "pinned-copies-not-overlapped"),
        ("TD303", "host-tensors-moved-in-step"),
        ("TD401", "sync-drains-device"),
        ("TD601", "float32-matrix-kernels"),
    )
)


def render(format: str, diagnosis: Diagnosis, **options: Any) -> str:
    """The diagnosis in a format. ``options`` are those of a page, else of its document."""
    page = Page(**{name: options.pop(name) for name in _PAGE if name in options})
    excerpts = options.pop("excerpts", ())
    found = document(diagnosis, **options)
    if excerpts:
        found = dataclasses.replace(found, excerpts=excerpts)
    return report.render(format, found, page)


def train(line: int, file: str = "train.py") -> Place:
    return Place(str(HOME / file), line)


def finding(
    code: str,
    name: str,
    cls: str,
    summary: str,
    at: Place | None,
    evidence: tuple[Measure, ...],
    fix: str,
    *,
    win_ms: float = 0.0,
    speedup: tuple[float, float] | None = None,
    why: str = "",
    safety: Safety = "safe",
    intervention: str | None = None,
) -> Finding:
    return Finding(
        code=code,
        name=name,
        cls=cls,
        summary=summary,
        location=at,
        evidence=evidence,
        recoverable_ns=round(win_ms * MS),
        speedup=Speedup(*speedup) if speedup else None,
        why_gain=why,
        fix=Fix(fix, safety, intervention),
        advisory=speedup is None,
    )


def diagnosis(
    verdict: Verdict, budget_ms: dict[str, float], steps: int = 214, **changes: Any
) -> Diagnosis:
    """A diagnosis whose step is exactly the sum of its budget."""
    parts = tuple(Component(name, round(ms * MS)) for name, ms in budget_ms.items())
    mean = sum(part.ns for part in parts)
    fields: dict[str, Any] = {
        "verdict": verdict,
        "step": StepTime(mean, round(mean * 0.957), round(mean * 1.42), steps) if parts else None,
        "budget": parts,
        "findings": (),
        "abstained": GPU_RULES,
        "perturbation": PERTURBATION,
        "environment": CPU,
        "capture": CAPTURED,
    }
    return Diagnosis(**(fields | changes))


def lane(name: str, *spans_ms: tuple[float, float, str]) -> Lane:
    return Lane(
        name=name, spans=tuple(Span(round(a * MS), round(b * MS), k) for a, b, k in spans_ms)
    )


def timeline(step_ms: float, source: str, *lanes: Lane) -> Timeline:
    return Timeline(step_ns=round(step_ms * MS), steps=9, source=source, lanes=lanes)


def top(
    of: Origin,
    total_ms: float,
    *parts: tuple[str, float, float, Place | None],
    scaled: bool = False,
) -> Top:
    """Parts as (name, calls, ms, place)."""
    found = tuple(Part(name, calls, ms * MS, at) for name, calls, ms, at in parts)
    return Top(of=of, total_ns=total_ms * MS, parts=found, scaled=scaled)
