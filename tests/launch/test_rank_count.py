"""`--scaling`: the counts, and the launcher's option for them."""

from __future__ import annotations

import shlex

import pytest

from tdiag.errors import UsageError
from tdiag.launch.rank_count import parse_counts, with_ranks
from tdiag.launch.target import Target


def target(command: str) -> Target:
    first, *rest = shlex.split(command)
    return Target("launcher", first, tuple(rest))


def replaced(command: str, environment: dict[str, str] | None = None) -> str:
    return shlex.join(with_ranks(target(command), 4, environment or {}).command("python"))


@pytest.mark.parametrize(
    ("given", "started"),
    [
        ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 4 train.py"),
        ("torchrun --nproc_per_node=2 train.py", "torchrun --nproc_per_node=4 train.py"),
        ("torchrun --nproc=gpu train.py", "torchrun --nproc=4 train.py"),
        ("torchrun --standalone train.py", "torchrun --nproc-per-node 4 --standalone train.py"),
        # The script's own option of that name stays.
        (
            "torchrun train.py --nproc-per-node 9",
            "torchrun --nproc-per-node 4 train.py --nproc-per-node 9",
        ),
        ("torchrun -m pkg.train", "torchrun --nproc-per-node 4 -m pkg.train"),
        (
            "python -m torch.distributed.run --nnodes=1 --nproc_per_node 2 train.py",
            "python -m torch.distributed.run --nnodes=1 --nproc_per_node 4 train.py",
        ),
        (
            "env A=1 /venv/bin/torchrun --nnodes 1:1 train.py",
            "env A=1 /venv/bin/torchrun --nproc-per-node 4 --nnodes 1:1 train.py",
        ),
        (
            "accelerate launch --cpu --num_processes 2 train.py",
            "accelerate launch --cpu --num_processes 4 train.py",
        ),
        ("accelerate launch train.py", "accelerate launch --num-processes 4 train.py"),
    ],
)
def test_the_number_of_ranks_is_replaced_or_added(given: str, started: str) -> None:
    assert replaced(given) == started


def test_a_launcher_that_is_started_as_a_module() -> None:
    module = Target("module", "torch.distributed.run", ("--nproc-per-node", "2", "train.py"))
    found = with_ranks(module, 4, {})
    assert (found.kind, found.name) == ("module", "torch.distributed.run")
    assert found.args == ("--nproc-per-node", "4", "train.py")


@pytest.mark.parametrize(
    "target",
    [
        Target("script", "train.py"),
        Target("module", "pkg.train"),
        Target("launcher", "mpirun", ("-n", "2", "python", "train.py")),
        Target("launcher", "accelerate", ("config",)),
    ],
)
def test_a_launcher_whose_count_cannot_be_set_is_refused(target: Target) -> None:
    with pytest.raises(UsageError, match="needs a launcher whose number of ranks"):
        with_ranks(target, 2, {})


@pytest.mark.parametrize(
    ("command", "environment", "said"),
    [
        ("torchrun --nnodes 2 train.py", {}, "--nnodes is 2"),
        ("torchrun --nnodes=1:3 train.py", {}, "--nnodes is 1:3"),
        ("accelerate launch --num_machines 2 train.py", {}, "--num_machines is 2"),
        ("torchrun train.py", {"PET_NNODES": "2"}, "PET_NNODES is 2"),
    ],
)
def test_several_machines_are_refused(command: str, environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replaced(command, environment)


def test_counts_are_sorted() -> None:
    assert parse_counts("4, 1,2") == (1, 2, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,two", "'two' is not a number of ranks"),
        ("0,1", "'0' is not a number"),
        ("1,-2", "'-2' is not a number"),
        ("1,2,", "'' is not a number"),
        ("1.5,2", "'1.5' is not a number"),
        ("2,1,2", "2 is given twice"),
        ("2", "give at least two numbers of ranks to compare"),
    ],
)
def test_counts_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_counts(text)
