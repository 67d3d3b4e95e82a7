"""Environment variables of debugging."""

from __future__ import annotations

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import DebugVariables
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, environment

RULE = find("TD715")


def judged(*kinds: object, **values: str) -> Finding | None:
    found = run_rule(RULE, RULE.fires().add(DebugVariables(values=values), *kinds))  # type: ignore[arg-type]
    assert found is None or isinstance(found, Finding)
    return found


def test_each_counts_only_where_it_costs() -> None:
    on_cpu = budget(forward=60, data_wait_cpu=40)
    assert judged(CUDA_LAUNCH_BLOCKING="1") is not None
    assert judged(on_cpu, CUDA_LAUNCH_BLOCKING="1") is None
    assert judged(TORCH_DISTRIBUTED_DEBUG="DETAIL") is None
    assert judged(environment(world_size=2), TORCH_DISTRIBUTED_DEBUG="DETAIL") is not None
    assert judged() is None


def test_only_what_was_measured_is_promised() -> None:
    blocking = judged(CUDA_LAUNCH_BLOCKING="1")
    debug = judged(budget(forward=60, data_wait_cpu=40), PYTHONMALLOC="debug")
    assert blocking is not None and blocking.advisory
    assert debug is not None and debug.components == ("data_wait_cpu",)
