"""What a cheaper fetch gives back to a training on a CPU: the cores that its workers take, or the
collections of its objects."""

from __future__ import annotations

from dataclasses import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import MODEL_PHASES, Gain, held
from tdiag.rules.feed import Feed, feed_of, share_of_rank
from tdiag.rules.own_workers import computing_lost
from tdiag.units import duration


def with_cores_back(gain: Gain, evidence: Evidence, budget: Budget) -> Gain:
    """The gain with the computing time that waits for cores of the loader's own workers, in
    proportion to the work that the fix spares them. Without workers: with the garbage collections
    during fetches, at most in proportion, and at least none, because other work may cause them."""
    loaders, system, threads = evidence.get(Loaders), evidence.get(System), evidence.get(Threads)
    if not gain.fetches or loaders is None or system is None:
        return gain
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, evidence.get(Phases), system)
    if fed is None:
        return gain
    if not fed.loader.num_workers:
        return _with_collections(gain, evidence, budget, fed)
    least, most = computing_lost(
        budget, system, fed, threads, evidence.get(Roof), evidence.get(Work)
    )
    if not most:
        return gain
    low = least * _spared(gain.low_ns, fed)
    # A gain as large as the wait may spare more than that.
    high = most * (1.0 if gain.high_ns >= fed.wait else _spared(gain.high_ns, fed))
    why = (
        f"{gain.why.rstrip('.')}. And {duration(low)} to {duration(high)} of computing that waits"
        " for the workers' cores."
    )
    return replace(
        gain, low_ns=gain.low_ns + low, high_ns=gain.high_ns + high, why=why,
        components=(*gain.components, *MODEL_PHASES),
    )  # fmt: skip


def _with_collections(gain: Gain, evidence: Evidence, budget: Budget, fed: Feed) -> Gain:
    phases = evidence.get(Phases)
    collected = min(phases.gc_in_wait_ns, held(budget, "gc")) if phases else 0.0
    if "gc" in gain.components or collected < NOTICEABLE_FRAC * budget.step_ns or not fed.wait:
        return gain
    high = collected * min(1.0, max(0.0, gain.high_ns) / fed.wait)
    why = f"{gain.why.rstrip('.')}. And up to {duration(high)} of garbage collection in fetches."
    return replace(gain, high_ns=gain.high_ns + high, why=why, components=(*gain.components, "gc"))


def _spared(gain_ns: float, fed: Feed) -> float:
    """The share of a fetch, 0..1, that this gain spares: with workers the step shrinks in
    proportion (``Feed.gain_of_saving``)."""
    return min(1.0, max(0.0, gain_ns) / fed.step)
