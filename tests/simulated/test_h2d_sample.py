"""The sample of host-to-device copies cannot show its fault here, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "sample_scripts"


@pytest.mark.parametrize("name", ["h2d", "h2d_fixed"])
def test_it_says_that_it_needs_a_device(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tdiag", "run", str(SAMPLES / f"{name}.py"), "--quiet", "--",
         "--steps", "4", "--side", "64"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
             "PYTHONPATH": str(SAMPLES.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("This sample needs a CUDA device, and there is none")
