"""One run directory for a job on several machines: who may join it, and what comes of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tdiag.cli.tried import options
from tdiag.errors import OccupiedError, UsageError
from tdiag.launch import rundir
from tdiag.launch.joining import (
    SILENT_S,
    awaited,
    has_parts,
    open_run,
    reporting_elsewhere,
    shared,
)
from tdiag.launch.target import Target

from .harness import NO_ROOF

JOB = Target("launcher", "torchrun", ("--nnodes=2", "--node-rank=0", "train.py"))
OTHER_NODE = ["torchrun", "--nnodes=2", "--node-rank=1", "train.py"]
HERE = platform.node()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(run: Path, command: list[str], **more: object) -> None:
    record = {"command": command, "hostname": "a", "end_unix_ns": None, **more}
    rundir.write_json(run / "run.json", record)


def first() -> Path:
    run = open_run(JOB, JOB.command(""), Path("run"))
    begun(run, JOB.command(""))
    return run


def test_the_same_job_on_another_machine_gets_a_run_directory_of_its_own_below() -> None:
    run = first()
    parts = [open_run(JOB, OTHER_NODE, Path("run")) for _ in range(2)]
    assert parts == [run / "nodes" / HERE, run / "nodes" / f"{HERE}-2"]
    assert all({"events", "control", "config.json"} <= {p.name for p in part.iterdir()}
               for part in parts)  # fmt: skip
    assert [shared(part) for part in (run, *parts)] == [run] * 3


def test_the_last_to_end_waits_for_nobody() -> None:
    run = first()
    part = open_run(JOB, OTHER_NODE, Path("run"))
    begun(part, OTHER_NODE, hostname="b")
    assert awaited(run) == ("b",) and awaited(part) == ("a",)
    begun(run, JOB.command(""), end_unix_ns=7)
    assert awaited(part) == ()


def test_of_two_that_end_at_once_one_reports() -> None:
    run = first()
    part = open_run(JOB, OTHER_NODE, Path("run"))
    for ended, name in ((run, "a"), (part, "b")):
        begun(ended, JOB.command(""), hostname=name, end_unix_ns=7)
    assert awaited(run) == awaited(part) == ()
    assert reporting_elsewhere(part) == ()
    assert reporting_elsewhere(run) == ("b",)
    # A minute later: the other reported without this one, which was silent then.
    late = time.time() + 2 * SILENT_S
    os.utime(run / "run.json", (late, late))
    assert reporting_elsewhere(run) == ()


def test_one_that_was_killed_is_not_awaited() -> None:
    run = first()
    part = open_run(JOB, OTHER_NODE, Path("run"))
    begun(part, OTHER_NODE, hostname="b")
    silent = time.time() - 2 * SILENT_S
    os.utime(run / "run.json", (silent, silent))
    assert awaited(part) == ()


@pytest.mark.parametrize("command", [
    ["torchrun", "--nnodes=2", "--node_rank=1", "other.py"],
    ["torchrun", "--nnodes=2", "--node-rank", "1", "train.py", "--lr=0.1"],
])  # fmt: skip
def test_another_job_is_refused(command: list[str]) -> None:
    run = first()
    with pytest.raises(OccupiedError, match=r"another job is in it: torchrun --nnodes=2"):
        open_run(JOB, command, Path("run"))
    assert not (run / "nodes").exists()


def test_the_number_of_the_machine_may_be_a_word_of_its_own() -> None:
    first()
    words = ["torchrun", "--nnodes=2", "--node_rank", "1", "train.py"]
    assert open_run(JOB, words, Path("run")).name == HERE


@pytest.mark.parametrize(("ended", "old"), [(7, False), (None, True)])
def test_a_run_that_is_over_is_never_joined(ended: int | None, old: bool) -> None:
    run = first()
    begun(run, JOB.command(""), end_unix_ns=ended)
    if old:
        silent = time.time() - 2 * SILENT_S
        os.utime(run / "run.json", (silent, silent))
    with pytest.raises(OccupiedError):
        open_run(JOB, OTHER_NODE, Path("run"))
    assert not (run / "nodes").exists()


def test_a_folder_with_something_else_is_refused_at_once() -> None:
    Path("run").mkdir()
    Path("run/notes.txt").touch()
    with pytest.raises(OccupiedError, match="not empty"):
        open_run(JOB, OTHER_NODE, Path("run"))


def test_of_two_at_the_same_moment_one_joins_the_other() -> None:
    """The slower one waits for the record of the faster one."""
    found: list[Path] = []

    def begin() -> None:
        run = open_run(JOB, JOB.command(""), Path("run"))
        found.append(run)
        time.sleep(0.2)
        begun(run, JOB.command(""))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = Path("run").absolute()
    names = {HERE, f"{HERE}-2", f"{HERE}-3"}
    assert set(found) == {whole, *(whole / "nodes" / name for name in names)}


def test_a_program_that_is_no_part_of_a_job_joins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Target("script", "train.py")
    assert not has_parts(alone, {}) and not has_parts(alone, {"WORLD_SIZE": "1"})
    assert has_parts(alone, {"SLURM_NTASKS": "16"}) and has_parts(JOB, {})
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    run = open_run(alone, ["python", "train.py"], Path("run"))
    begun(run, ["python", "train.py"])
    with pytest.raises(OccupiedError, match="not empty"):
        open_run(alone, ["python", "train.py"], Path("run"))


def test_a_job_on_several_machines_is_not_started_again_from_one() -> None:
    """`tdiag try` and `--try` would wait for the other machines."""
    run = first()
    begun(open_run(JOB, OTHER_NODE, Path("run")), OTHER_NODE)
    with pytest.raises(UsageError, match="ran on several machines"):
        options(run, 10.0, print)


CODE = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(150):
    time.sleep(0.02 if dist.get_rank() else 0.005)
    model(torch.randn(8, 64)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
"""


