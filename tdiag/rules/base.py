"""What a rule returns, how its numbers are shown, and the helpers that all rules share.

A rule is a module ``tdnnn_pattern.py`` with a docstring under the headings of
:data:`tdiag.rules.catalogue.HEADINGS`, the constants ``CODE``, ``NAME`` and ``CLASS``, its
thresholds, ``check`` (whose parameters name the evidence it needs), and the examples ``fires`` and
``clear``. ``AFTER``, optional: the rules to act on first, each with the reason in words; the report
says so if both find something. ``UNTRIED``: why no change of `tdiag try` measures the gain of its
example; without it the example's fix names a change. With a device, ``BY_WORK``: `check` gets the
device's time in place of the host's; ``BY_ISSUE``: its gain is what the host need not issue
(:mod:`tdiag.diagnose.by_device`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

from tdiag.evidence.steps import Budget
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import NORMAL_95, Threshold
from tdiag.probe.wire import is_user_file
from tdiag.units import percent

DATA_WAIT = ("data_wait", "data_wait_io", "data_wait_cpu")
MODEL_PHASES = ("forward", "loss", "backward", "optimizer")
# Computing: phases of a run on the CPU, and what the device and its launches take.
COMPUTE = (*MODEL_PHASES, "compute", "launch", "python_loss")

# A predicted gain whose high end is below this is not reported.
NOISE_FLOOR_FRAC = Threshold(
    0.02,
    "of the step",
    "Interleaved with itself, a program took 0.986 to 1.012 of its time"
    " (benchmarks/rule_constants.py base.NOISE).",
)


class Abstain(Exception):
    """Raised by ``check`` if a field it needs was not measured; the message says which."""


@dataclass(frozen=True)
class Gain:
    """Time per step that the fix can save, ns, and why. A negative ``low_ns``: it may cost as much.

    ``components``: the budget components the time comes out of. Findings that share a component
    overlap; none can save more than its components hold (the engine caps it). ``low_cuts``,
    ``high_cuts``: what the fix does to the device's step, as factors by the tags of
    :class:`~tdiag.evidence.replay.Replay`. Where a trace can be replayed, the replay gives the gain
    (:mod:`tdiag.diagnose.replayed`); an end without cuts stays, at most the high end.
    ``fetches``: the fix spares fetches some of their work, and so gives cores back that workers
    take from the computing (:func:`tdiag.diagnose.cores_back.with_cores_back`).
    ``calls_go``: the fix spares whole calls, which then need not be issued to a device either
    (:mod:`tdiag.diagnose.by_device`).
    """

    low_ns: float
    high_ns: float
    why: str
    components: tuple[str, ...]
    low_cuts: Mapping[str, float] = field(default_factory=dict)
    high_cuts: Mapping[str, float] = field(default_factory=dict)
    fetches: bool = False
    calls_go: bool = False


@dataclass(frozen=True)
class Found:
    """A pattern that was found; without a gain, an advisory. ``own``: the user's own code does it,
    so no setting of a framework that drives the loop changes it. ``parts``: names of the parts of
    that framework that cause it, most time first. ``cls``: the class, if it is not the rule's."""

    summary: str
    evidence: tuple[Measure, ...]
    fix: Fix
    gain: Gain | None = None
    at: Place | None = None
    own: bool = False
    parts: tuple[str, ...] = ()
    cls: str = ""


def where(at: Place | None) -> str:
    """`` at train.py:41``; empty if the place is unknown or in a library."""
    if at is None or not is_user_file(at.file):
        return ""
    name = at.file.replace("\\", "/").rsplit("/", 1)[-1]
    return f" at {name}:{at.line}" if at.line else f" in {name}"


def same_function(one: Place, other: Place) -> bool:
    """Whether both are in one function; a sampler may say ``Net.forward``, the probe ``forward``. A
    generator belongs to the function that it is written in, if its name shows that."""
    return one.file == other.file and _function(one) == _function(other)


def _function(at: Place) -> str:
    parts = at.function.split(".")
    while len(parts) > 2 and parts[-1].endswith("genexpr>"):
        del parts[-2:]  # "<locals>" and its own name
    return parts[-1]


def held(budget: Budget, *components: str) -> float:
    """The time in these components, ns per step."""
    return sum(budget.components_ns.get(name, 0) for name in components)


def version(torch: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` → (2, 13)."""
    return tuple(int(part) for part in torch.split("+")[0].split(".")[:2] if part.isdigit())


# Units a Measure may carry; reports know how to print each.
UNITS = frozenset(
    {"ns", "bytes", "frac", "count", "per_step", "gb_per_s", "bytes_per_s", "cores", "text"}
)
SOURCES = frozenset(
    {"baseline", "sample", "trace", "calls", "ops", "fetch", "system", "probe", "budget"}
)


def ns(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value), "ns", source)


def bytes_(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value), "bytes", source)


def frac(name: str, value: float, source: str) -> Measure:
    return Measure(name, round(value, 4), "frac", source)


def count(name: str, value: float, source: str, unit: str = "count") -> Measure:
    return Measure(name, round(value, 2), unit, source)


def text(name: str, value: str, source: str) -> Measure:
    return Measure(name, value, "text", source)


def sampling_range(samples: int, least: float, most: float) -> str:
    """``2,000 samples put the share between 59% and 63%``: the range of :func:`known_to`."""
    return f"{samples:,} samples put the share between {percent(least)} and {percent(most)}"


def known_to(share: float, samples: int) -> tuple[float, float]:
    """Least and greatest share of time, 0..1, for ``share`` of so many samples: 95 % confidence.

    Wilson's score interval for a proportion, which holds for few samples and for shares near 0 or
    1 (Brown, Cai, DasGupta 2001, "Interval estimation for a binomial proportion"). Not scipy's:
    importing it would cost a diagnosis a second.
    """
    if samples <= 0:
        return 0.0, 1.0
    share, z2 = min(1.0, share), NORMAL_95**2 / samples
    centre = (share + z2 / 2) / (1 + z2)
    half = sqrt(z2 * share * (1 - share) + z2 * z2 / 4) / (1 + z2)
    return max(0.0, centre - half), min(1.0, centre + half)
