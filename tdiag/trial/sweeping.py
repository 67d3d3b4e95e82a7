"""Chooses the next value of a sweep, so that few measurements find the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tdiag.model.trials import Tried
from tdiag.trial.candidate import Candidate

GOLDEN = 0.382  # (3 − √5) / 2: where golden-section search divides an interval


def following(count: int, speedups: Mapping[int, float]) -> int | None:
    """Of ``count`` values in ascending order, some of them measured: the next index to measure;
    None if both neighbours of the fastest one are measured, because a curve with one peak turns
    there. Of equal values the smaller one counts as faster."""
    if not speedups:
        return int((count - 1) * GOLDEN)
    best = max(speedups, key=lambda i: (speedups[i], -i))
    below = best - 1 - max((i for i in speedups if i < best), default=-1)
    above = min((i for i in speedups if i > best), default=count) - best - 1
    if not below and not above:
        return None
    if above >= below:
        return best + 1 + int((above - 1) * GOLDEN)
    return best - 1 - int((below - 1) * GOLDEN)


def pick(left: Sequence[Candidate], tried: Sequence[tuple[Candidate, Tried]]) -> Candidate | None:
    """The candidate of ``left`` to try next: the first, or the next value of its sweep. None if
    that sweep's curve has turned."""
    first = left[0]
    if not first.sweep:
        return first
    mine = [(one, found) for one, found in tried if one.sweep == first.sweep]
    values = sorted([one for one, _ in mine] + [c for c in left if c.sweep == first.sweep],
                    key=_value)  # fmt: skip
    index = following(len(values), {values.index(one): _speedup(found) for one, found in mine})
    return None if index is None else values[index]


def _value(candidate: Candidate) -> float:
    return float(candidate.changes[0][1])


def _speedup(found: Tried) -> float:
    """A value that the script already has counts as unchanged speed."""
    return 1.0 if found.answer == "not applied" else found.speedup
