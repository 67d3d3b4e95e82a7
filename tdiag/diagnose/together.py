"""The gain of all fixes together, which is never the sum of their separate gains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tdiag.model.diagnosis import Component, Finding, Speedup


def together(findings: Iterable[Finding], budget: Sequence[Component]) -> Speedup | None:
    """How many times faster the step is with every fix that has a measured cost: all at their low
    ends, all at their high ends. None with fewer than two, or if a finding names no components."""
    fixes = [finding for finding in findings if not finding.advisory]
    if len(fixes) < 2 or not budget or not all(fix.components for fix in fixes):
        return None
    ends = [fix.wins or Speedup(1.0, 1.0) for fix in fixes]
    low = _all_at_once(fixes, [end.low for end in ends], budget)
    return Speedup(round(low, 3), round(_all_at_once(fixes, [x.high for x in ends], budget), 3))


def _all_at_once(
    fixes: Sequence[Finding], speedups: Sequence[float], budget: Sequence[Component]
) -> float:
    """A fix alone saves a share of its budget components. It saves the same share of what the fixes
    before it have left of them: two fixes that halve the forward pass leave a quarter.

    A speed-up larger than the components allow means that the rest of the step gets faster too
    (warm caches): only the largest such factor counts, once.
    """
    step = sum(part.ns for part in budget)
    left = {part.component: float(part.ns) for part in budget}
    rest_faster = 1.0
    for fix, times in zip(fixes, speedups, strict=True):
        names = [name for name in fix.components if name in left]
        alone = sum(part.ns for part in budget if part.component in names)
        saved = min(step * (1 - 1 / times), alone)
        for name in names if alone else ():
            left[name] *= 1 - saved / alone
        rest_faster = max(rest_faster, times * (step - saved) / step)
    return rest_faster * step / max(1.0, sum(left.values()))
