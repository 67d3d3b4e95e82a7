"""What a rule gives back, and the few helpers that all rule files share.

A rule is a module ``tdnnn_pattern.py`` with a docstring under the headings of
:data:`tdiag.rules.catalogue.HEADINGS`, the constants ``CODE``, ``NAME`` and ``CLASS``, its
thresholds as commented constants, ``check`` (whose signature is its evidence query), and the
examples ``fires`` and ``clear``. Optional: ``AFTER``, the rules whose cause this rule's cure would
hide, and in words why they come first: the engine says so where both find something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tdiag.evidence.kinds import Budget
from tdiag.model.place import Place
from tdiag.probe.wire import is_user_file

if TYPE_CHECKING:  # at run time the engine imports this module, and the model comes after it
    from tdiag.model.diagnosis import Fix, Measure

DATA_WAIT = ("data_wait", "data_wait_io", "data_wait_cpu")
# What the training thread computes in; with a device, what the device or its launching costs.
COMPUTE = ("forward", "loss", "backward", "optimizer", "compute", "launch", "python_loss")

# A predicted gain whose high end lies under this share of the step is not reported: measuring a
# program against itself by turn-taking read 0.986–1.012, so no trial could confirm less.
NOISE_FLOOR_FRAC = 0.02


class Abstain(Exception):
    """Raised by ``check`` when a field it needs was not measured; the message says which."""


@dataclass(frozen=True)
class Gain:
    """Time per step that the fix can win, ns, and why that much. A negative ``low_ns``: what it may
    cost instead.

    ``components``: the budget components the time comes out of. Two findings that name the same
    component overlap; neither can win more than their components hold (the engine caps it).
    ``low_cuts``, ``high_cuts``: what the fix does to the device's step, as factors by the tags of
    :class:`~tdiag.evidence.replay.Replay`. Where a trace can be replayed, that tells the gain
    instead (:mod:`tdiag.diagnose.replayed`); an end without cuts stays, but within the high one.
    """

    low_ns: float
    high_ns: float
    why: str
    components: tuple[str, ...]
    low_cuts: Mapping[str, float] = field(default_factory=dict)
    high_cuts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A pattern that was found. Without a gain it is an advisory."""

    summary: str
    evidence: tuple[Measure, ...]
    fix: Fix
    gain: Gain | None = None
    at: Place | None = None


def where(at: Place | None) -> str:
    """`` at train.py:41``, or nothing when the place is unknown or a library's."""
    if at is None or not is_user_file(at.file):
        return ""
    name = at.file.replace("\\", "/").rsplit("/", 1)[-1]
    return f" at {name}:{at.line}" if at.line else f" in {name}"


def same_function(one: Place, other: Place) -> bool:
    """Both lie in the same function; a sampler may say ``Net.forward``, the probe ``forward``."""
    names = {x.function.rsplit(".", 1)[-1] for x in (one, other)}
    return one.file == other.file and len(names) == 1


def held(budget: Budget, *components: str) -> float:
    """What these components hold, ns per step."""
    return sum(budget.components_ns.get(name, 0) for name in components)
