"""Real frameworks and launchers, unmodified: seen, judged, ended, and never pointed into.

`pytest -m training tests/frameworks` runs them (CI does); the extra `frameworks` installs what
they need.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.steps import Phases, Steps
from tests.launch.harness import NO_ROOF
from tests.probe.harness import SHORT

SCRIPTS = Path(__file__).parent / "scripts"
# None of them ends by itself; what bounds the test is tdiag's ending them. In half of 20 s each
# window has its first turn.
BUDGET_S, PATIENCE_S = 10, 240

pytestmark = [pytest.mark.training, pytest.mark.timeout(PATIENCE_S + 30)]


@dataclass
class Run:
    """``record``: run.json."""

    code: int
    out: str
    err: str
    diagnosis: dict[str, Any]
    record: dict[str, Any]


def run(
    folder: Path, script: str, *words: str, launcher: tuple[str, ...] = (),
    budget_s: float = BUDGET_S, short: bool = True, still_s: float | None = None,
) -> Run:  # fmt: skip
    """`tdiag run` on a script, as a user does it, in a folder of its own. ``short``: see
    ``tests/probe/short/sitecustomize.py``. ``still_s``: after which a program that only waits is
    ended, if not after the usual time."""
    target = [*(("--", *launcher) if launcher else ()), str(SCRIPTS / script), *words]
    options = ["--profiling", "--time-budget", str(budget_s), "--output", "diagnosis.json"]
    start = "from tdiag.cli import main; main()"
    if still_s is not None:
        start = f"from tdiag.launch import watchdog; watchdog.STILL_S = {still_s}; {start}"
    command = [sys.executable, "-c", start, "run", *options, *target]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SHORT if short else NO_ROOF)},
    )  # fmt: skip
    run_dir = (folder / ".tdiag" / "runs" / "latest").resolve()
    return Run(
        done.returncode,
        done.stdout,
        done.stderr,
        json.loads((folder / "diagnosis.json").read_text()),
        json.loads((run_dir / "run.json").read_text()),
    )


def judged(found: Run) -> dict[str, Any]:
    """The diagnosis of a run that ended as it should, and names nothing but the user's code."""
    assert found.code == 0, found.err
    assert "Traceback" not in found.err
    assert found.diagnosis["step"], found.err
    files = [place["file"] for place in places(found.diagnosis["findings"])]
    assert not [file for file in files if "site-packages" in file], files
    return found.diagnosis


def places(value: Any) -> list[dict[str, Any]]:
    """Every location in a JSON document."""
    if isinstance(value, list):
        return [place for item in value for place in places(item)]
    if not isinstance(value, dict):
        return []
    here = [value] if {"file", "line"} <= value.keys() else []
    return here + [place for item in value.values() for place in places(item)]


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_hugging_face_trainer(tmp_path: Path) -> None:
    needs("transformers")
    found = judged(run(tmp_path, "hf_trainer.py"))
    assert found["environment"]["framework"][0] == "transformers"


@pytest.mark.parametrize("script", ["torchdata_stateful.py", "torchdata_nodes.py"])
def test_torchdata(script: str, tmp_path: Path) -> None:
    """A class with an iterator of its own; and threads that end with each epoch."""
    needs("torchdata")
    found = judged(run(tmp_path, script))
    assert found["verdict"]["class"] == "cpu", found["verdict"]
    text = (SCRIPTS / script).read_text().splitlines()
    lines = [number for number, line in enumerate(text, start=1) if line.endswith("# HERE")]
    assert found["findings"][0]["location"]["line"] in lines


@pytest.mark.parametrize(
    ("script", "what", "code", "line", "setting"),
    [
        ("lightning_costs.py", "self.log", "TD804", "self.log(", "self.log_dict"),
        pytest.param(
            "lightning_costs.py", "checkpoint", "TD803", "every_n_train_steps=2",
            "every_n_train_steps=", marks=pytest.mark.slow,
        ),
        pytest.param(
            "hf_trainer.py", "logger", "TD804", "logging_steps=1",
            "TrainingArguments(logging_steps=50)", marks=pytest.mark.slow,
        ),
        ("hf_trainer.py", "checkpoint", "TD803", "save_steps=2", "save_steps="),
    ],
)  # fmt: skip
def test_what_a_framework_does_beside_the_step_is_found_at_the_users_line(
    script: str, what: str, code: str, line: str, setting: str, tmp_path: Path
) -> None:
    needs("transformers" if script.startswith("hf") else "lightning")
    sampled = what != "checkpoint"  # a short plan has too few samples
    found = judged(run(tmp_path, script, what, short=not sampled))
    (finding,) = [x for x in found["findings"] if x["code"] == code]
    place = finding["location"]
    assert place["file"].endswith(script)
    assert line in (SCRIPTS / script).read_text().splitlines()[place["line"] - 1]
    assert setting in finding["fix"]["text"].partition("In plain torch")[0]
    assert found["verdict"]["class"] not in ("python_loss", "eval"), found["verdict"]


