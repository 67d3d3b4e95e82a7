"""TD229 beyond its example: where the time comes from, and when it says nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import SameInputs
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import DATA_WAIT
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, budget, call_tree, stack, stacks, system

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


def test_a_fetch_has_too_few_samples_beside_computing_on_all_cores() -> None:
    """A third of the clean step, a tenth of the samples."""
    step = budget(data_wait_cpu=30, forward=30, backward=30)
    fetch = stacks((stack(41, 0.1, phase="data_wait"),))
    evidence = RULE.fires().add(step, fetch, call_tree(("window", 40, 0.1)))
    finding = found(evidence, phase="data_wait")
    assert finding is not None
    assert finding.recoverable_ns == pytest.approx(0.75 * 30e6, rel=0.15)


def test_a_line_that_does_much_else_besides() -> None:
    """It takes 25 ms, the function that repeats itself 0.5."""
    assert found(RULE.fires(), ns=0.5e6, again_ns=0.5e6) is None
