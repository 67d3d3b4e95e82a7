"""The functions that `tdiag try --ceilings` freezes by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.cli.tried import proposals
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.diagnosis import Verdict
from tdiag.model.place import Place
from tdiag.trial.large_functions import large_functions
from tests.report.building import diagnosis, finding

TRAIN = """\
import torch
class Data:
    def __getitem__(self, index):
        return load(index)
def load(index):
    return decode(index) + decode(index)
def decode(index):
    return index
def metrics(y):
    return y
class Net(torch.nn.Module):
    def forward(self, x):
        return x * mask(x)
def mask(x):
    return x > 0
def main():
    for x in Data():
        loss = Net()(x).sum()
        loss.backward()
        metrics(loss)
main()
"""
MAIN, GET, LOAD, DECODE, METRICS, FORWARD, MASK = (
    ("main", 18), ("__getitem__", 4), ("load", 6), ("decode", 8), ("metrics", 10),
    ("forward", 13), ("mask", 15),
)  # fmt: skip


def tree(script: Path, *stacks: tuple[float, list[tuple[str, int]]]) -> tuple[CallFrame, ...]:
    """Of stacks with their shares; a frame on line 0 is torch's, its name the file."""
    numbers: dict[tuple[int, tuple[str, int]], int] = {}
    shares: list[float] = []
    for share, stack in stacks:
        parent = -1
        for frame in stack:
            parent = numbers.setdefault((parent, frame), len(numbers))
            shares += [0.0] * (parent == len(shares))
            shares[parent] += share
    return tuple(
        CallFrame(name=name.split("/")[-1], line=line, parent=parent, frac=shares[number],
                  file=str(script) if line else f"/x/site-packages/torch/{name.rpartition('/')[0]}",
                  user=bool(line))
        for (parent, (name, line)), number in numbers.items()
    )  # fmt: skip


BACKWARD, CALL = ("_tensor.py/backward", 0), ("nn/modules/module.py/_call_impl", 0)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def chosen(script: Path, *stacks: tuple[float, list[tuple[str, int]]]) -> list[str]:
    trees = CallTrees(training=tree(script, *stacks), workers=())
    return [one.label for one in large_functions(trees, script.parent)]


def test_the_largest_come_first_without_what_trains_or_is_the_model(script: Path) -> None:
    found = chosen(
        script,
        (0.3, [MAIN, METRICS]),
        (0.4, [MAIN, CALL, FORWARD, MASK]),
        (0.26, [MAIN, BACKWARD]),
        (0.04, [MAIN, GET]),
    )
    assert found == ["freeze=train.py:mask", "freeze=train.py:metrics"]


def test_a_function_with_nearly_all_of_its_callers_samples_is_not_measured_twice(
    script: Path,
) -> None:
    found = chosen(
        script, (0.5, [MAIN, GET, LOAD, DECODE]), (0.02, [MAIN, GET]), (0.48, [MAIN, BACKWARD])
    )
    assert found == ["freeze=train.py:Data.__getitem__"]


def test_it_is_if_the_caller_calls_a_model(script: Path) -> None:
    """Its result may carry gradients: then it cannot be frozen."""
    found = chosen(script, (0.55, [GET, METRICS]), (0.01, [GET, CALL]), (0.44, [MAIN, BACKWARD]))
    assert found == ["freeze=train.py:Data.__getitem__", "freeze=train.py:metrics"]


def test_recursive_calls_count_once(script: Path) -> None:
    assert chosen(script, (0.6, [MAIN, LOAD, LOAD]), (0.4, [MAIN, BACKWARD])) == [
        "freeze=train.py:load"
    ]


def test_functions_of_workers_count_too(script: Path) -> None:
    trees = CallTrees(training=(), workers=tree(script, (0.9, [GET]), (0.1, [LOAD])))
    assert [one.label for one in large_functions(trees, script.parent)] == [
        "freeze=train.py:Data.__getitem__",
        "freeze=train.py:load",
    ]


def test_a_file_that_is_gone_has_no_functions(tmp_path: Path) -> None:
    assert chosen(tmp_path / "gone.py", (1.0, [LOAD])) == []


@pytest.mark.parametrize(("line", "ceiling"), [(6, "=train.py:load"), (1, "")])
def test_the_loss_that_is_left_out_is_the_one_that_the_finding_names(
    line: int, ceiling: str, script: Path
) -> None:
    verdict = Verdict(cls="python_loss", share=0.8, confidence=0.9, runner_up=None, summary="")
    loop = finding("TD501", "a-loop", "python_loss", "", Place(str(script), line), (), "Rewrite it",
                   win_ms=10, speedup=(2.0, 4.0))  # fmt: skip
    (script.parent / "run.json").write_text(json.dumps({"cwd": str(script.parent)}))
    known = diagnosis(verdict, {"loss": 80.0, "forward": 20.0}, findings=(loop,))
    found, notes = proposals(script.parent, known)
    assert ([one.label for one in found], notes) == ([f"ceiling.loss{ceiling}"], ())