@pytest.mark.parametrize(
    ("how", "backwards"),
    [
        pytest.param("gan", 2.0, marks=pytest.mark.slow),
        ("accumulate", 4.0),
        ("sanity", 1.0),
        pytest.param("twice", 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_step_of_lightning_is_one_update(how: str, backwards: float, tmp_path: Path) -> None:
    """Of all optimizers, after all micro-batches; the check before training is none."""
    needs("lightning")
    judged(run(tmp_path, "lightning_steps.py", how, budget_s=5))
    evidence = load_run((tmp_path / ".tdiag" / "runs" / "latest").resolve())
    steps, phases = evidence.get(Steps), evidence.get(Phases)
    assert steps is not None and phases is not None
    assert steps.boundary == "optimizer"
    assert phases.counts["backward"] == pytest.approx(backwards, rel=0.05)
    assert phases.counts["optimizer"] == pytest.approx(2.0 if how == "gan" else 1.0, rel=0.05)
    assert "evaluation" not in phases.wall_ns


@pytest.mark.slow  # the same script and Trainer as with two ranks, below
def test_lightning(tmp_path: Path) -> None:
    needs("lightning")
    found = judged(run(tmp_path, "lightning_fit.py"))
    assert found["environment"]["framework"][0] == "lightning"


def test_lightning_ddp_spawn(tmp_path: Path) -> None:
    """Its parent waits for a result on a queue, which ranks that tdiag ended never send."""
    needs("lightning")
    found = run(tmp_path, "lightning_fit.py", "ddp_spawn", still_s=5.0)
    environment = judged(found)["environment"]
    assert (environment["framework"][0], environment["world_size"]) == ("lightning", 2)
    (note,) = [note for note in found.record["notes"] if "tdiag ended it" in note]
    assert "waited in" in note


@pytest.mark.parametrize(
    "launcher",
    [pytest.param((), marks=pytest.mark.slow), ("-m", "accelerate.commands.launch", "--cpu")],
)
def test_accelerate(launcher: tuple[str, ...], tmp_path: Path) -> None:
    needs("accelerate")
    words = (sys.executable, *launcher) if launcher else ()
    found = judged(run(tmp_path, "with_accelerate.py", launcher=words))
    assert found["environment"]["framework"][0] == "accelerate"


@pytest.mark.slow  # the same script as below; tests/probe/test_spawned_ranks.py has its ending
def test_spawned_ranks(tmp_path: Path) -> None:
    found = run(tmp_path, "spawned.py")
    assert judged(found)["environment"]["world_size"] == 2
    assert found.out == "after the ranks\n" and not found.record["notes"]


def test_spawned_ranks_whose_parent_waits_for_a_result(tmp_path: Path) -> None:
    found = run(tmp_path, "spawned.py", "queue", still_s=5.0)
    assert judged(found)["environment"]["world_size"] == 2
    (note,) = found.record["notes"]
    line = 1 + (SCRIPTS / "spawned.py").read_text().splitlines().index("        queue.get()")
    assert "tdiag ended it" in note and f"spawned.py:{line}" in note


@pytest.mark.slow  # its steps take half a second
def test_lbfgs_names_the_loop_over_cells(tmp_path: Path) -> None:
    found = judged(run(tmp_path, "lbfgs_cells.py", budget_s=20, short=False))
    assert found["verdict"]["class"] == "overhead"
    line = 1 + (SCRIPTS / "lbfgs_cells.py").read_text().splitlines().index(
        "            h1, c1 = self.first(value, (h1, c1))"
    )
    cells = [f for f in found["findings"] if f["code"] == "TD712"]
    assert cells and abs(cells[0]["location"]["line"] - line) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_hogwild(threads: str, tmp_path: Path) -> None:
    found = run(tmp_path, "hogwild.py", threads)
    judged(found)
    assert found.out == "exit codes [0, 0]\n"
