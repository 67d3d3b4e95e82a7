"""What kind of training this is, for advice that holds for one kind and not for another."""

from __future__ import annotations

from tdiag.evidence.kinds import Calls, Flags, Optimizers, Phases
from tdiag.rules.evaluation import drawn

# By definition: an agent that learns from what it did chooses an action for each thing it learns
# from. A sampler that draws an epoch's indices at once does so in one step of many.
DRAWS_A_STEP = 1.0


def fits_data(
    flags: Flags | None, calls: Calls | None, optimizers: Optimizers | None, phases: Phases | None
) -> bool:
    """One objective is fitted to given data. Not so for an agent that gathers its own data, nor for
    models that are trained against each other: what each of them fits moves all the time."""
    return not (acts(flags, calls) or adversarial(optimizers, phases))


def acts(flags: Flags | None, calls: Calls | None) -> bool:
    """An agent is trained: it draws actions, or a library of environments is imported."""
    return bool(flags and flags.agent_library) or drawn(calls) >= DRAWS_A_STEP


def adversarial(optimizers: Optimizers | None, phases: Phases | None) -> bool:
    """Several optimizers, with a backward for each of them at least, as in a GAN. Several that
    share out the parameters of one model follow the same backward."""
    several = len(optimizers.optimizers) if optimizers else 0
    return several > 1 and phases is not None and phases.counts.get("backward", 0.0) >= several
