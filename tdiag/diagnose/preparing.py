"""Time between the batch and the forward: whose work it is."""

from __future__ import annotations

from tdiag.diagnose.sampled_lines import above
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Spot
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import DATA_WAIT, held
from tdiag.rules.environments import stepping
from tdiag.rules.evaluation import rolls_out
from tdiag.rules.files_by_hand import file_lines


def lines_on_batch(evidence: Evidence, budget: Budget) -> set[Spot]:
    """Lines that work on a loader's batch before the forward: that is preprocessing, whichever
    finding names it."""
    return {x.at.spot for x in above(evidence)} if held(budget, *DATA_WAIT) else set()


def in_preparing(finding: Finding, evidence: Evidence, budget: Budget, on_batch: bool) -> float:
    """The share of the finding's time that makes batches by hand, or works ``on_batch`` before the
    forward, and so has a class."""
    spent = held(budget, *finding.components)
    prepares = "prepare" in finding.components and (on_batch or prepared_by(evidence))
    return held(budget, "prepare") / spent if spent and prepares else 0.0


def prepared_by(evidence: Evidence) -> str:
    """The class of making batches by hand, without a DataLoader; "" if unknown.

    Between two calls of an agent, or mostly in an environment, it is a rollout.
    If it is mostly CPU time, of any thread: preprocessing. If it is mostly waiting, at lines that
    work with files: storage. Otherwise, or if no trace shows when the device was idle: copying,
    waiting for a core or for the device, which the evidence here cannot separate.
    """
    phases, environment = evidence.get(Phases), evidence.get(Environment)
    if phases is None or environment is None:
        return ""
    if environment.device != "cpu" and evidence.get(DeviceTime) is None:
        return ""
    if "data_wait" in phases.wall_ns:
        return ""
    if rolls_out(phases, evidence.get(Flags), evidence.get(Calls)):
        return "rollout"
    if _steps_an_environment(evidence, phases):
        return "rollout"
    wall, cpu = (times.get("prepare", 0.0) for times in (phases.wall_ns, phases.cpu_ns))
    beside = phases.made_beside and environment.device == "cpu"
    if cpu > MAJORITY_FRAC * wall or beside:
        return "cpu"
    return "io" if phases.prepare_waits and file_lines(above(evidence)) else ""


def _steps_an_environment(evidence: Evidence, phases: Phases) -> bool:
    """Whether samples put as much time as most of that before the forward into an environment."""
    seen = evidence.get(Flags), evidence.get(Stacks), evidence.get(CallTrees), evidence.get(Ops)
    before = phases.wall_ns.get("prepare", 0.0) / max(1.0, sum(phases.wall_ns.values()))
    return sum(line.self_frac for line in stepping(*seen)) > MAJORITY_FRAC * before
