"""The sample of host-to-device copies cannot show its fault here, and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import warm

SAMPLES = Path(__file__).parents[2] / "sample_scripts"


@pytest.mark.parametrize("name", ["h2d", "h2d_fixed"])
def test_it_says_that_it_needs_a_device(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words = [str(SAMPLES / f"{name}.py"), "--steps", "4", "--side", "64"]
    done = warm.run(words, tmp_path, environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("This sample needs a CUDA device, and there is none")
