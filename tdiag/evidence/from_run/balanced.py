"""Sampled stacks, weighted so that each phase has its share of the clean steps."""

from __future__ import annotations

from collections import defaultdict

from tdiag.evidence.from_run.sampled_frames import phase_shown
from tdiag.evidence.from_run.stack_samples import Samples
from tdiag.evidence.steps import Phases
from tdiag.model.threshold import Threshold

LEAST_SAMPLES = Threshold(
    20,
    "samples of a phase",
    "By arithmetic: the share of 20 samples is known to a quarter (1/√20); fewer say too little"
    " about how much longer the phase took.",
)


def balanced(samples: Samples, phases: Phases | None) -> Samples:
    """The training thread's stacks, weighted by the phase that they show (post-stratification: the
    shares of all steps are known from the clean ones).

    py-spy works on a core of its own while it reads a stack. Where torch computes on all cores,
    its phases take longer then and have too many samples; what runs on one core (making batches,
    Python, writing) has too few. In 65 trainings on two cores backward had 0.7 to 2.0 times its
    clean share (0.9 to 1.4 in four of five), and a loader's ``__next__`` 0.3 to 0.9 times.
    """
    known = phases.shown_frac if phases else {}
    shown = [phase_shown(frames) for frames, _ in samples.training]
    weight_of: dict[str, float] = defaultdict(float)
    for phase, (_, weight) in zip(shown, samples.training, strict=True):
        weight_of[phase if phase in known else ""] += weight
    least = LEAST_SAMPLES / max(len(samples.training), 1) * sum(weight_of.values())
    clean = {phase: known[phase] for phase in known if weight_of[phase] >= least}
    rest = sum(weight for phase, weight in weight_of.items() if phase not in clean)
    rest_frac = 1 - sum(clean.values())
    if not clean or rest < least or rest_frac <= 0:
        return samples
    factors = {phase: frac / weight_of[phase] for phase, frac in clean.items()}
    return samples._replace(
        training=[
            (frames, weight * factors.get(phase, rest_frac / rest))
            for phase, (frames, weight) in zip(shown, samples.training, strict=True)
        ]
    )
