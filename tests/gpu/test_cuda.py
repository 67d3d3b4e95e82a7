"""What only a CUDA device can show. Run by ``scripts/validate_gpu.py``; skipped elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SAMPLES = Path(__file__).parents[2] / "sample_scripts"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def diagnose(script: str, tmp_path: Path) -> dict[str, Any]:
    """The diagnosis of one sample, run as a user runs it."""
    output = tmp_path / "diagnosis.json"
    subprocess.run(
        [sys.executable, "-m", "tdiag", "run", str(SAMPLES / script), "--profiling",
         "--quiet", "-o", str(output)],
        cwd=tmp_path, check=True, env=dict(os.environ), timeout=300,
    )  # fmt: skip
    return json.loads(output.read_text())


def codes(diagnosis: dict[str, Any]) -> list[str]:
    return [f["code"] for f in diagnosis["findings"] if not f["advisory"]]


def test_pageable_copies_are_found_and_their_fix_is_silent(tmp_path: Path) -> None:
    slow, fixed = tmp_path / "slow", tmp_path / "fixed"
    slow.mkdir()
    fixed.mkdir()
    found = diagnose("h2d.py", slow)
    assert found["verdict"]["class"] == "h2d"
    assert "TD301" in codes(found)
    assert "TD301" not in codes(diagnose("h2d_fixed.py", fixed))


def test_the_budget_has_device_components_and_adds_up(tmp_path: Path) -> None:
    found = diagnose("healthy.py", tmp_path)
    parts = {part["component"]: part["ns"] for part in found["budget"]}
    assert parts["compute"] > 0
    assert sum(parts.values()) == found["step"]["mean_ns"]
    assert found["verdict"]["class"] == "compute"


def test_a_python_loop_in_the_loss_is_named_on_a_device_too(tmp_path: Path) -> None:
    found = diagnose("python_loss.py", tmp_path)
    assert found["verdict"]["class"] == "python_loss"
    assert Path(found["findings"][0]["location"]["file"]).name == "python_loss.py"


def test_implicit_synchronisations_are_counted_by_line(tmp_path: Path) -> None:
    script = tmp_path / "items.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(10**9):\n"
        "    loss = model(torch.randn(8, 64, device='cuda')).square().mean()\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        "    value = loss.item()\n"
    )
    subprocess.run(
        [sys.executable, "-m", "tdiag", "run", "items.py", "--profiling", "--out", "run"],
        cwd=tmp_path, check=True, timeout=300,
    )  # fmt: skip
    records = [
        json.loads(line)
        for file in (tmp_path / "run" / "events").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    syncs = [r["syncs"] for r in records if r["kind"] == "ops"][-1]
    assert any(place[:2] == [str(script), 7] for place, _ in syncs)
