"""The cost of each verdict class per step: from the budget and from the findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tdiag.diagnose.budget import starting_workers
from tdiag.diagnose.line_classes import class_of, classes_of_lines, of_constants
from tdiag.diagnose.preparing import in_preparing, lines_on_batch, prepared_by
from tdiag.diagnose.sampled_lines import explain_by_lines, preparing_line
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Dispatch, HostOps, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Spot
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import MODEL_PHASES, held, known_to
from tdiag.rules.both_sides import on_both_sides
from tdiag.rules.evaluation import gathers
from tdiag.rules.feed import left_by_others
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, NO_OVERHEAD_NS
from tdiag.rules.log_lines import written_in_forward
from tdiag.rules.loops import in_loss
from tdiag.rules.own_workers import taken_by_threads, taken_by_workers
from tdiag.rules.thresholds import HIGH_FRAC, MIN_SAMPLES
from tdiag.rules.waits import cores_beside, fills_a_queue

# Classes with one cause for the user and one share of the step to save: a step that waits for data,
# and a device that the host leaves idle. The member class determines the fix.
FAMILIES = {"input": ("io", "cpu", "input", "loader"), "host": ("overhead", "sync", "memory")}
# Classes that the budget measures as a component: a prediction cannot be more accurate.
_MEASURED = frozenset(
    {"io", "cpu", "input", "loader", "h2d", "sync", "comm", "eval", "rollout", "checkpoint"}
)

# What may have the cores that computing waits for.
WORKERS, THREADS = "the loader's workers", "other threads of the program"

# Component → the class of its waste: time that a better program would not spend.
_WASTE = {
    "data_wait_io": "io",
    "data_wait_cpu": "cpu",
    "h2d": "h2d",
    "d2h": "h2d",
    "sync": "sync",
    "alloc": "memory",
    "launch": "overhead",
    "python_loss": "python_loss",
    "comm": "comm",
    "evaluation": "eval",
    "checkpoint": "checkpoint",
    "gc": "overhead",
}
# With a device, the host's optimizer time and unnamed time leave the device idle.
_WASTE_WITH_DEVICE = {"optimizer": "overhead", "other": "overhead"}
# Work of the host that findings explain first.
_FOR_LINES = ("prepare", "cpu_ops")
CROWDED = "other programs kept the cores busy"  # a doubt about the time that calls take


@dataclass
class Costs:
    """Costs in ns per step by class; ``compute`` is separate. ``unknown``: time with an unknown
    cause, by component. ``doubts``: missing evidence that a verdict of compute would need."""

    step_ns: int
    by_class: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)  # of these, what the budget shows
    compute: float = 0.0
    unknown: dict[str, float] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)  # classes inferred from circumstances only
    doubts: list[str] = field(default_factory=list)
    # The line that gave unattributed time its class, and that class.
    by_line: tuple[str, StackLine] | None = None
    # The line that called the framework whose loop explains the time around the step.
    by_framework: StackLine | None = None
    # Of computing: the share of the step that waits for cores, what has them, and its class.
    crowded: tuple[float, str, str] | None = None
    of_lines: dict[Spot, str] = field(default_factory=dict)  # classes of their own
    unseen: bool = False  # no evidence shows which lines take the time

    @property
    def unexplained(self) -> float:
        return sum(self.unknown.values())

    @property
    def unexplained_where(self) -> str:
        """The component with most unexplained time."""
        return max(self.unknown, key=lambda name: self.unknown[name])

    def class_of(self, finding: Finding) -> str:
        return class_of(finding, self.of_lines)

    def add(self, cls: str, ns: float) -> None:
        if ns > 0:
            self.by_class[cls] = self.by_class.get(cls, 0.0) + ns

    def family(self, name: str) -> dict[str, float]:
        """The costs of one family's classes."""
        members = FAMILIES.get(name, (name,))
        return {cls: ns for cls, ns in self.by_class.items() if cls in members}

    def families(self) -> dict[str, float]:
        """Total cost of each family, at most the step."""
        names = {family_of(cls) for cls in self.by_class}
        return {n: min(sum(self.family(n).values()), float(self.step_ns)) for n in names}


def family_of(cls: str) -> str:
    """The family of a class; most classes are their own family."""
    return next((name for name, members in FAMILIES.items() if cls in members), cls)


