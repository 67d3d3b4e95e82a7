"""What the machine reaches is measured after the run, or it is said why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run.roof import add_roof
from tdiag.evidence.roofline import OpWork, Roof
from tdiag.evidence.store import Evidence
from tdiag.launch import measured_roof
from tdiag.launch.measured_roof import CALIBRATE, calibrate


def ran(folder: Path, executable: str = sys.executable, steps: bool = True, **torch: Any) -> Path:
    """A run directory of a program that made steps."""
    about = {"cpus_allowed": 2, "intra_op": 1, "devices": []} | torch
    records = [{"kind": "process", "executable": executable}, {"kind": "torch", **about}]
    records += [{"kind": "steps", "i": 0, "n": 1}] * steps
    (folder / "events").mkdir()
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (folder / "events" / "7.jsonl").write_text(lines)
    return folder


def saying(folder: Path, *lines: dict[str, Any], code: int = 0, wait_s: float = 0.0) -> str:
    """A Python that measures nothing and says this."""
    said = "".join(f"echo '{json.dumps(line)}'\n" for line in lines)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{said}echo broken >&2\nsleep {wait_s}\nexit {code}\n")
    program.chmod(0o755)
    return str(program)


def found(folder: Path) -> Any:
    return json.loads((folder / "roof.json").read_text())


def test_a_process_of_its_own_measures_with_the_users_torch(tmp_path: Path) -> None:
    calibrate(ran(tmp_path, cpus_allowed=1))
    said = found(tmp_path)
    assert {rate["what"] for rate in said["rates"]} >= {"calls", "float32", "copy 67108864"}
    assert all(rate["per_s"] > 0 for rate in said["rates"])
    evidence = Evidence()
    add_roof(evidence, tmp_path)
    found_roof = evidence.get(Roof)
    assert found_roof is not None and found_roof.threads == 1 and found_roof.in_force is None
    assert found_roof.flops_per_s["float32"] > 1e8
    assert found_roof.op_ns is not None and 10 < found_roof.op_ns < 1e6


def test_a_dtype_that_this_torch_cannot_multiply_is_left_out() -> None:
    """As float16 on a CPU before torch 2.2."""
    command = [sys.executable, str(CALIBRATE), "1", "bool,float32"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    what = {json.loads(line).get("what") for line in done.stdout.splitlines()}
    assert "float32" in what and "bool" not in what


SIZES = """
import runpy, sys
sys.path.insert(0, "")  # the program takes its own folder away
product = runpy.run_path(sys.argv[1])["product"]
for seconds in (1e-5, 1.0):
    product.__globals__["best_s"] = lambda call: seconds
    print(product("bfloat16")[0])
"""


def test_a_narrow_type_gets_large_matrices_unless_that_takes_long() -> None:
    command = [sys.executable, "-c", SIZES, str(CALIBRATE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(2.0 * 512**3), str(2.0 * 128**3)]


@pytest.mark.parametrize(
    ("code", "wait_s", "why"),
    [(1, 0.0, "failed: broken"), (0, 30.0, "took more than 0.2 s"), (0, 0.0, "failed: broken")],
    ids=["failed", "too slow", "silent"],
)
def test_why_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, wait_s: float, why: str
) -> None:
    monkeypatch.setattr(measured_roof, "WITHIN_S", 0.2 if wait_s else 10.0)
    calibrate(ran(tmp_path, saying(tmp_path, code=code, wait_s=wait_s)))
    assert why in found(tmp_path)["why"]
    evidence = Evidence()
    add_roof(evidence, tmp_path)
    assert why in evidence.missing[Roof]


@pytest.mark.parametrize("about", [{"steps": False}, {"devices": ["NVIDIA H100"]}])
def test_nothing_is_measured_that_nobody_needs(tmp_path: Path, about: dict[str, Any]) -> None:
    calibrate(ran(tmp_path, saying(tmp_path), **about))
    assert not (tmp_path / "roof.json").exists()


def test_the_best_rate_is_the_roof_and_fewer_threads_have_their_own(tmp_path: Path) -> None:
    rates = [
        {"what": what, "threads": threads, "per_s": per_s}
        for what, threads, per_s in (
            ("float32", 2, 4e9), ("float32", 1, 2e9), ("copy 100", 2, 5e9), ("copy 100", 1, 8e9),
            ("copy 9000", 2, 1e9), ("calls", 2, 1e6), ("calls", 1, 5e5),
        )
    ]  # fmt: skip
    said = {"allowed": 2, "used": 1, "queued": 0.25, "rates": rates}
    (tmp_path / "roof.json").write_text(json.dumps(said))
    evidence = Evidence()
    add_roof(evidence, tmp_path)
    best = evidence.get(Roof)
    assert best is not None and best.in_force is not None
    assert (best.flops_per_s["float32"], best.in_force.flops_per_s["float32"]) == (4e9, 2e9)
    assert best.bytes_per_s == ((100, 8e9), (9000, 1e9))
    assert (best.op_ns, best.certainty) == (1000, 0.75)
    small = OpWork(name="", dims=(), dtype="float32", count=2, flops=8e3, moved=80, host_ns=0,
                   device_ns=None)  # fmt: skip
    assert (best.compute_ns(small), best.memory_ns(small)) == (2000, 20)
    assert best.best_ns(small) == 2000
