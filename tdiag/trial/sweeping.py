"""Which value of a sweep to measure next, so that the best one is found with few measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tdiag.model.trials import Tried
from tdiag.trial.candidate import Candidate

GOLDEN = 0.382  # (3 − √5) / 2: where golden-section search divides an interval


def following(count: int, speedups: Mapping[int, float]) -> int | None:
    """Of ``count`` values in ascending order, some of them measured: the next one's index; None
    where the fastest one's neighbours on both sides are measured: there the curve turns, if it has
    one peak. Of equal ones the smaller value counts as faster."""
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
    """The one of ``left`` to try next: the first, or of its sweep the value to measure next. None
    where that sweep's curve has turned."""
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
    """What is as the script has it already is as fast as that."""
    return 1.0 if found.answer == "not applied" else found.speedup