def weigh(evidence: Evidence, budget: Budget, findings: Sequence[Finding]) -> Costs:
    """The cost of every class. A class that the budget does not measure costs the high end of its
    most expensive finding."""
    costs = Costs(budget.step_ns, of_lines=classes_of_lines(evidence, budget))
    _from_budget(costs, evidence, budget)
    costs.measured = dict(costs.by_class)
    before = lines_on_batch(evidence, budget)
    constant = of_constants(evidence.get(Ops))
    throughout = on_both_sides(evidence.get(Ops), evidence.get(CallTrees))
    for finding in findings:
        if finding.cls == "straggler":  # its verdict is made apart
            continue
        here, cls = finding.location and finding.location.spot, costs.class_of(finding)
        on_batch = cls == "overhead" and here in before
        if finding.speedup and not finding.advisory and finding.cls not in _MEASURED:
            high = _cost_of(finding, evidence, budget)
            prepares = high * in_preparing(finding, evidence, budget, on_batch)
            # It makes no batch: a loss before the model is called, calls of the model itself, a
            # buffer that is copied, or what is also done later in the step.
            calls_model = {"prepare", "forward"} <= set(finding.components)
            apart = cls == "python_loss" or finding.cls == "memory" or here in throughout
            if apart or (cls == "overhead" and calls_model):
                costs.by_class["cpu"] = max(0.0, costs.by_class.get("cpu", 0.0) - prepares)
            elif cls == "compute" and here in constant:
                moved = min(prepares, costs.by_class.get("cpu", 0.0))
                costs.by_class["cpu"] = costs.by_class.get("cpu", 0.0) - moved
                costs.compute += moved
            else:
                high -= prepares
            costs.by_class[cls] = max(costs.by_class.get(cls, 0.0), high)
        if finding.speedup and not finding.advisory:
            unprepared = costs.unknown.get("prepare", 0.0)
            claimed = _explain(costs, finding, evidence, budget)
            if on_batch:
                costs.add("cpu", unprepared - costs.unknown.get("prepare", 0.0))
            if finding.cls in _MEASURED:  # the finding explains more of it in unexplained time
                costs.add(finding.cls, claimed)
    if any(_makes_batches(finding, budget, throughout) for finding in findings):
        costs.guessed.clear()
    costs.add("cpu", costs.unknown.pop("cpu_ops"))
    # What cannot lie beside an evaluation lies in it: pictures that it writes, for example.
    inside = costs.by_class.get("logging", 0.0) + costs.by_class.get("eval", 0.0) - budget.step_ns
    if inside > 0 and "eval" in costs.by_class:
        costs.by_class["eval"] -= inside
    _from_own_work(costs, evidence, budget)
    _from_framework(costs, evidence, budget)
    _from_lines(costs, evidence, budget)
    explain_by_lines(costs, evidence, budget)
    costs.by_class.pop("compute", None)  # faster compute is still compute
    if not budget.has_device:
        least = min(_counted(evidence, findings), costs.compute)
        if least > costs.by_class.get("overhead", 0.0):
            costs.by_class["overhead"] = least
        _doubt(costs, evidence, findings)
    return costs


def _makes_batches(finding: Finding, budget: Budget, throughout: Collection[Spot]) -> bool:
    """Whether the finding names a line of preprocessing that takes most of the time before the
    forward."""
    at, most = finding.location, MAJORITY_FRAC * budget.components_ns.get("prepare", 0)
    if at is None or finding.advisory or finding.recoverable_ns <= most:
        return False
    by_hand = finding.cls == "overhead" and finding.components == ("prepare",)
    preprocesses = finding.cls == "cpu" and "prepare" in finding.components
    return preprocesses or (by_hand and at.spot not in throughout)


def _from_lines(costs: Costs, evidence: Evidence, budget: Budget) -> None:
    """Time before the forward that no finding explains gets the class of its main line: the line
    works on a core, or it waits, for something of the program that works, or for storage."""
    left = costs.unknown.get("prepare", 0.0)
    explained = left < MAJORITY_FRAC * budget.components_ns.get("prepare", 0)
    if explained or preparing_line(evidence, budget) is None:
        return
    phases = evidence.get(Phases)
    cpu = phases.cpu_ns.get("prepare") if phases else None
    wall = phases.wall_ns.get("prepare", 0.0) if phases else 0.0
    working = cpu is None or cpu > MAJORITY_FRAC * wall * undisturbed(evidence)
    waiting = budget.share("prepare")
    known = budget, phases, evidence.get(System), evidence.get(Threads)
    working = working or (cores_beside(waiting, *known) or 0.0) > MAJORITY_FRAC * waiting
    costs.add("cpu" if working else "io", costs.unknown.pop("prepare"))


