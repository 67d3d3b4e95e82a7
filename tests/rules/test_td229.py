"""TD229 beyond its example: where the time comes from, and when it says nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import SameInputs
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import DATA_WAIT
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    GB,
    MS,
    at,
    budget,
    call_tree,
    loaders,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    system,
)

RULE = find("TD229")


def found(evidence: Evidence, **changes: object) -> Finding | None:
    same = evidence.get(SameInputs)
    assert same is not None
    lines = tuple(replace(line, **changes) for line in same.lines)
    result = run_rule(RULE, evidence.add(replace(same, lines=lines)))
    return result if isinstance(result, Finding) else None


@pytest.mark.parametrize(
    ("phase", "cls", "components"),
    [
        ("prepare", "cpu", {"prepare"}),
        ("evaluation", "eval", {"evaluation"}),
        ("forward", "overhead", {"forward"}),
        ("data_wait", "cpu", set(DATA_WAIT)),
    ],
)
def test_the_class_follows_from_the_phase(phase: str, cls: str, components: set[str]) -> None:
    step = budget(prepare=25, evaluation=25, forward=25, data_wait_cpu=25)
    finding = found(RULE.fires().add(step), phase=phase)
    assert finding is not None and finding.cls == cls
    assert components & set(finding.components)


def test_a_device_may_work_during_the_forward() -> None:
    step = budget(device=True, prepare=25, forward=25)
    assert found(RULE.fires().add(step), phase="forward") is None
    assert found(RULE.fires().add(step), phase="prepare") is not None


def test_results_that_do_not_fit_into_memory() -> None:
    machine = system(ram_available_bytes=1 * GB)
    assert found(RULE.fires().add(machine)) is not None
    assert found(RULE.fires().add(machine), size=1 * GB) is None


def test_what_comes_before_the_forward_has_too_few_samples_beside_computing_on_all_cores() -> None:
    """A third of the clean step, a tenth of the samples."""
    steps = ((50, "forward"), (60, "optimizer"))
    evidence = RULE.fires().add(
        budget(prepare=30, forward=30, backward=30),
        stacks((stack(40, 0.1, "", "", "window"),)),
        call_tree(("train", 45, 0.1), ("window", 40, 0.1)),
        ops(*(op_line(n, phase, 3, at=at(n, "train")) for n, phase in steps)),
    )
    finding = found(evidence, phase="prepare")
    assert finding is not None
    assert finding.recoverable_ns == pytest.approx(0.75 * 30e6, rel=0.15)


def test_a_modules_call_has_no_name_of_torchs_own() -> None:
    finding = found(RULE.fires(), name="Module._wrapped_call_impl")
    assert finding is not None
    assert finding.summary.startswith("A module is given the same input again at train.py:40")
    assert "Call a module at train.py:40 once for each input" in finding.fix.text


def test_a_line_that_does_much_else_besides() -> None:
    """It takes 25 ms, the function that repeats itself 0.5."""
    assert found(RULE.fires(), ns=0.5e6, again_ns=0.5e6) is None


def in_workers(again: float) -> Finding | None:
    """Two workers take 55 ms to load a batch, eight tenths of it at line 40."""
    evidence = RULE.fires()
    same, trees = evidence.get(SameInputs), evidence.get(CallTrees)
    assert same is not None and trees is not None
    (line,) = same.lines
    ns = 50e6
    line = replace(line, phase="data_wait", ns=ns, again_ns=again * ns)
    frames = tuple(replace(frame, frac=0.8) for frame in trees.training)
    evidence.add(
        budget(data_wait_cpu=60, forward=20),
        phases(data_wait=60, forward=20),
        replace(same, lines=()),
        replace(trees, workers=frames),
        stacks(workers=(stack(41, 0.8),)),
        loaders(num_workers=2, again=(line,)),
        system(),
    )
    result = run_rule(RULE, evidence)
    return result if isinstance(result, Finding) else None


def test_workers_that_get_the_same_input_again() -> None:
    finding = in_workers(again=0.9)
    assert finding is not None and finding.cls == "cpu" and "of the fetch" in finding.summary
    assert set(finding.components) <= set(DATA_WAIT)
    assert in_workers(again=0.01) is None


@pytest.mark.parametrize(("outer_again", "line"), [(12.0, 90), (6.0, 40)])
def test_of_functions_that_call_each_other_the_outermost_that_repeats_as_much(
    outer_again: float, line: int
) -> None:
    """A layer is given the same input at 40, in a model that is called at 90."""
    evidence = RULE.fires()
    same = evidence.get(SameInputs)
    assert same is not None
    layer = replace(same.lines[0], ns=16 * MS, again_ns=12 * MS)
    model = replace(layer, at=at(90, "score"), again_ns=outer_again * MS)
    step, trees = budget(prepare=25), call_tree(("score", 90, 0.5), ("window", 40, 0.5))
    both = evidence.add(step, trees, replace(same, lines=(layer, model)))
    result = run_rule(RULE, both)
    assert isinstance(result, Finding) and result.location and result.location.line == line
