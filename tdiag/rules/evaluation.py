"""The kind of training (one objective, an agent, adversarial models), and its evaluation."""

from __future__ import annotations

from collections import defaultdict

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Phases, StepHistory, Steps
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Flags, Modules, Optimizers
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, where
from tdiag.rules.callers import frac_of_frames
from tdiag.rules.environments import observations_kept

LARGE_FRAC = Threshold(
    0.2,
    "of the time",
    "Heuristic: three times the 6 % that an evaluation on a fifth of the data takes once an epoch,"
    " forward only (a third of a step).",
)
# Methods and functions that draw an action or a token.
DRAWS = ("sample", "sample_n")
DRAWN_WITH = ("torch.multinomial", "torch.bernoulli", "torch.normal")
DRAWS_A_STEP = Threshold(
    1.0,
    "draws per step",
    "By definition: an agent chooses an action for each thing it learns from. A sampler that"
    " draws an epoch's indices at once does so in one step of many.",
)
ACTS_A_STEP = Threshold(
    8.0,
    "calls of the trained model without gradients per step",
    "Heuristic: values of the states and next states of a batch, for one or two models, take fewer;"
    " between them the batch may be drawn from memory.",
)

SEEN_ONCE = "nothing, because only one was seen and it may be rare"  # of a gain's low end


def fits_data(
    flags: Flags | None, calls: Calls | None, optimizers: Optimizers | None, phases: Phases | None
) -> bool:
    """Whether the training fits one objective to given data. False for an agent, which gathers its
    own data, and for models trained against each other, whose targets keep moving."""
    return not (acts(flags, calls) or adversarial(optimizers, phases))


def acts(flags: Flags | None, calls: Calls | None) -> bool:
    """Whether an agent is trained: actions are drawn, or a library of environments is imported."""
    return bool(flags and flags.agent_library) or drawn(calls) >= DRAWS_A_STEP


def rolls_out(phases: Phases, flags: Flags | None, calls: Calls | None) -> bool:
    """Whether most of the time before the forward gathers data to train on: it lies between two
    calls of an agent, which draws actions, or is the model that is trained, called again and again
    (self-play, a search)."""
    again = phases.learners_acts >= ACTS_A_STEP
    return phases.rolls_out and (again or acts(flags, calls))


def adversarial(optimizers: Optimizers | None, phases: Phases | None) -> bool:
    """Whether there are several optimizers, each with its own backward, as in a GAN. Several
    optimizers for the parameters of one model follow the same backward."""
    several = len(optimizers.optimizers) if optimizers else 0
    return several > 1 and phases is not None and phases.counts.get("backward", 0.0) >= several


def evaluation_place(loaders: Loaders | None, modules: Modules | None) -> Place | None:
    """The line that reads the evaluation's DataLoader, or that creates it; without one, the line
    that calls the largest model."""
    for loader in loaders.loaders if loaders else ():
        if loader.role == "eval":
            return loader.iterated_at or loader.created_at
    called = [module for module in modules.modules if module.evaluated_at] if modules else []
    return max(called, key=lambda module: module.parameters).evaluated_at if called else None


def line_in_framework(trees: CallTrees | None) -> Place | None:
    """The line of the user's function that a framework's evaluation calls (``validation_step``)
    through which most of its samples go; None without one that more than half go through."""
    frames = trees.training if trees else ()
    shares: dict[Place, float] = defaultdict(float)
    within: list[bool] = []  # called by a framework's evaluation, with no line of the user between
    for frame in frames:
        above = frame.parent >= 0 and within[frame.parent]
        if above and frame.user:
            shares[Place(file=frame.file, line=frame.line, function=frame.name)] += frame.frac
        within.append(not frame.user and (above or frame.evaluates))
    most = max(shares, key=lambda at: shares[at], default=None)
    whole = sum(shares.values())
    return most if most is not None and shares[most] > MAJORITY_FRAC * whole else None


def collecting_frac(trees: CallTrees | None) -> float:
    """Share of the samples in which a framework collects the outputs of an evaluation."""
    return frac_of_frames(lambda frame: frame.collects, trees)


def over(place: Place | None, loaders: Loaders | None) -> str:
    """`` over the DataLoader at train.py:47``, `` at train.py:60``, or nothing."""
    known = loaders.loaders if loaders else ()
    made = any(loader.role == "eval" and loader.created_at == place for loader in known)
    return f"{' over the DataLoader' if made and place else ''}{where(place)}"


def gathers(phases: Phases | None, calls: Calls | None, trees: CallTrees | None) -> bool:
    """Whether what looks like an evaluation is a rollout: it draws actions or tokens to train on,
    and has no loader and no loss. Window ``calls`` watches a few steps, and many agents gather once
    in dozens of steps, so draws that only the sampled stacks saw count too. What draws otherwise,
    by NumPy, keeps what it observes in an environment."""
    if phases is None or phases.eval_evident:
        return False
    return drawn(calls) > 0 or drawing_frac(trees) > 0 or observations_kept(trees)


def drawn(calls: Calls | None) -> float:
    """Draws from a distribution, per step of window ``calls``."""
    rows = calls.rows if calls else ()
    drawing = [
        row.calls
        for row in rows
        if ("torch/distributions/" in row.at.file and row.at.function in DRAWS)
        or any(f" {name}>" in row.at.function for name in DRAWN_WITH)
    ]
    return max(drawing, default=0.0)


def drawing_frac(trees: CallTrees | None) -> float:
    """Share of the training thread's samples that draw from a distribution."""
    frames = trees.training if trees else ()
    return sum(
        frame.frac
        for frame in frames
        if "torch/distributions/" in frame.file and frame.name.rpartition(".")[2] in DRAWS
    )


def abstain_unless_epoch_ended(history: StepHistory | None, what: str) -> None:
    """If the clean steps have no ``what``, only the end of an epoch among them shows that there is
    none, because most programs evaluate and save there. Raises Abstain."""
    clean = clean_span(history)
    if history is None or clean is None:
        return
    if not any(clean[0] < began < clean[1] for began in history.epochs_ns):
        raise Abstain(f"no {what} and no end of an epoch fell into the clean steps")


def seen_once(phase: str, phases: Phases, steps: Steps | None, history: StepHistory | None) -> bool:
    """Whether it happened once in the clean steps and no epoch began among them: then its frequency
    is unknown. A second occurrence would show it, and so would an epoch, to which it belongs."""
    if steps is None or round(phases.counts.get(phase, 0.0) * steps.count) != 1:
        return False
    clean = clean_span(history)
    return not (history and clean and any(clean[0] < x < clean[1] for x in history.epochs_ns))


def clean_span(history: StepHistory | None) -> tuple[int, int] | None:
    """Begin of the first and end of the last clean step; None where no step is clean."""
    if history is None or not any(history.clean):
        return None
    kept = [i for i, clean in enumerate(history.clean) if clean]
    return history.end_ns[kept[0]] - history.durations_ns[kept[0]], history.end_ns[kept[-1]]