def _from_own_work(costs: Costs, evidence: Evidence, budget: Budget) -> None:
    """Computing waits while the loader's workers, or other threads, work on the same cores: that
    time is preprocessing's, unless what the threads do is not known to be."""
    loaders, threads, phases = evidence.get(Loaders), evidence.get(Threads), evidence.get(Phases)
    if budget.has_device or phases is None:
        return
    loader, system = loaders.train() if loaders else None, evidence.get(System)
    lost, whose, cls = taken_by_workers(system, loader, threads) * costs.compute, WORKERS, "cpu"
    if not lost:
        lost, whose = taken_by_threads(budget, phases, system, loader, threads), THREADS
        lost = min(lost, costs.compute)
        cls = "cpu" if fills_a_queue(evidence.get(Stacks)) else "overhead"
    if lost >= NOTICEABLE_FRAC * budget.step_ns:
        costs.crowded = lost / budget.step_ns, whose, cls
        costs.compute -= lost
        # Of overhead the largest counts, as of findings: one may be about these threads.
        explained = costs.by_class.get(cls, 0.0) if cls == "overhead" else 0.0
        costs.add(cls, lost - explained)


def _from_framework(costs: Costs, evidence: Evidence, budget: Budget) -> None:
    """Time before the forward and after the step that no finding explains is overhead if samples
    put more than half as much time in the Python of the framework that runs the loop."""
    stacks = evidence.get(Stacks)
    if budget.has_device or stacks is None or stacks.samples < MIN_SAMPLES:
        return
    line = max(stacks.training, key=lambda x: x.framework, default=None)
    left = {name: costs.unknown.get(name, 0.0) for name in ("prepare", "other")}
    unexplained = sum(left.values())
    if line is None or not unexplained:
        return
    framework, _ = known_to(line.framework, stacks.samples)
    if framework * budget.step_ns > MAJORITY_FRAC * unexplained:
        if unexplained >= NOTICEABLE_FRAC * budget.step_ns:
            costs.by_framework = line
        costs.add("overhead", unexplained)
        costs.unknown.update(dict.fromkeys(left, 0.0))


def _explain(costs: Costs, finding: Finding, evidence: Evidence, budget: Budget) -> float:
    """Subtract what the finding explains from the unexplained time; returns how much, ns per step.

    Its cost is split over its components in proportion to their time.
    """
    spent = held(budget, *finding.components)
    if not spent:
        return 0.0
    share = min(1.0, _cost_of(finding, evidence, budget) / spent)
    explained = 0.0
    for name in costs.unknown.keys() & set(finding.components):
        claimed = min(costs.unknown[name], share * budget.components_ns.get(name, 0))
        costs.unknown[name] -= claimed
        explained += claimed
    within = 0.0  # of the model's phases, from which no mark separates it
    if finding.cls == "rollout" and "forward" in finding.components:
        # An environment stepped between two calls of the model.
        within = share * budget.components_ns.get("forward", 0)
    elif finding.cls == "logging" and not budget.has_device:
        seen = (evidence.get(Stacks), evidence.get(Ops), evidence.get(CallTrees))
        within = sum(line.self_frac for line in written_in_forward(*seen)) * budget.step_ns
    within = min(costs.compute, within)
    costs.compute -= within
    explained += within
    return explained


def _cost_of(finding: Finding, evidence: Evidence, budget: Budget) -> float:
    """The high end of the fix's gain, ns per step."""
    high: float = finding.at_best_ns
    if finding.components == ("gc",):
        high = max(0.0, high - _collected_while_waiting(evidence, budget))
    on_host_only = finding.components == ("optimizer",) and not budget.has_device
    if finding.cls == "overhead" and on_host_only and _can_price(evidence):
        # An update whose calls take longer than empty calls does work, fused or not. Python outside
        # torch calls, in a callback of a framework's step for example, does none of it.
        fixed = FIXED_COST_FACTOR * fixed_cost(evidence, {"optimizer"})
        high = min(high, fixed + _outside_calls(evidence, "optimizer"))
    return high


def _from_budget(costs: Costs, evidence: Evidence, budget: Budget) -> None:
    parts = budget.components_ns
    waste = _WASTE | (_WASTE_WITH_DEVICE if budget.has_device else {})
    fetching = _collected_while_waiting(evidence, budget)
    if gathers(evidence.get(Phases), evidence.get(Calls), evidence.get(CallTrees)):
        waste = waste | {"evaluation": "rollout"}
    loaders = evidence.get(Loaders)
    if (train := loaders.train() if loaders else None) and train.reads_files:
        waste = waste | {"data_wait_cpu": "io"}
    for name, ns in parts.items():
        if name in waste:
            costs.add(waste[name], ns - (fetching if name == "gc" else 0))
    costs.add("cpu", fetching)
    costs.add(_kind_of_wait(evidence), parts.get("data_wait", 0))
    if budget.has_device:
        costs.compute = parts.get("compute", 0)
    else:
        costs.compute = sum(parts.get(name, 0) for name in MODEL_PHASES)
    unknown = {name: float(parts.get(name, 0)) for name in ("unattributed", "other", *_FOR_LINES)}
    if budget.has_device:
        unknown["other"] = 0.0
    prepared = prepared_by(evidence)
    if prepared and unknown["prepare"]:
        costs.add(prepared, unknown.pop("prepare"))
        phases = evidence.get(Phases)
        # Threads that make batches, lines that wait for files, and environments were seen.
        if prepared == "cpu" and (phases is None or not phases.made_beside):
            costs.guessed.add(prepared)
    if evidence.get(Steps) is None:
        unknown["unattributed"] = 0.0  # a bare trace is judged only by what it contains
    costs.unknown = unknown


