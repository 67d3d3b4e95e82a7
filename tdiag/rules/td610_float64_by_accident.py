"""The model computes in float64

## What it measures
Bytes per parameter over all modules (8 means `float64`), the dtypes of the batches, and the clean
time of the computing phases. On a CPU also: traced `float64` operations that take at least 5 % of
the step in a model with narrower parameters. One buffer from NumPy is enough to make all later
results `float64`. Programs that decompose matrices or solve systems in `float64` are left out:
with as many digits as `float32` has, these fail or lose accuracy for ill-conditioned matrices.

## Why it is slow
A float64 value takes twice the bytes, so half as many fit a vector register, a cache or a second of
memory traffic. Most GPUs have a 32nd or 64th as many float64 units as float32 units. NumPy makes
`float64` by default, and models are often widened to match the data.

## What to do
Make the data `float32` (`.float()`, `dtype=torch.float32`, `array.astype("float32")`) and leave the
model in torch's default dtype.

## How the gain is computed
CPU: `float32` halves the bytes and doubles the vector width, so what calls do beyond their fixed
cost is at least 2 times as fast, the update perhaps not; at most 3.9 times in measurements. Device:
at best `float32` is as many times as fast as the data sheet says, but at least twice, 64 times if
that is unknown (replayed if the trace allows it); at worst nothing changes, because kernels are too
short. Matrix products in `float32` use TF32 only where the program allows it, convolutions unless
it forbids it. If calls take no longer than their fixed cost, nothing is predicted; if that was not
measured, there is no low end. If only a part of the model is `float64`: the same for its share of
the traced operations' time, with half the low end.

## When this advice is wrong
Long sums and some physics need `float64`: compare the losses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tdiag.evidence.device import COMPUTE_FAMILIES
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.roofline import WITHOUT_TF32, OpWork, Roof, Work, convolves
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.evidence.training import Layers, Module, Modules, Settings
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import MODEL_PHASES, Abstain, Found, Gain, count, frac, held, ns, text, where
from tdiag.rules.examples import MB, MS, at, budget, loaders, module, op_line, ops, phases
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, fixed_cost
from tdiag.rules.syntax import tree_of
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step

CODE = "TD610"
NAME = "float64-by-accident"
CLASS = "compute"

WIDE_BYTES = Threshold(
    8, "bytes per parameter", "By definition of IEEE 754 binary64; complex64 is as wide."
)
FASTER_LOW = Threshold(
    2.0, "times as fast", "By definition of the types: half the bytes and twice the vector width."
)
FASTER_HIGH = Threshold(
    3.9,
    "times as fast",
    "Measured, float64 against float32 with backward and SGD, torch 2.13, one core: dense layers"
    " and convolutions 2.3×, GELU, tanh and softmax 3.1×, LSTM 3.9× (benchmarks/rule_constants.py"
    " td610).",
)
DEVICE_FASTER_HIGH = Threshold(
    64.0,
    "float32 units per float64 unit",
    "CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions, compute capability"
    " 8.6 and 8.9; 8.0 and 9.0 have half as many.",
)
# Ops that decompose a matrix or solve a system, by a part of their name.
_SOLVES = (
    "cholesky", "linalg_eig", "svd", "lu_factor", "linalg_lu", "linalg_qr", "linalg_inv", "inverse",
    "_solve", "lstsq",
)  # fmt: skip
# How code asks for float64: `x.double()`, `torch.float64`, `dtype="float64"`.
ASKS = ("double", "float64", "DoubleTensor")


def check(
    budget: Budget,
    modules: Modules,
    loaders: Loaders | None,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    layers: Layers | None,
    work: Work | None,
    settings: Settings | None,
    roof: Roof | None,
) -> Found | None:
    if work is not None and _solves(work):
        raise Abstain("matrices are decomposed in float64, for which float32 may be too coarse")
    mine = [x for x in modules.modules if x.parameters]
    parameters = sum(x.parameters for x in mine)
    narrow = layers is not None and bool(layers.dtypes) and "float64" not in layers.dtypes
    if narrow or not mine or sum(x.parameter_bytes for x in mine) != WIDE_BYTES * parameters:
        # complex64 takes as many bytes as float64
        return _of_a_part(budget, work, phases, ops, dispatch, roof, bool(mine))
    loader = loaders.train() if loaders else None
    dtypes = loader.batch_dtypes or {} if loader else {}
    if any(name.startswith("complex") for name in dtypes):
        return None
    largest = max(mine, key=lambda x: x.parameters)
    place = _set(settings) or _spelled(largest, loader) or _place(largest, loader)
    computing = held(budget, "compute") if budget.has_device else held(budget, *MODEL_PHASES)
    gain = _gain(budget, computing, phases, ops, dispatch, roof, _tf32(settings, work))
    return Found(
        summary=(
            f"{largest.name} computes in float64 ({WIDE_BYTES} bytes per parameter):"
            f" {per_step(computing, budget.step_ns)}."
        ),
        evidence=(
            count("parameters", parameters, "probe"),
            count("bytes per parameter", WIDE_BYTES, "probe"),
            *([text("dtypes of a batch", ", ".join(sorted(dtypes)), "fetch")] if dtypes else []),
            ns("computing, per step", computing, "budget"),
            frac("computing, share of the step", computing / budget.step_ns, "budget"),
        ),
        fix=Fix(
            f"Use float32{where(place)}. Remove .double() and"
            f" torch.set_default_dtype(torch.float64) for {largest.name}.",
            "review",
            "model.float32",
            action="Compute in float32 instead of float64",
            code="inputs = inputs.float()\nmodel = model.float()",
        ),
        gain=gain,
        at=place,
    )


def _of_a_part(
    budget: Budget,
    work: Work | None,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    roof: Roof | None,
    of_a_model: bool,
) -> Found | None:
    """float64 operations in a model with narrower parameters, or without a model."""
    if budget.has_device or work is None:
        return None
    wide = list(filter(_wide, work.ops))
    traced = sum(op.host_ns for op in work.ops)
    share = sum(op.host_ns for op in wide) / traced if traced else 0.0
    computing = held(budget, *MODEL_PHASES) * share
    calling = {x.at.function for x in ops.lines if x.phase == "forward"} if ops else set()
    forward = [op for op in wide if op.at and op.at.function in calling]  # not under backward()
    place = work.heaviest((forward or wide).__contains__)
    gain = _gain(budget, computing, phases, ops, dispatch, roof)
    if computing < NOTICEABLE_FRAC * budget.step_ns or place is None:
        return None
    narrower = ", although the model's parameters are narrower" if of_a_model else ""
    return Found(
        summary=(
            f"Operations on float64 take {per_step(computing, budget.step_ns)}, most of"
            f" it{where(place)}{narrower}."
        ),
        evidence=(
            frac("operations on float64, share of the traced time", share, "trace"),
            ns("their time, per step", computing, "budget"),
        ),
        fix=Fix(
            f"Find what widens the values{where(place)}: a buffer or constant made by NumPy, or"
            " .double(). Make it float32 where it is made.",
            "review",
            action="Make the constant that widens the values float32",
            code="constant = torch.from_numpy(array).float()",
        ),
        gain=gain and replace(gain, low_ns=gain.low_ns * LOW_END_FRAC),
        at=place,
    )


def _gain(
    budget: Budget,
    computing: float,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    roof: Roof | None,
    tf32: bool = True,
) -> Gain | None:
    if budget.has_device:
        rates = roof.flops_per_s if roof else {}
        wide, narrow = rates.get("float64"), rates.get("float32")
        if not tf32:
            narrow = rates.get(WITHOUT_TF32, narrow)
        most = max(FASTER_LOW, narrow / wide) if wide and narrow else DEVICE_FASTER_HIGH
        known = f"by the {roof.source}" if roof and most != DEVICE_FASTER_HIGH else "at most"
        why = (
            f"high end: float32 is {most:.3g} times as fast, {known}; low end: nothing, if kernels"
            " are short."
        )
        cuts = dict.fromkeys(COMPUTE_FAMILIES, 1 / most)
        return Gain(0.0, computing * (1 - 1 / most), why, ("compute",), high_cuts=cuts)
    high = computing * (1 - 1 / FASTER_HIGH)
    measured = f"high end: the most measured ({FASTER_HIGH}×)."
    try:
        cost = fixed_cost(phases, ops, dispatch)
    except Abstain as missing:
        return Gain(0.0, high, f"low end: nothing, for {missing}; {measured}", MODEL_PHASES)
    if cost.work <= FIXED_COST_FACTOR:
        return None
    return Gain(
        max(0.0, computing - cost.dispatch_ns - held(budget, "optimizer")) * (1 - 1 / FASTER_LOW),
        high,
        "low end: the calls' fixed cost and the update stay, and the rest has half the bytes and"
        f" twice the vector width ({FASTER_LOW}×); {measured}",
        MODEL_PHASES,
    )


def _solves(work: Work) -> bool:
    """Whether float64 ops that decompose matrices or solve systems take a noticeable part of the
    traced time."""
    solving = (x.host_ns for x in work.ops if any(part in x.name for part in _SOLVES) and _wide(x))
    return sum(solving) >= NOTICEABLE_FRAC * sum(x.host_ns for x in work.ops) > 0


def _wide(op: OpWork) -> bool:
    return op.dtype == "float64"


def _tf32(settings: Settings | None, work: Work | None) -> bool:
    """Whether products of float32 may use TF32: convolutions by default, others if allowed."""
    allowed = (
        ("float32_matmul_precision", "high"),
        ("float32_matmul_precision", "medium"),
        ("cuda.matmul.allow_tf32", True),
        ("fp32_precision", "cuda"),  # to what is not recorded
    )
    if settings is not None and any(settings.last(*one) for one in allowed):
        return True
    forbidden = settings is not None and settings.last("cudnn.allow_tf32", False)
    return work is None or (not forbidden and any(map(convolves, work.ops)))


def _set(settings: Settings | None) -> Place | None:
    """The line that made float64 the default type."""
    made = reversed(settings.settings) if settings else ()
    defaults = (x for x in made if x.name == "default_dtype")
    return next((x.at for x in defaults if any(name in str(x.value) for name in ASKS)), None)


def _place(largest: Module, loader: Loader | None) -> Place | None:
    """Where the data is made, if it is float64 too; else the model."""
    wide = loader is not None and "float64" in (loader.batch_dtypes or {})
    return dataset_place(loader) if wide and loader else largest.at


def _spelled(largest: Module, loader: Loader | None) -> Place | None:
    """The first line that asks for float64, in the files of the loader, dataset and model, and of
    the loop that calls the model."""
    places = [loader.created_at, loader.dataset_at] if loader else []
    places += [largest.at, largest.trained_at]
    return next(_asking(x.file for x in places if x is not None), None)


def _asking(files: Iterable[str]) -> Iterator[Place]:
    for file in dict.fromkeys(files):
        if (tree := tree_of(file)) is None:
            continue
        lines = [x.lineno for x in ast.walk(tree) if isinstance(x, ast.expr) and _asks(x)]
        yield from (Place(file=file, line=line) for line in sorted(lines))


def _asks(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else None
    return (node.value if isinstance(node, ast.Constant) else name) in ASKS


def fires() -> Evidence:
    return _training(bytes_each=8)


def clear() -> Evidence:
    """The same model in torch's default type."""
    return _training(bytes_each=4)


def _training(bytes_each: int) -> Evidence:
    net = module("Net", parameters=1_000_000, parameter_bytes=1_000_000 * bytes_each)
    wide = {f"float{8 * bytes_each}": 2.0 * MB, "int64": 512.0}
    layers = op_line(20, "forward", 12, grad_calls=12.0, elapsed_ns=20 * MS, at=at(20))
    clean = phases(forward=20, loss=1, backward=40, optimizer=4)
    step = budget(data_wait_cpu=2, forward=20, loss=1, backward=40, optimizer=4)
    return Evidence().add(
        step, Modules(modules=(net,)), loaders(batch_dtypes=wide), clean, ops(layers),
        Dispatch(op_ns=1500, grad_op_ns=7000),
    )  # fmt: skip
