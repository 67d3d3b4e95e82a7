"""Sampled stacks count by phase as the clean steps do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.balanced import balanced
from tdiag.evidence.from_run.sampled_frames import SampledFrame
from tdiag.evidence.from_run.stack_samples import Samples, make_stacks
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases
from tdiag.model.kind import Kind

from .making import BACKWARD, GC, NEXT, SAVE, TRAIN, VALID, Run, loader, plain
from .test_stacks import BACKWARD as ENGINE
from .test_stacks import FRAMES, LOSS, MODULE, thread

LINE = SampledFrame("train", "/u/train.py", 5)
FORWARD = [LINE, SampledFrame("forward", "/u/model.py", 7)]
TENSOR_BACKWARD = [LINE, SampledFrame("Tensor.backward", "/env/torch/_tensor.py", 500)]
GRADIENT = [LINE, SampledFrame("grad", "/env/torch/autograd/__init__.py", 400)]
K = TypeVar("K", bound=Kind)
NO_PHASES = Phases(wall_ns={}, cpu_ns={}, counts={})


def shares(shown_frac: dict[str, float], *training: tuple[list[SampledFrame], int]) -> list[float]:
    """What part of all weight each kind of stack has afterwards."""
    samples = Samples("py-spy", [(frames, 0.01) for frames, n in training for _ in range(n)], [])
    phases = structs.replace(NO_PHASES, shown_frac=shown_frac)
    weighted = balanced(samples, phases).training
    whole = sum(weight for _, weight in weighted)
    return [sum(w for f, w in weighted if f is frames) / whole for frames, _ in training]


def test_each_phase_has_its_share_of_the_clean_steps() -> None:
    found = shares({"backward": 0.4}, (TENSOR_BACKWARD, 60), (FORWARD, 40))
    assert found == pytest.approx([0.4, 0.6])


def test_gradients_by_torch_autograd_grad_are_backward() -> None:
    found = shares({"backward": 0.4}, (TENSOR_BACKWARD, 30), (GRADIENT, 30), (FORWARD, 40))
    assert found == pytest.approx([0.2, 0.2, 0.6])


def test_a_phase_with_few_samples_counts_with_the_rest() -> None:
    fetch = [LINE, SampledFrame("__next__", "/env/torch/utils/data/dataloader.py", 700)]
    known = {"backward": 0.4, "data_wait": 0.3}
    found = shares(known, (TENSOR_BACKWARD, 60), (fetch, 10), (FORWARD, 40))
    assert found == pytest.approx([0.4, 0.6 * 10 / 50, 0.6 * 40 / 50])


@pytest.mark.parametrize("backward", [19, 100 - 19])
def test_few_samples_change_nothing(backward: int) -> None:
    found = shares({"backward": 0.5}, (TENSOR_BACKWARD, backward), (FORWARD, 100 - backward))
    assert found == pytest.approx([backward / 100, 1 - backward / 100])


def test_without_sampled_steps_nothing_is_known() -> None:
    samples = Samples("py-spy", [(FORWARD, 0.01)] * 100 + [(TENSOR_BACKWARD, 0.01)] * 100, [])
    assert balanced(samples, NO_PHASES) is samples
    assert balanced(samples, None) is samples
    assert balanced(Samples("py-spy", [], []), NO_PHASES).training == []
    assert make_stacks(samples, 0.0).samples == 200


def judged(run: Run, kind: type[K]) -> K:
    found = load_run(run.write()).get(kind)
    assert found is not None
    return found


def validates(run: Run, number: int) -> None:
    """40 ms: batches take 10, 4 of them for an evaluation; backward 12, 2 of them by
    torch.autograd.grad; 1 of each is garbage collection; a checkpoint 4."""
    with run.inside(NEXT, TRAIN, -1):
        run.gap(5)
        run.pair(GC, 1)
    run.forward(4)
    run.backward(2, arg=1)
    run.gap(1)
    with run.inside(BACKWARD):
        run.gap(9)
        run.pair(GC, 1)
    run.update(1)
    run.batch(4, VALID)
    run.forward(8, train=False, grad=False)
    run.pair(SAVE, 4)


def of_steps(folder: Path, sampled: int = 10) -> Phases:
    run = Run(folder)
    loader(run, TRAIN)
    loader(run, VALID)
    run.open("sample")
    for _ in range(sampled):
        validates(run, 0)
        run.end()
    return judged(run.steps(30, validates), Phases)


def test_calls_count_as_stacks_show_them(tmp_path: Path) -> None:
    phases = of_steps(tmp_path)
    assert phases.wall_ns["evaluation"] > 0
    assert phases.shown_frac == pytest.approx(
        {"data_wait": 10 / 40, "backward": 12 / 40, "checkpoint": 4 / 40}
    )
    assert of_steps(tmp_path / "none", sampled=0).shown_frac == {}


def test_what_only_clean_steps_have_is_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader(run)
    run.open("sample")
    for _ in range(10):
        plain(run)
        run.end()

    def saves(run: Run, number: int) -> None:
        plain(run)
        run.pair(SAVE, 30)

    found = judged(run.steps(30, saves), Phases)
    assert found.shown_frac == pytest.approx({"data_wait": 4 / 30, "backward": 10 / 30})


def test_a_runs_lines_have_the_shares_of_its_clean_steps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.open("sample")
    for _ in range(10):
        plain(run)
        run.end()
    profile = thread(100, 100, *[[MODULE, ENGINE]] * 50, *[[MODULE, LOSS]] * 50)
    document = {"shared": {"frames": FRAMES}, "profiles": [profile]}
    (tmp_path / "stacks-100-2.speedscope.json").write_text(json.dumps(document))
    stacks = judged(run.steps(30, plain), Stacks)
    by_line = {line.at.line: line.self_frac for line in stacks.training}
    assert by_line == pytest.approx({30: 10 / 30, 8: 20 / 30})