def _collected_while_waiting(evidence: Evidence, budget: Budget) -> float:
    """Collections during fetches, caused by the fetches' own objects: they are part of
    preprocessing."""
    phases = evidence.get(Phases)
    return min(phases.gc_in_wait_ns, budget.components_ns.get("gc", 0)) if phases else 0.0


def _kind_of_wait(evidence: Evidence) -> str:
    """The class of the part of data wait that is neither io nor cpu."""
    phases, loaders = evidence.get(Phases), evidence.get(Loaders)
    if phases is None or loaders is None:
        return "input"
    starting = starting_workers(phases, loaders.train())
    return "loader" if starting > MAJORITY_FRAC * phases.wall_ns.get("data_wait", 0.0) else "input"


def _counted(evidence: Evidence, findings: Sequence[Finding]) -> float:
    """The fixed cost of calls that may be overhead, ns per step; those of a loss that has a finding
    are accounted for."""
    found = any(finding.cls == "python_loss" for finding in findings)
    modules = evidence.get(Modules) if found else None
    phases = {"forward", "optimizer", "loss"}
    return fixed_cost(evidence, phases, lambda line: found and in_loss(line, modules))


def _can_price(evidence: Evidence) -> bool:
    return evidence.get(Ops) is not None and evidence.get(Dispatch) is not None


def fixed_cost(
    evidence: Evidence, phases: set[str], apart: Callable[[OpLine], bool] = lambda _: False
) -> float:
    """The fixed cost of these phases' torch calls and their backward, without lines that are
    ``apart``, ns per step: what they take without doing any work; 0 if calls were not counted or
    not timed."""
    ops, dispatch = evidence.get(Ops), evidence.get(Dispatch)
    if ops is None or dispatch is None:
        return 0.0
    return dispatch.least_ns(x for x in ops.lines if x.phase in phases and not apart(x))


def _outside_calls(evidence: Evidence, phase: str) -> float:
    """The phase's clean time that its counted torch calls do not take, ns per step; 0 if none of
    its calls was counted."""
    ops, phases = evidence.get(Ops), evidence.get(Phases)
    called = sum(x.elapsed_ns for x in ops.lines if x.phase == phase) if ops else 0.0
    if phases is None or not called:
        return 0.0
    return max(0.0, phases.wall_ns.get(phase, 0.0) - called)


def _doubt(costs: Costs, evidence: Evidence, findings: Sequence[Finding]) -> None:
    """Name the evidence missing for calling the host's forward, loss and backward compute."""
    ops, host_ops = evidence.get(Ops), evidence.get(HostOps)
    if ops is None and host_ops is None:
        costs.doubts.append("torch calls were not counted")
        return
    alone = costs.compute * undisturbed(evidence)
    # In a short run, ops are known but not the lines that call them.
    run = evidence.get(Steps) is not None
    costs.unseen = run and ops is None and evidence.get(Stacks) is None
    if evidence.get(Dispatch) is None or costs.unseen:
        calls = sum(x.calls for x in ops.lines) if ops else host_ops.per_step if host_ops else 0
        if not calls or alone / calls < NO_OVERHEAD_NS:
            costs.doubts.append(
                "neither stacks were sampled nor torch calls counted"
                if costs.unseen
                else "the fixed cost of a torch call was not measured"
            )
    fixed = FIXED_COST_FACTOR * _counted(evidence, findings)
    largest = max([costs.unexplained, *costs.families().values()])
    step_alone = costs.step_ns - costs.compute + alone
    overtakes = HIGH_FRAC * step_alone <= largest < HIGH_FRAC * costs.step_ns
    # Calls that are too short for their work in any case need others' time to be most of theirs.
    mostly = undisturbed(evidence) < MAJORITY_FRAC
    short = alone < fixed and (fixed <= costs.compute or mostly)
    if alone < costs.compute and (short or overtakes):
        costs.doubts.append(CROWDED)


def undisturbed(evidence: Evidence) -> float:
    """Share of a core that other programs left to the training thread, 0..1."""
    system = evidence.get(System)
    return 1.0 if system is None else left_by_others(system)
