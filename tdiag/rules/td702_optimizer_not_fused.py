"""The optimizer updates its parameters call by call

## What it measures
The share of the step spent inside the optimizer's own step (with a device: its idle time there and
the optimizer's kernels), for torch optimizers whose fused form exists and is off, and the number of
tensors they update.

## Why it is slow
Without the fused form every tensor takes several calls (Adam: a dozen), each of which passes over
its memory once. The fused form makes one pass per tensor.

## What to do
Set `fused=True` in the optimizer's constructor.

## How the gain is computed
CPU: from the optimizer's time and the measured gain of `fused=True`: Adam and AdamW 2.75 to 7.2
times, Adagrad 2.7 to 5.8 times. SGD loops with 1 to 5 calls per tensor, by its settings; the calls'
fixed cost shrinks 1.4 to 2.1 times as much as their number. The rest shrinks 0.7 to 1.1 times as
much as the passes over memory (1.6 times fewer with momentum, 2.2 with weight decay besides, none
for plain SGD). Device: at best all of its idle time during the optimizer, and the part of the
optimizer's kernels that fewer passes over memory save (replayed if the trace allows it); at worst
nothing.

## When this advice is wrong
Plain SGD of large tensors is slower when fused: there this rule stays silent. Torch before 2.4 has
no fused form on a CPU, and before 2.3 none for SGD. Results differ in the last bits. TD710 covers
optimizers without this switch. Optimizers of sparse gradients are left out: no fused form accepts
them.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import EmbeddingTables, Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules import sgd
from tdiag.rules.base import Found, Gain, count, held, ns, text, version, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import budget, environment, optimizers
from tdiag.rules.td751_groups_of_one_tensor import mostly_alike
from tdiag.rules.thresholds import MIN_OPTIMIZER_FRAC
from tdiag.units import per_step

CODE = "TD702"
NAME = "optimizer-not-fused"
CLASS = "overhead"
AFTER = {
    "TD717": "parameters that nobody trains need no updates",
    "TD723": "the optimizer's calls wait for the interpreter that another thread holds",
    "TD738": "one tensor instead of many needs few calls, fused or not",
}

_MEASURED = "Measured, fused=True against a loop, torch 2.13, one thread, 256 to 1,048,576 numbers."
ADAM_LOW = Threshold(
    2.75,
    "times as fast",
    f"{_MEASURED} AdamW gained 3.5× at least (benchmarks/rule_constants.py td702).",
)
ADAM_HIGH = Threshold(
    7.2,
    "times as fast",
    f"{_MEASURED} AdamW gained 7.1× at most (benchmarks/rule_constants.py td702).",
)
ADAGRAD_LOW = Threshold(
    2.7,
    "times as fast",
    f"{_MEASURED} Large tensors gain least (benchmarks/rule_constants.py td702).",
)
ADAGRAD_HIGH = Threshold(
    5.8,
    "times as fast",
    f"{_MEASURED} Small tensors gain most (benchmarks/rule_constants.py td702).",
)
ADAM_PASSES = Threshold(
    0.61,
    "of the kernels' time",
    "By arithmetic, numbers read or written per parameter, by the source of torch.optim's foreach"
    " form and of its fused kernel: AdamW 18 and 7; 1 − 7 ÷ 18 = 0.61.",
)
# Torch, and the standard library, which torch calls: ``functools`` in each scheduled step.
_TORCH = re.compile(r"(^|/)torch/|/python3\.\d+/(?!(site|dist)-packages/)")
# Optimizers of torch with a fused form.
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
# Adagrad's fused form is only for the CPU (torch.optim.Adagrad's documentation).
FUSED_ONLY_ON_CPU = ("Adagrad",)
FUSED_ON_CPU_SINCE = Threshold(
    4,
    "(minor release of torch 2)",
    "The torch 2.4 release notes announce fused optimizers on the CPU.",
)


def check(
    budget: Budget,
    optimizers: Optimizers,
    environment: Environment,
    phases: Phases | None,
    kernels: Kernels | None,
    device: DeviceTime | None,
    tables: EmbeddingTables | None,
    trees: CallTrees | None,
    dispatch: Dispatch | None,
) -> Found | None:
    if _sparse(tables, optimizers):
        return None
    # A fused form updates one group at a time: groups of one tensor come first (TD751).
    joined = (x for x in optimizers.optimizers if not mostly_alike(x))
    slow = [x for x in joined if _unfused(x, budget.has_device)]
    updating, source = held(budget, "optimizer"), "budget"
    working = _kernels_ns(budget, kernels, device)
    if phases is not None and phases.update_ns is not None and not budget.has_device:
        updating, source = phases.update_ns, "baseline"  # without gradient clipping
        sampled = updating_frac(trees) * budget.step_ns if trees else 0.0
        # A framework's step also calls the user's callbacks.
        if 0 < sampled < MAJORITY_FRAC * updating:
            updating, source = sampled, "sample"
    if not slow or updating + working < MIN_OPTIMIZER_FRAC * budget.step_ns:
        return None
    if not budget.has_device and version(environment.torch) < (2, FUSED_ON_CPU_SINCE):
        return None
    unfused = _together(slow)
    cuts: dict[str, float] = {}
    if budget.has_device:  # foreach is its default, and the device may idle for other reasons
        fewer = 1 - 1 / sgd.fewer_passes(unfused) if unfused.name == "SGD" else ADAM_PASSES
        gain = (0.0, updating + fewer * working)
        basis = (
            "high end: no device idle time during the optimizer, and fewer passes over memory; low"
            " end: nothing, if the device idles for other reasons."
        )
        cuts = {"host optimizer": 0.0, "optimizer": 1 - fewer}
    else:
        gain, basis = _on_cpu(unfused, updating, dispatch)
        if gain[0] <= 0:  # the fused form may be the slower one
            return None
    return Found(
        summary=(
            f"{unfused.name} updates {unfused.tensors} tensors without its fused form. This takes"
            f" {per_step(updating + working, budget.step_ns)}."
        ),
        evidence=(
            ns("optimizer step", updating, source),
            *((ns("optimizer kernels", working, "trace"),) if working else ()),
            count("parameter tensors", unfused.tensors, "probe"),
            text("fused", str(unfused.config.get("fused")), "probe"),
        ),
        fix=Fix(
            f"Set fused=True{' instead of foreach=True' if unfused.config.get('foreach') else ''}"
            f" in torch.optim.{unfused.name}{where(unfused.created_at)}.",
            "review",
            "optimizer.fused",
            action=f"Switch on the fused form of {unfused.name}",
            code=f"optimizer = torch.optim.{unfused.name}(model.parameters(), ..., fused=True)",
        ),
        gain=Gain(
            *gain,
            basis,
            ("optimizer", "compute") if working else ("optimizer",),
            high_cuts=cuts,
        ),
        at=unfused.created_at,
    )


def _together(slow: list[Optimizer]) -> Optimizer:
    """The largest of them, with the tensors of all of its kind: a GAN has two."""
    largest = max(slow, key=lambda x: x.tensors)
    return replace(largest, tensors=sum(x.tensors for x in slow if x.name == largest.name))


def updating_frac(trees: CallTrees) -> float:
    """The share of the training thread's samples in torch's optimizers, without what these call
    outside torch: a closure, hooks and, in Lightning's step, the whole training step."""
    inside: list[bool] = []
    share = 0.0
    for frame in trees.training:
        above = frame.parent >= 0 and inside[frame.parent]
        torchs = not frame.user and _TORCH.search(frame.file) is not None
        inside.append(torchs and (above or "torch/optim/" in frame.file))
        if inside[-1] != above:
            share += frame.frac if inside[-1] else -frame.frac
    return share


