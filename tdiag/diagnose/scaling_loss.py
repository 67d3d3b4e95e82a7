"""Why N ranks are not N times as fast: where their step loses to perfect scaling.

With perfect scaling a rank's time is proportional to its samples: a step with the same number of
samples takes as long as with fewer ranks, a step with half as many takes half as long. The loss is
the ranks' mean budget minus that. Both are divided into the same rows, so the rows add up to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from msgspec import structs

from tdiag.evidence.device import DEVICE_BUSY, DeviceTime
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.from_run.ranks_of_run import batch_samples
from tdiag.evidence.machine import Environment, Threads
from tdiag.evidence.ranks import Collectives, Ranks
from tdiag.evidence.steps import Phases, component_of
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.scaling import Load, Loss, Row, ScaledRun
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.units import apportion, plural

_ROW: dict[str, Row] = {
    "data_wait": "input",
    "h2d": "input",
    "forward": "computing",
    "loss": "computing",
    "backward": "computing",
    "compute": "computing",
    "optimizer": "once_a_step",
    "evaluation": "once_a_step",
    "checkpoint": "once_a_step",
    "other": "once_a_step",
    "prepare": "host",
    "gc": "host",
    "d2h": "host",
    "sync": "host",
    "alloc": "host",
    "cpu_ops": "host",
    "launch": "host",
    "python_loss": "host",
}
# Phases that contain the sum of the gradients if no collective was seen.
_SUMMED_IN = ("backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class MeanBudget:
    """One number of ranks. ``parts``: the mean budget of the ranks, ns per step, without ``comm``.
    ``together``: that ``comm``. ``communication``: its part that is not waiting; None if unknown.
    ``summed_unseen``: gradients were summed where no hook sees it. ``why``: why nothing
    was measured."""

    ranks: int
    run: str
    step_ns: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    together: float = 0.0
    communication: float | None = None
    summed_unseen: bool = False
    samples: float | None = None
    threads: int | None = None
    verdict: str = ""
    why: str = ""

    def rows(self, *, apart: bool, summed_unseen: bool) -> dict[Row, float]:
        """``apart``: communication and waiting are separate rows. ``summed_unseen``: phases that
        may contain communication count as unattributed."""
        found: dict[Row, float] = dict.fromkeys(get_args(Row), 0.0)
        for name, ns in self.parts.items():
            hidden = summed_unseen and name in _SUMMED_IN
            found["unattributed" if hidden else _ROW.get(name, "unattributed")] += ns
        if apart and self.communication is not None:
            found["communication"] = self.communication
            found["waiting"] = self.together - self.communication
        else:
            found["communication_or_waiting"] = self.together
        return found


def measured(ranks: int, run_dir: Path, evidence: Evidence, diagnosis: Diagnosis) -> MeanBudget:
    """What is compared about a run with this number of ranks."""
    environment, step = evidence.get(Environment), diagnosis.step
    about = MeanBudget(ranks=ranks, run=str(run_dir), verdict=diagnosis.verdict.summary)
    if environment is None or step is None or step.mean_ns <= 0:
        return replace(about, why="no clean step was measured")
    if threads := evidence.get(Threads):
        about = replace(about, threads=threads.intra_op)
    if environment.world_size != ranks:
        had = plural(environment.world_size, "rank")
        why = f"the job had {had}: its script or its settings set the number"
        return replace(about, why=why)
    on_device = environment.device != "cpu"
    budgets, why = _budgets(evidence, ranks, on_device)
    if why:
        return replace(about, why=why)
    if on_device:
        budgets = [_brought_to(parts, step.mean_ns) for parts in budgets]
    names = sorted({name for parts in budgets for name in parts})
    parts = {name: statistics.fmean(p.get(name, 0.0) for p in budgets) for name in names}
    together = parts.pop("comm", 0.0)
    return replace(
        about,
        step_ns=sum(parts.values()) + together,
        parts=parts,
        together=together,
        communication=_communication(evidence.get(Ranks), together),
        summed_unseen=ranks > 1 and not on_device and evidence.get(Collectives) is None,
        samples=_samples(run_dir, evidence, ranks),
    )


def _communication(ranks: Ranks | None, together: float) -> float | None:
    """The exposed communication without waiting; a single rank waits for nobody."""
    if ranks is None:
        return together
    return None if ranks.shortest_ns is None else min(together, ranks.shortest_ns)


def _budgets(
    evidence: Evidence, ranks: int, on_device: bool
) -> tuple[list[Mapping[str, float]], str]:
    """The budget of each rank, or the reason why it is unknown."""
    if ranks == 1:
        device, phases = evidence.get(DeviceTime), evidence.get(Phases)
        if on_device:
            return ([device.components_ns], "") if device else ([], _UNTRACED)
        if phases is None:
            return [], "no phases were measured"
        return [{component_of(name): ns for name, ns in phases.wall_ns.items()}], ""
    found = evidence.get(Ranks)
    if found is None:
        return [], evidence.missing.get(Ranks, "the ranks' steps could not be paired")
    budgets = [rank.components_ns for rank in found.ranks]
    if on_device and not all(budgets):
        return [], _UNTRACED
    if len(budgets) < ranks:
        return [], f"only {len(budgets)} of {ranks} ranks step together"
    return list(budgets), ""


_UNTRACED = "what the device did was not traced"


def _brought_to(traced: Mapping[str, float], step_ns: int) -> dict[str, float]:
    """A traced step on a device, scaled to the length of the clean one: the device's work stays as
    traced, the rest keeps its proportions, because the profiler slows the host."""
    busy = {name: ns for name, ns in traced.items() if name in DEVICE_BUSY and ns > 0}
    idle = {name: ns for name, ns in traced.items() if name not in DEVICE_BUSY and ns > 0}
    working, waiting = sum(busy.values()), sum(idle.values())
    fit = min(1.0, step_ns / working) if working else 0.0
    left = step_ns - working * fit
    found = {name: ns * fit for name, ns in busy.items()}
    if not waiting:
        return {**found, "unattributed": left}
    return {**found, **{name: ns * left / waiting for name, ns in idle.items()}}


def _samples(run_dir: Path, evidence: Evidence, ranks: int) -> float | None:
    """Samples of one rank per step, mean over the ranks; None unless every rank's were counted."""
    phases, loaders = evidence.get(Phases), evidence.get(Loaders)
    if phases is None or loaders is None:
        return None
    training = {loader.id for loader in loaders.loaders if loader.role == "train"}
    taken = {n: count for n, count in phases.batches.items() if n in training and count}
    samples = batch_samples(run_dir, taken)
    if not taken or any(len(samples.get(number, {})) < ranks for number in taken):
        return None
    return sum(count * statistics.fmean(samples[n].values()) for n, count in taken.items())