def hostname(name: str) -> list[str]:
    """What gives a command another hostname, where that may be done."""
    tool = shutil.which("unshare")
    allowed = tool and not subprocess.run([tool, "--uts", "true"], check=False).returncode
    set_it = 'hostname "$0"; exec "$@"'
    return [str(tool), "--uts", "sh", "-c", set_it, name] if allowed else []


def entry_point(tdiag: str, torchrun: str, port: str) -> str:
    """The script of docs/clusters.md for a container that SageMaker starts, for this machine."""
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    script = next(x for x in page.split("```") if "position=" in x).removeprefix("sh\n")
    for theirs, here in (
        ("$(python ", f"$({sys.executable} "),
        ("tdiag run --run-dir s3://bucket/runs/$TRAINING_JOB_NAME", f"{tdiag} --run-dir run"),
        ("torchrun ", f"{torchrun} "),
        ("algo-1", "127.0.0.1"),
        ("29500", port),
    ):
        assert theirs in script, theirs
        script = script.replace(theirs, here)
    return script


@pytest.mark.training
@pytest.mark.parametrize(
    "way",
    [
        "torchrun",
        pytest.param("kubernetes", marks=pytest.mark.slow),
        pytest.param("sagemaker", marks=pytest.mark.slow),
    ],
)
def test_two_machines_make_one_report_with_the_ranks_of_both(way: str, folder: Path) -> None:
    """Each machine is a hostname of its own, with one rank, under a torchrun of its own: told by
    options, by the variables of Kubernetes' training operator, or by those of SageMaker."""
    (folder / "train.py").write_text(CODE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    tdiag = [sys.executable, "-m", "tdiag", "run"]
    options = ["--run-dir", "run", "--sampler", "off", "--", torchrun]
    (folder / "run.sh").write_text(entry_point(" ".join(tdiag), torchrun, port))

    def command(rank: int) -> list[str]:
        if way == "sagemaker":
            return ["sh", "run.sh", "--epochs", "3"]
        if way == "kubernetes":
            return [*tdiag, *options, "train.py"]
        return [*tdiag, *options, "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1",
                f"--master-port={port}", f"--node-rank={rank}", "train.py"]  # fmt: skip

    def variables(rank: int) -> dict[str, str]:
        hosts = json.dumps(["node-b", "node-a"])
        return {
            "kubernetes": {
                "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank),
                "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port,
            },
            "sagemaker": {
                "SM_HOSTS": hosts, "SM_CURRENT_HOST": f"node-{'ab'[rank]}", "SM_NUM_GPUS": "1",
            },
        }.get(way, {})  # fmt: skip

    plain = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF)}
    processes = [
        subprocess.Popen(
            [*hostname(f"node-{'ab'[n]}"), *command(n)],
            cwd=folder, text=True, env=plain | variables(n),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) for n in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=290)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    records = [json.loads(file.read_text()) for file in
               (folder / "run" / "run.json", *folder.glob("run/nodes/*/run.json"))]  # fmt: skip
    if hostname(""):
        assert {record["hostname"] for record in records} == {"node-a", "node-b"}
    assert len(records) == 2 and all(record["end_unix_ns"] for record in records)
    found = json.loads((folder / "run" / "diagnosis.json").read_text())
    ranks = {row["rank"]: row for row in found["ranks"]}
    assert set(ranks) == {0, 1}
    # Of two that end at the same moment both make it.
    assert sum("the last machine to end makes the report" in text for text in said) <= 1, said
    assert any(
        "1 of them on node" in note["text"] or "this report is about rank 1" in note["text"]
        for note in found["notes"]
    )
