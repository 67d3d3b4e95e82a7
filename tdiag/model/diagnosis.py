"""The diagnosis: what every reporter renders and ``diagnosis.json`` contains.

The shape is public and versioned (``SCHEMA_VERSION``, ``tdiag/report/diagnosis.schema.json``).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tdiag.model.compiled import CompileReport
from tdiag.model.notes import Captured, Note
from tdiag.model.place import Place
from tdiag.model.timeline import Timeline
from tdiag.model.trials import Answer, Trials
from tdiag.model.watched import Watched

SCHEMA_VERSION = 2

# Smaller shares of the step do not get their own line in a table: half of the last digit of a share
# in whole percent.
MINOR_FRAC = 0.005

VerdictClass = Literal[
    "io", "cpu", "input", "loader", "h2d", "compute", "python_loss", "sync", "overhead", "eval",
    "rollout", "checkpoint", "logging", "memory", "comm", "straggler", "no_device_activity",
    "unknown",
]  # fmt: skip

Safety = Literal["safe", "review", "manual"]

Origin = Literal["kernels", "ops", "modules", "functions", "host_ops"]


class Measure(msgspec.Struct, frozen=True):
    """One measured number. ``unit``: ns, bytes, frac, count, per_step, gb_per_s, text…
    ``source``: the window or sampler it came from (baseline, sample, trace, calls, ops, fetch,
    system, probe)."""

    name: str
    value: float | int | str
    unit: str
    source: str


class Fix(msgspec.Struct, frozen=True):
    """The change to make. ``action``: one imperative line of at most 60 characters without a place
    ("Keep the workers between epochs"); the finding's first line. ``text``: the change in whole
    sentences, with the place. ``code``: lines to paste, or empty. ``safety``: ``safe`` keeps
    results, ``review`` may change numerics or memory, ``manual`` needs the user's judgement.
    ``intervention``: what ``tdiag try --set`` takes to measure it, or None."""

    text: str
    safety: Safety
    intervention: str | None = None
    action: str = ""
    code: str = ""


class Speedup(msgspec.Struct, frozen=True):
    """Step time now ÷ step time after, low and high end of the prediction."""

    low: float
    high: float


class MeasuredGain(msgspec.Struct, frozen=True):
    """The result of a trial of the fix (:class:`tdiag.model.trials.Tried`): faster, slower or no
    effect; step time without ÷ with it, and its 95 % interval."""

    answer: Answer
    speedup: float
    low: float
    high: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's result. ``recoverable_ns``: per step, the middle of the predicted range, or its
    low end if the range is so wide that only a lower bound is known; 0 for an advisory, and if the
    fix may cost more than it gains. If a trial ``measured`` the fix, the measured gain, or 0;
    ``speedup`` stays the prediction. ``at_best_ns``: the range's high end (the speed-up's may also
    count on warm caches). ``summary``: one sentence with the decisive numbers. ``why_gain``: the
    basis of the range. ``advisory``: no measured cost, a cost too small to matter in a healthy run,
    or a small gain that may be none; never ranked above others. ``components``: the budget
    components that the time comes from; findings that share one overlap, so their
    ``recoverable_ns`` must not be added up."""

    code: str
    name: str
    cls: str = msgspec.field(name="class")
    summary: str
    location: Place | None
    evidence: tuple[Measure, ...]
    recoverable_ns: int
    at_best_ns: int = 0
    speedup: Speedup | None
    why_gain: str
    fix: Fix
    advisory: bool = False
    components: tuple[str, ...] = ()
    measured: MeasuredGain | None = None

    @property
    def wins(self) -> Speedup | None:
        """The interval that a trial measured, else the prediction; None if neither is a gain."""
        if found := self.measured:
            return Speedup(found.low, found.high) if found.answer == "faster" else None
        return self.speedup


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``share``: of the clean step, 0..1. ``confidence``: 0..1, lowered by missing evidence and a
    close runner-up. ``healthy``: the step is spent computing, efficiently. ``proven``: a trial
    measured that leaving this part out saves at least about this share."""

    cls: str = msgspec.field(name="class")
    share: float
    confidence: float
    runner_up: str | None
    summary: str
    healthy: bool = False
    proven: bool = False


class StepTime(msgspec.Struct, frozen=True):
    mean_ns: int
    median_ns: int
    p90_ns: int
    count: int


class Component(msgspec.Struct, frozen=True):
    component: str
    ns: int


class Abstained(msgspec.Struct, frozen=True):
    """A rule that could not be checked, and the evidence it lacked, in words."""

    code: str
    name: str
    missing: str


class Part(msgspec.Struct, frozen=True):
    """``count`` is per traced step; so is ``ns`` unless :attr:`Top.scaled`. ``at``: where a
    function begins; its file is as the profiler recorded it and may be relative."""

    name: str
    count: float
    ns: float
    at: Place | None = None


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a traced step's time, largest first (at most ten).

    ``kernels``: device work by its own name; ``ops``: by the op that launched it; ``modules`` and
    ``functions``: by the ``nn.Module`` and the user's function that called it (forward only);
    ``host_ops``: ops by their own host time. ``total_ns``: the denominator of shares, per step: all
    device work, or the own time of all host ops. Concurrent kernels both count. ``scaled``: the
    profiler slows the host, so host times are scaled to the clean step: traced time × clean step ÷
    traced step. Shares are as traced.
    """

    of: Origin
    total_ns: float
    parts: tuple[Part, ...]
    scaled: bool = False


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's step. ``components``: the device's time or, on a CPU, the phases of the clean
    step; empty where the rank's trace holds no device activity. ``communication_ns``: its
    communication, overlapped or not, None where unmeasured. ``late``: the others wait for it."""

    rank: int
    step_ns: int
    communication_ns: int | None
    components: tuple[Component, ...]
    late: bool = False


class RooflineLine(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op by one function (``at``, None = unknown), per traced step. ``ns``: as traced;
    ``best_ns``: at the machine's rates. ``bound``: what limits them at best."""

    name: str
    at: Place | None
    count: float
    ns: int
    best_ns: int
    bound: str  # "compute", "memory" or "dispatch"


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """How close forward, loss, backward and optimizer come to the machine's best rates.

    ``efficiency``: best time ÷ ``step_ns``, at most 1. ``step_ns``: their clean time, without the
    share in which other programs had the cores; with a device its computing time. ``compute_ns``
    and ``memory_ns``: best time of the ops limited by arithmetic and by memory traffic;
    ``dispatch_ns``: fixed cost of the calls. ``bound``: the largest of these three. ``threads``: of
    the rates, ``threads_used``: by the program, None with a device, and ``idle_threads_frac``: the
    share of ``step_ns`` that the unused ones would save. ``certainty``: how well the rates are
    known, 0..1."""

    efficiency: float
    bound: str
    step_ns: int
    compute_ns: int
    memory_ns: int
    dispatch_ns: int
    calls: int
    threads: int | None
    threads_used: int | None
    idle_threads_frac: float
    certainty: float
    source: str
    lines: tuple[RooflineLine, ...] = ()

    @property
    def best_ns(self) -> int:
        return self.compute_ns + self.memory_ns

    @property
    def reachable(self) -> str:
        """In words, what ``efficiency`` is a part of. A device's rates are never measured."""
        return "what this machine reaches" if self.threads else "the device's data sheet"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a report. ``budget`` sums to ``step.mean_ns`` exactly. ``together``: the gain
    of the fixes of all findings that are not advisories; None with fewer than two. ``compiled``:
    None if torch.compile compiled nothing. ``trials``: of the fixes and the verdict, None if there
    were none. ``watched``: for a process that was watched from outside; None for one that was
    launched."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    step: StepTime | None
    budget: tuple[Component, ...]
    findings: tuple[Finding, ...]
    abstained: tuple[Abstained, ...]
    perturbation: dict[str, float]
    environment: dict[str, Any]
    capture: dict[str, Captured]
    together: Speedup | None = None
    notes: tuple[Note, ...] = ()
    timeline: Timeline | None = None
    top: tuple[Top, ...] = ()
    ranks: tuple[RankStep, ...] = ()
    roofline: Roofline | None = None
    compiled: CompileReport | None = None
    trials: Trials | None = None
    watched: Watched | None = None
