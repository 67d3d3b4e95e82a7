"""A predicted gain, told by replaying the traced steps with the finding's cost removed."""

from __future__ import annotations

from dataclasses import replace

from tdiag.diagnose.costs import MODERATE_FRAC
from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Steps
from tdiag.evidence.replay import Replay
from tdiag.evidence.store import Evidence
from tdiag.rules.base import DATA_WAIT, Gain

WHY = "Replayed with the trace's own launches, waits and queues."
# torch.profiler made a step of small ops take 1.7 to 3.0 times as long (medians; without and with
# shapes, stacks and memory; CPU, torch 2.13).
PROFILED_HOST = 1 / 3
HALVINGS = 6  # of the interval in which the host's pace is looked for: to within 2 %


def replayed(gain: Gain, evidence: Evidence, budget: Budget) -> Gain:
    """The gain as the replay has it, per clean step; as it is where there is nothing to replay.

    What a fix takes off one resource is won only until another is the limit: kernels three times
    as fast win nothing while the host cannot launch them sooner. The range holds every pace of the
    host that may be the true one. The low end also has batches come no sooner than they did, where
    the step waits for workers.
    """
    replay = evidence.get(Replay)
    if replay is None or not gain.high_cuts:
        return gain
    paces: tuple[float, ...] = (1.0, PROFILED_HOST)
    if evidence.get(Steps) is not None:
        paces = _paces(replay, budget.step_ns * replay.steps)
    fed = _fed(evidence, budget)
    high = max(replay.win_frac(gain.high_cuts, pace=pace) for pace in paces) * budget.step_ns
    low = gain.low_ns
    if gain.low_cuts:
        shares = [replay.win_frac(gain.low_cuts, pace=pace, fed=fed) for pace in paces]
        low = min(shares) * budget.step_ns
    why = f"{gain.why.rstrip('.')}. {WHY}"
    return replace(gain, low_ns=min(low, high), high_ns=high, why=why)


def _paces(replay: Replay, clean_ns: float) -> tuple[float, ...]:
    """The slowest and the quickest host (factors on its times) with which these steps take as long
    as clean ones. Where the device is the limit, a quicker host changes nothing."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if replay.end_ns({}, pace=middle) > clean_ns:
            high = middle
        else:
            low = middle
    quicker = min(high, PROFILED_HOST)
    same = replay.end_ns({}, pace=quicker) >= (1 - MODERATE_FRAC) * clean_ns
    return (high, quicker) if same else (high,)


def _fed(evidence: Evidence, budget: Budget) -> bool:
    """Whether batches would come as much sooner as the step gets shorter."""
    if budget.share(*DATA_WAIT) < MODERATE_FRAC:
        return True
    loaders = evidence.get(Loaders)
    train = loaders.train() if loaders else None
    return train is not None and train.num_workers == 0
