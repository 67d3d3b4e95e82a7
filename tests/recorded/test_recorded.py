"""Runs that were recorded on a real device are judged by what was measured there.

``scripts/validate_gpu.py --record`` packed them; docs/gpu-validation.md says on which device. The
gain is the recorded clean step ÷ the step of the fixed twin, run alone on the same device.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.model.diagnosis import Diagnosis

FOLDER = Path(__file__).parent
LABELS: dict[str, dict[str, dict[str, Any]]] = {
    file.parent.name: json.loads(file.read_text()) for file in FOLDER.glob("*/labels.json")
}
PLANTED = sorted(
    (device, code) for device, labels in LABELS.items() for code in labels if code != "healthy"
)
# As scripts/gpu/cases.py: a program's steps differ by some per cent from run to run.
WIDER_FRAC = 0.10


def judged(device: str, name: str, folder: Path) -> Diagnosis:
    with tarfile.open(FOLDER / device / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return diagnose(load_run(folder / "run"))


@pytest.mark.parametrize(("device", "code"), PLANTED)
def test_the_planted_fault_is_found_with_its_class_line_and_gain(
    device: str, code: str, tmp_path: Path
) -> None:
    label, found = LABELS[device][code], judged(device, code, tmp_path)
    finding = next((f for f in found.findings if f.code == code), None)
    assert finding is not None, (found.verdict, [f.code for f in found.findings])
    assert label["cls"] in (None, found.verdict.cls)
    assert finding.speedup is not None
    assert found.step is not None
    gained = found.step.mean_ns / label["fixed_ns"]
    low, high = finding.speedup.low * (1 - WIDER_FRAC), finding.speedup.high * (1 + WIDER_FRAC)
    assert low <= gained <= high, (gained, finding.speedup)
    if label["line"]:
        assert finding.location is not None
        assert finding.location.line == label["line"]


def test_the_healthy_training_is_healthy(tmp_path: Path) -> None:
    found = judged("h100", "healthy", tmp_path)
    assert found.verdict.healthy, found.verdict
    assert [f.code for f in found.findings if not f.advisory] == []
