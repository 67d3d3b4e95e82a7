"""Computes a predicted gain by replaying the traced steps without the finding's cost."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.replay import Replay
from tdiag.evidence.steps import Budget, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, NOISE_FLOOR_FRAC, Gain, held
from tdiag.rules.device_waits import ISSUING

WHY = "Replayed from the trace without this cost."
PROFILED_TIMES = Threshold(
    3.0,
    "times as long",
    "Measured: torch.profiler made a step of small ops take 1.7 to 3.0 times as long (medians,"
    " without and with shapes, stacks and memory, CPU, torch 2.13) (benchmarks/rule_constants.py"
    " replayed.PROFILED_TIMES).",
)
DEVICE_VARIES_FRAC = Threshold(
    0.1,
    "of the step",
    "Heuristic: by as much the device may have been faster in three traced steps than in the clean"
    " ones. Equal steps of an H100 took 7.0 to 7.3 ms, median and 90th percentile, by its clocks"
    " alone (docs/gpu-validation.md).",
)
# Idle time of the device that ends when the host runs ahead of it.
AHEAD = (*ISSUING, "sync", "python_loss")
HALVINGS = Threshold(
    6, "halvings", "By arithmetic: six halvings find the host's pace to within 2 % (1 ÷ 2⁶)."
)


def replayed(gain: Gain, evidence: Evidence, budget: Budget) -> Gain:
    """The gain from the replay, per clean step; unchanged if there is nothing to replay.

    A fix of one resource saves time only until another resource is the limit: kernels three times
    as fast save nothing if the host cannot launch them sooner. The range covers every host speed
    that may be the true one. If the step waits for workers, the low end also assumes that batches
    arrive no sooner than they did.
    """
    replay = evidence.get(Replay)
    if replay is None or not gain.high_cuts:
        return gain
    paces: tuple[float, ...] = (1.0, 1 / PROFILED_TIMES)
    if evidence.get(Steps) is not None:
        paces = _paces(replay, budget.step_ns * replay.steps)
    fed = _fed(evidence, budget)
    varying = tuple(tag for tag in gain.high_cuts if re.match("[hd]2[hd] pageable", tag))
    # If the copies' time varies, the clean step does not tell the host's pace.
    fastest = (1 / PROFILED_TIMES,) if varying else ()
    high = max(_at_best(replay, gain, pace, budget.step_ns, varying) for pace in (*paces, *fastest))
    low = gain.low_ns
    if gain.low_cuts:
        slowest = (1.0,) if varying else ()
        shares = [replay.win_frac(gain.low_cuts, pace=pace, fed=fed) for pace in (*paces, *slowest)]
        low = min(shares) * budget.step_ns
    why = f"{gain.why.rstrip('.')}. {WHY}"
    # A host that no longer waits runs ahead, and then the device no longer waits for the host.
    ahead = any(tag.startswith("wait") for tag in gain.high_cuts)
    ahead = ahead and high > held(budget, *gain.components)
    more = tuple(x for x in AHEAD if ahead and x not in gain.components)
    return replace(
        gain, low_ns=min(low, high), high_ns=high, why=why, components=(*gain.components, *more)
    )


def _at_best(
    replay: Replay, gain: Gain, pace: float, step_ns: float, varying: Collection[str]
) -> float:
    """ns per clean step. ``varying``: tags of the copies from or to pageable memory that go, whose
    time varies most: where the replayed steps are shorter than clean ones, the difference may be
    theirs, up to the time that they took in the trace."""
    before, after = (replay.end_ns(cuts, pace=pace) for cuts in ({}, gain.high_cuts))
    share = 1 - after / before if before else 0.0
    if not varying or share <= 0:
        return max(0.0, share * step_ns)
    copied = replay.spent_ns(varying) / replay.steps
    return max(share * step_ns, min(step_ns - after / replay.steps, share * step_ns + copied))


def _paces(replay: Replay, clean_ns: float) -> tuple[float, ...]:
    """The slowest and the fastest host (as factors on its times) with which the replayed steps take
    as long as clean ones. If the device is the limit, a faster host changes nothing. If traced
    steps take less time than clean ones, then because copies were faster in them (those from
    pageable memory vary most), and how much the profiler slowed the host is unknown."""
    if replay.end_ns({}) < (1 - NOISE_FLOOR_FRAC) * clean_ns:
        return (1.0, 1 / PROFILED_TIMES)
    low, high = 0.0, 1.0
    for _ in range(int(HALVINGS)):
        middle = (low + high) / 2
        if replay.end_ns({}, pace=middle) > clean_ns:
            high = middle
        else:
            low = middle
    quicker = min(high, 1 / PROFILED_TIMES)
    same = replay.end_ns({}, pace=quicker) >= (1 - DEVICE_VARIES_FRAC) * clean_ns
    return (high, quicker) if same else (high,)


def _fed(evidence: Evidence, budget: Budget) -> bool:
    """Whether batches come sooner when the step gets shorter."""
    if budget.share(*DATA_WAIT) < NOTICEABLE_FRAC:
        return True
    loaders = evidence.get(Loaders)
    train = loaders.train() if loaders else None
    return train is not None and train.num_workers == 0