def compared(found: Sequence[MeanBudget]) -> tuple[ScaledRun, ...]:
    """Each number of ranks, compared with the first."""
    return tuple(_compared(one, found[0]) for one in found)


def _compared(one: MeanBudget, base: MeanBudget) -> ScaledRun:
    found = ScaledRun(
        ranks=one.ranks, run=one.run, threads=one.threads, verdict=one.verdict, why=one.why
    )
    if one.why:
        return found
    step_ns = round(one.step_ns)
    found = structs.replace(found, step_ns=step_ns, samples=one.samples)
    if base.why or not one.samples or not base.samples:
        return found
    share, times = one.samples / base.samples, one.ranks / base.ranks
    ideal_ns = round(base.step_ns * share)
    return structs.replace(
        found,
        load=_load(share, times),
        relative=ideal_ns / step_ns * times,
        efficiency=ideal_ns / step_ns,
        ideal_ns=ideal_ns,
        loss=_loss(one, base, step_ns, ideal_ns) if one is not base else (),
    )


def _load(share: float, times: float) -> Load:
    """``share``: samples of a rank ÷ those with the first number of ranks. ``times``: number of
    ranks ÷ the first number."""
    if abs(share - 1) <= NOTICEABLE_FRAC:
        return "same"
    return "divided" if abs(share * times - 1) <= NOTICEABLE_FRAC else "other"


def _loss(one: MeanBudget, base: MeanBudget, step_ns: int, ideal_ns: int) -> tuple[Loss, ...]:
    """Rows that are not empty, in the model's order; they add up to the nanosecond."""
    apart = one.communication is not None and base.communication is not None
    unseen = one.summed_unseen or base.summed_unseen
    now, then = (x.rows(apart=apart, summed_unseen=unseen) for x in (one, base))
    mine = apportion(list(now.values()), step_ns)
    ideal = apportion(list(then.values()), ideal_ns)
    return tuple(Loss(row, a - b) for row, a, b in zip(now, mine, ideal, strict=True) if a or b)
