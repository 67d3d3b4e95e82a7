"""Jobs as launchers start them: every rank is watched, all stop together, no exit code changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .harness import NO_ROOF

pytestmark = pytest.mark.training

CODE = """
import os
import sys
import tempfile
import time

RANK, WORLD_SIZE, TRY = (
    int(next((os.environ[name] for name in names if name in os.environ), 0)) for names in (
        ("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
        ("TORCHELASTIC_RESTART_COUNT",),
    )
)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist

torch.set_num_threads(1)
# Its own store: torchrun's keeps the addresses of ranks that are gone.
store = os.path.join(os.getcwd(), f"store-{os.getppid()}-{TRY}")
dist.init_process_group("gloo", f"file://{store}", rank=RANK, world_size=WORLD_SIZE)
weight = torch.randn(64, 10, requires_grad=True)
for step in range(int(os.environ.get("STEPS", "1000000"))):
    if step == 40 and RANK == 1 and not TRY and "fails-once" in sys.argv:
        raise ValueError("once")
    time.sleep(0.012 if RANK else 0.004)
    (torch.randn(8, 64) @ weight).mean().backward()
    dist.all_reduce(weight.grad)
    with torch.no_grad():
        weight -= 0.01 * weight.grad
        weight.grad = None
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
sys.exit(int(os.environ.get("EXIT", "0")))
"""

# As that of deepspeed: a process a rank, its number on the command line and in the environment.
EACH_RANK = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-u", sys.argv[1], f"--local_rank={rank}"],
                          env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"})
         for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


def run(folder: Path, *command: str, options: tuple[str, ...] = ("--profiling",), **more: str
        ) -> tuple[int, dict[str, Any], list[str]]:  # fmt: skip
    """Exit code, diagnosis and what was said."""
    (folder / "train.py").write_text(CODE)
    (folder / "each_rank.py").write_text(EACH_RANK)
    bin = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "tdiag", "run", "--time-budget", "4", "--sampler", "off",
         "--out", "run", *options, "--", *command],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF),
             "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", **more},
    )  # fmt: skip
    found = json.loads((folder / "run" / "diagnosis.json").read_text())
    return done.returncode, found, done.stderr.splitlines()


def both_ranks(found: dict[str, Any], slowest: int = 1) -> bool:
    return {row["rank"] for row in found["ranks"]} == {0, 1} and any(
        f"this report is about rank {slowest}" in note["text"] for note in found["notes"]
    )


def mpirun(*words: str) -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-n", "2", *words]


def test_mpirun(tmp_path: Path) -> None:
    code, found, _ = run(tmp_path, *mpirun("python", "train.py"))
    assert code == 0 and both_ranks(found)


def test_mpiruns_exit_code_is_kept(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, *mpirun("python", "train.py"), options=(), EXIT="7", STEPS="5")
    assert code == 7 and "Exit code:    7" in "\n".join(said)


def test_a_launcher_that_numbers_its_processes(tmp_path: Path) -> None:
    code, found, _ = run(tmp_path, sys.executable, "each_rank.py", "train.py")
    assert code == 0 and both_ranks(found)


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    command = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "train.py")
    code, found, _ = run(tmp_path, *command, ACCELERATE_USE_CPU="true")
    assert code == 0 and both_ranks(found)


def test_ranks_that_torchrun_starts_again_are_a_try_of_their_own(tmp_path: Path) -> None:
    job = ("torchrun", "--standalone", "--max-restarts=1", "--nproc-per-node=2", "train.py")
    code, found, _ = run(tmp_path, *job, "fails-once", options=(), STEPS="120")
    texts = [note["text"] for note in found["notes"]]
    assert code == 0 and both_ranks(found)
    line = next(n for n, text in enumerate(CODE.splitlines(), 1) if "raise ValueError" in text)
    assert any(
        text.startswith("the ranks failed and were restarted: rank 1 failed first,")
        and text.endswith(f"ValueError at train.py:{line}")
        for text in texts
    )
    assert "left out: 2 processes that trained before or after the judged ones" in texts


@pytest.mark.slow  # three trainings one after the other
def test_one_job_after_the_other_in_a_shell_script_each_stop_together(tmp_path: Path) -> None:
    """Ranks of the second find what those of the first agreed on: to stop, at a step of theirs."""
    (tmp_path / "preprocess.py").write_text("import torch")
    (tmp_path / "jobs.sh").write_text(
        "python preprocess.py\n"
        "python each_rank.py train.py || exit 3\n"
        "python - <<END\nprint('between')\nEND\n"
        "python each_rank.py train.py || exit 4\n"
        "exit 5\n"
    )
    code, found, said = run(tmp_path, "bash", "jobs.sh")
    assert code == 5, said
    assert both_ranks(found)
    texts = [note["text"] for note in found["notes"]]
    assert "left out: 2 processes that trained before or after the judged ones" in texts
    assert not any("restarted" in text for text in texts)
