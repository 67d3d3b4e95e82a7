"""`tdiag run`, py-spy and all, against plain Python: bit for bit, on differently built scripts.

The probe alone is held against the whole zoo in tests/probe; here the launcher is in between.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.harness import NO_ROOF
from tests.zoo.running import run_plainly
from tests.zoo.table import BY_NAME, SCRIPTS

STEPS = 60
SCRIPTS_BUILT_DIFFERENTLY = (
    "trainer_class", "package", "gan", "hand_sgd", "workers_fork", "checkpoints", "dies_crash",
    "exit_message", "loss_in_model",
)  # fmt: skip
ALWAYS = {"workers_fork"}
# The zoo runs all of them under the probe (tests/probe/test_zoo_unchanged.py); here most of them
# before a release, the others with ``-m training``. How a run ends that fails is asked by default
# of small programs (test_run_signals.py).
BEFORE_A_RELEASE = {"trainer_class", "hand_sgd", "exit_message", "loss_in_model"}


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in ALWAYS:
        return []
    return [pytest.mark.slow if name in BEFORE_A_RELEASE else pytest.mark.training]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks(name)) for name in SCRIPTS_BUILT_DIFFERENTLY]
)
def test_streams_exit_code_weights_and_losses_are_those_of_plain_python(
    name: str, tmp_path: Path
) -> None:
    entry = BY_NAME.get(name) or BY_NAME[f"dies_{name}"]
    run_dir = tmp_path / "run"
    # `--` keeps the script's own --steps from being taken for tdiag's.
    words = [*entry.target(STEPS)]
    command = [sys.executable, "-m", "tdiag", "run", "-q", "--out", str(run_dir)]
    launched = [*command, *words] if words[0] == "-m" else [*command, words[0], "--", *words[1:]]
    environ = {**entry.environment(), "PYTHONPATH": str(NO_ROOF)}
    with subprocess.Popen(
        launched, cwd=SCRIPTS, env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as watched:  # fmt: skip
        plain = run_plainly(entry, STEPS)
        out, err = watched.communicate(timeout=200)
    assert (watched.returncode, out) == (plain.returncode, plain.stdout)
    assert err.startswith(plain.stderr)  # then comes tdiag's own report
    diagnosis = json.loads((run_dir / "diagnosis.json").read_text())
    assert sum(part["ns"] for part in diagnosis["budget"]) == (
        diagnosis["step"]["mean_ns"] if diagnosis["step"] else 0
    )
