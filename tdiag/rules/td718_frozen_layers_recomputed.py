"""Frozen layers compute the same features every epoch

## What it measures
Calls of the forward pass whose result depends only on the batch and on weights that nothing trains:
a pretrained encoder below a new head, a teacher, the encoders of a diffusion model. Results are
followed from call to call in the counted steps.

## Why it is slow
If a sample reaches the frozen layers unchanged in every epoch, they compute the same features for
it each time. Computing them once is enough.

## What to do
Compute the features once, before training, with the frozen layers in evaluation mode, and train on
the features. The inputs are then not loaded or preprocessed again either.

## How the gain is computed
The time of each phase × the frozen calls' share of the time of its calls. It is the gain from
the second epoch on. High end: all of it. Low end: nine tenths of it, as twins saved that keep what
an epoch makes; nothing if dropout or batch norm is active among these layers, or if the features do
not fit into memory. The saved loading is not counted.

## When this advice is wrong
If inputs are augmented at random: the rule does not report runs in which it can see the random
numbers (drawn in a fetch, or by torch or `random` in the loop). If the frozen layers will be
trained later (gradual unfreezing).
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Startup, System
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import FrozenLayers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, bytes_, count, ns, text, where
from tdiag.rules.call_parts import part_of_phases
from tdiag.rules.callers import module_called_at
from tdiag.rules.examples import budget, loaders, op_line, ops, phases, system
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, REPEATED_LOW_FRAC, one_epoch
from tdiag.units import duration, percent, size

CODE = "TD718"
NAME = "frozen-layers-recomputed"
CLASS = "compute"
UNTRIED = "training on features instead of samples needs another data set and script"


def check(
    budget: Budget,
    ops: Ops,
    phases: Phases,
    frozen: FrozenLayers | None,
    loaders: Loaders,
    system: System | None,
    history: StepHistory | None,
    startup: Startup | None,
    trees: CallTrees | None,
) -> Found | None:
    loader = loaders.train()
    if frozen is None or frozen.random or frozen.changing:
        return None
    if loader is None or one_epoch(history, startup):
        return None
    if not loader.dataset_len or not loader.samples:
        return None
    spent = part_of_phases(phases, ops, lambda line: line.frozen_ns)
    saved = sum(spent.values())
    if not saved:
        return None
    if loader.random is None:
        raise Abstain("random numbers drawn in fetches were not recorded")
    if loader.random:
        return None
    lines = [line for line in ops.lines if line.phase in spent]
    worst = max(lines, key=lambda line: line.frozen_ns)
    batches = phases.batches.get(loader.id, 1.0) if phases.batches else 1.0
    whole = frozen.feature_bytes / (loader.samples * batches) * loader.dataset_len
    free = system.ram_available_bytes if system else None
    fits = free is None or whole <= RAM_FOR_DATA_FRAC * free
    names = ", ".join(frozen.names) or "frozen layers"
    # Where the script calls them: the features are computed once instead of there.
    spots = {line.at.spot for line in lines if line.frozen_ns}
    at = module_called_at(spots, trees) or worst.at
    sure = fits and not frozen.modes
    return Found(
        summary=(
            f"{names} is frozen and takes {percent(saved / budget.step_ns)} of the step"
            f"{where(at)}. The samples are the same in every epoch, so it computes the same"
            " features again."
        ),
        evidence=(
            *(() if budget.has_device else (ns("frozen calls", saved, "baseline"),)),
            text("random numbers drawn", "no", "fetch"),
            count("samples of the dataset", loader.dataset_len, "probe"),
            bytes_("features of all samples", whole, "ops"),
            *((text("active in training", ", ".join(frozen.modes), "ops"),) * bool(frozen.modes)),
        ),
        fix=_fix(f"{names}{where(at)}", whole, frozen.modes),
        gain=None
        if budget.has_device  # calls return before the device has done their work
        else Gain(
            saved * REPEATED_LOW_FRAC if sure else 0.0,
            saved,
            f"from the second epoch on; high end: the {duration(saved)} of its calls; low end: "
            + (
                f"{percent(REPEATED_LOW_FRAC)} of it."
                if sure
                else "nothing, if they must be computed."
            ),
            tuple(spent),
        ),
        at=at,
    )


def _fix(layers: str, whole: float, modes: tuple[str, ...]) -> Fix:
    active = f" They contain active {' and '.join(modes)}: use evaluation mode." if modes else ""
    return Fix(
        f"Compute the features of {layers} once, before training, and train on them ({size(whole)}"
        f" for all samples).{active}",
        "review",
        action="Compute the frozen layers' features once",
        code="""\
frozen.eval()  # the frozen layers
with torch.no_grad():
    features = torch.cat([frozen(x) for x, *_ in DataLoader(dataset, batch_size)])
# train the rest on (features, targets)""",
    )


def fires() -> Evidence:
    return _probing(random=False)


def clear() -> Evidence:
    """The samples are augmented at random."""
    return _probing(random=True)


def _probing(*, random: bool) -> Evidence:
    encoder = op_line(20, "forward", 40, elapsed_ns=54e6, frozen_ns=54e6)
    head = op_line(31, "forward", 4, elapsed_ns=6e6)
    step = budget(data_wait=2, forward=60, backward=8, optimizer=2)
    return Evidence().add(
        step,
        phases(data_wait=2, forward=60, backward=8, optimizer=2),
        ops(encoder, head),
        FrozenLayers(names=("Classifier.encoder",), feature_bytes=64 * 2048),
        loaders(random=random, samples=64.0),
        system(),
    )
