"""`tdiag run --scaling`: what is started, what is kept and shown, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tdiag import report
from tests.launch.harness import NO_ROOF, script, tdiag

SCHEMA = json.loads(Path(report.__file__).with_name("scaling.schema.json").read_text())

# A torchrun that starts one process, whatever it is told, or fails.
TORCHRUN = """
import sys
assert sys.argv[1] == "--nproc-per-node"
if sys.argv[2] == sys.argv[-1]:
    sys.exit(7)
print("ranks", sys.argv[2])
events.file.write("no record\\n")
for _ in range(30):
    events.step()
"""


def launcher(folder: Path, source: str = TORCHRUN) -> str:
    """As a program of its own."""
    file = folder / "torchrun"
    name = script(folder, source, "starter.py", training=source is TORCHRUN)
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {folder / name} "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_each_count_is_run_and_the_report_is_kept(tmp_path: Path) -> None:
    words = ("run", "--scaling", "1,2", "--json", "-o", "out.json", "--sampler", "off")
    done = tdiag(*words, "--out", "runs", "--", launcher(tmp_path), "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert "tdiag: 1 of 2: 1 rank\n" in done.stderr and "ranks 2\n" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text()) == found
    assert "ranks-1: 1 line of the event file could not be read" in found["notes"]
    one, two = found["runs"]
    assert one["step_ns"] == pytest.approx(5_310_000)
    assert two["why"].startswith("the job had 1 rank: its script")
    assert (tmp_path / "runs" / "ranks-2" / "diagnosis.json").is_file()
    again = tdiag("report", "runs", "--format", "markdown", cwd=tmp_path).stdout
    assert "tdiag run --scaling: Scaling unknown" in again
    page = tdiag("report", "runs", "--html", cwd=tmp_path).stdout.strip()
    assert (tmp_path / page).read_text().rstrip().endswith("</html>")


def test_the_first_count_that_fails_is_the_last_and_gives_the_exit_code(tmp_path: Path) -> None:
    words = ("run", "--scaling", "1,2,4", "--sampler", "off", "--", launcher(tmp_path))
    done = tdiag(*words, "train.py", "2", cwd=tmp_path)
    assert done.returncode == 7
    assert "ranks-2" in done.stderr and "ranks-4" not in done.stderr
    said = " ".join(done.stderr.replace("▌", "").split())
    assert "with 2 ranks: the program ended with exit code 7" in said
    assert "a run failed, so these were not started: 4 ranks" in said


def test_more_ranks_than_cores_are_allowed_and_warned_of(tmp_path: Path) -> None:
    words = ("run", "--scaling", "1,4096", "--sampler", "off", "--", launcher(tmp_path))
    assert "tdiag: 4096 ranks share " in tdiag(*words, "train.py", "1", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scaling", "1,2", "train.py"), "--scaling needs a launcher whose number of ranks"),
        (("--scaling", "1,x", "--", "torchrun", "train.py"), "'x' is not a number of ranks"),
        (("--scaling", "2,2", "--", "torchrun", "train.py"), "2 is given twice"),
        (("--scaling", "1,2", "--try", "--", "torchrun", "t.py"), "cannot be used with --try"),
        (
            ("--scaling", "1,2", "--run-dir", "s3://b/7", "--", "torchrun", "t.py"),
            "needs a folder on this machine",
        ),
        (("--scaling", "1,2", "--", "torchrun", "--nnodes", "2", "t.py"), "--nnodes is 2"),
    ],
)
def test_what_cannot_be_is_one_message(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = tdiag("run", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / ".tdiag").exists()


# As the real one, without importing torch for itself.
STARTER = """
import os, socket, subprocess, sys
count = int(sys.argv[2])
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[3:]], env={**os.environ, **job, "RANK": str(n)})
    for n in range(count)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
REAL = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Clips(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return torch.full((64,), index / 1e7)

dist.init_process_group("gloo")
clips, batch = Clips(), 32 // dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for x in DataLoader(clips, batch_size=batch, sampler=DistributedSampler(clips)):
    model(x).mean().backward()
    with torch.no_grad():  # an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
"""


@pytest.mark.slow
def test_a_real_job_whose_batch_is_divided_among_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REAL)
    torchrun = str(launcher(tmp_path, STARTER))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tdiag", "run", "--scaling", "1,2", "--steps", "150"),
            *("--sampler", "off", "--json", "--", torchrun, "train.py"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    one, two = found["runs"]
    assert (one["samples"], one["load"], one["efficiency"]) == (32, "same", 1)
    assert (two["samples"], two["load"]) == (16, "divided"), two["why"]
    assert sum(x["ns"] for x in two["loss"]) == two["step_ns"] - two["ideal_ns"]
    assert {"communication", "waiting"} <= {x["row"] for x in two["loss"]}
    assert (one["threads"], two["threads"]) == (1, 1)
