"""The kind of training, for advice that holds for one kind only."""

from __future__ import annotations

from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Flags, Optimizers
from tdiag.model.threshold import Threshold
from tdiag.rules.evaluation import drawn

DRAWS_A_STEP = Threshold(
    1.0,
    "draws per step",
    "By definition: an agent chooses an action for each thing it learns from. A sampler that"
    " draws an epoch's indices at once does so in one step of many.",
)


def fits_data(
    flags: Flags | None, calls: Calls | None, optimizers: Optimizers | None, phases: Phases | None
) -> bool:
    """The training fits one objective to given data. False for an agent, which gathers its own
    data, and for models trained against each other, whose targets keep moving."""
    return not (acts(flags, calls) or adversarial(optimizers, phases))


def acts(flags: Flags | None, calls: Calls | None) -> bool:
    """An agent is trained: actions are drawn, or a library of environments is imported."""
    return bool(flags and flags.agent_library) or drawn(calls) >= DRAWS_A_STEP


def adversarial(optimizers: Optimizers | None, phases: Phases | None) -> bool:
    """Several optimizers, each with a backward of its own, as in a GAN. Several optimizers for the
    parameters of one model follow the same backward."""
    several = len(optimizers.optimizers) if optimizers else 0
    return several > 1 and phases is not None and phases.counts.get("backward", 0.0) >= several