def _kernels_ns(budget: Budget, kernels: Kernels | None, device: DeviceTime | None) -> float:
    """The optimizer's kernels, ns per clean step; 0 on a CPU."""
    if kernels is None or device is None:
        return 0.0
    traced = sum(x.device_ns for x in kernels.families if x.family == "optimizer")
    return traced * busy_scale(budget, device)


def _unfused(optimizer: Optimizer, has_device: bool) -> bool:
    if has_device and optimizer.name in FUSED_ONLY_ON_CPU:
        return False
    return optimizer.name in FUSED and optimizer.has_fused and not optimizer.config["fused"]


def _sparse(tables: EmbeddingTables | None, optimizers: Optimizers) -> bool:
    """An embedding's gradient is sparse, which no fused form accepts."""
    apart = any(x.name == "SparseAdam" for x in optimizers.optimizers)
    return tables is not None and any(x.sparse for x in tables.tables) and not apart


def _on_cpu(
    optimizer: Optimizer, updating: float, dispatch: Dispatch | None
) -> tuple[tuple[float, float], str]:
    """The least and the most that its fused form saves, ns per step, and why."""
    if optimizer.name == "SGD":
        few, passes = sgd.calls(optimizer), sgd.fewer_passes(optimizer)
        return sgd.saved_ns(optimizer, updating, dispatch), (
            f"1 call per tensor instead of {few:.0f} and {passes:.1f} times fewer passes over"
            " memory, each by how much it gained in measurements."
        )
    adagrad = optimizer.name == "Adagrad"
    low, high = (ADAGRAD_LOW, ADAGRAD_HIGH) if adagrad else (ADAM_LOW, ADAM_HIGH)
    return (updating * (1 - 1 / low), updating * (1 - 1 / high)), (
        f"fused {optimizer.name} was {low} to {high} times as fast in measurements."
    )


def fires() -> Evidence:
    step = budget(forward=10, backward=20, optimizer=12)
    return Evidence().add(step, optimizers("Adam", fused=None), environment())


def clear() -> Evidence:
    """The same optimizer, fused."""
    step = budget(forward=10, backward=20, optimizer=12)
    return Evidence().add(step, optimizers("Adam", fused=True), environment())
