"""Compares two programs in groups of fresh processes, until the answer is clear or the limit is
reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tdiag.duel.estimate import LOOKS, Estimate, Looks, Ratios, paired
from tdiag.duel.group import Pace, Taken, take_turns
from tdiag.duel.side import Program


@dataclass(frozen=True)
class Duel:
    """``groups``: (before, now) for each group of fresh processes."""

    ratios: Ratios
    groups: tuple[tuple[Taken, Taken], ...]

    @property
    def alone(self) -> bool:
        """Whether the device had no room for both sides: in some group they ran one after the
        other."""
        return any(before.alone for before, _ in self.groups)


def duel(
    before: Program,
    now: Program,
    folder: Path,
    threshold: float,
    *,
    pace: Pace | None = None,
    looks: Looks = LOOKS,
    progress: Callable[[int, Estimate | None], None] = lambda *_: None,
    clear: Callable[[Ratios, float], bool] = lambda r, threshold: r.answer(threshold) != "unclear",
) -> Duel:
    """Measure until the answer is ``clear`` at one of ``looks``, at most until the last of them.

    ``progress(groups, estimate)`` is called after each group; the estimate is None before the first
    look. Raises the errors of :func:`tdiag.duel.group.take_turns`.
    """
    groups: list[tuple[Taken, Taken]] = []
    while True:
        number = len(groups) + 1
        # The starting order changes too, because the first process may get the better memory.
        order = (before, now) if number % 2 else (now, before)
        alone = bool(groups) and groups[-1][0].alone
        taken = take_turns(order, folder / f"group-{number}", pace or Pace(), alone)
        groups.append((taken[0], taken[1]) if number % 2 else (taken[1], taken[0]))
        if not looks.due(len(groups)):
            progress(len(groups), None)
            continue
        found = _duel(groups)
        progress(len(groups), found.ratios.typical)
        if looks.last(len(groups)) or clear(found.ratios, threshold):
            return found


def _duel(groups: list[tuple[Taken, Taken]]) -> Duel:
    typical = [[y / x for x, y in zip(a.typical_ns, b.typical_ns, strict=True)] for a, b in groups]
    means = [[sum(b.mean_ns) / sum(a.mean_ns)] for a, b in groups]
    return Duel(Ratios(paired(typical), paired(means)), tuple(groups))
