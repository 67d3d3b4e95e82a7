"""A library's threads take the cores that torch computes with

## What it measures
How long the training thread was ready and waited for a core in the clean steps, by the kernel's
counters, where lines of it compute with NumPy or a similar library and nothing else explains the
wait: no other program uses the cores, there is one training process without loader workers, Python
has no other thread at work, and torch has no more threads than there are cores. And the number of
threads of the library's pool (OpenBLAS) in this process, which together with torch's are more than
the cores.

## Why it is slow
After each product OpenBLAS keeps its threads spinning for some time, in case another one follows.
They hold the cores, and each of torch's parallel calls ends only when its last thread got one. The
next product of NumPy waits for torch's threads in the same way.

## What to do
Give the library one thread: set `OPENBLAS_NUM_THREADS=1` in the environment, or call
`threadpoolctl.threadpool_limits(1, "blas")` before training. Or compute the product with torch.

## How the gain is computed
High end: the step is as much faster as torch's calls were in measurements, with one thread instead
of one for each core. Low end: half of the wait for a core is gone.

## When this advice is wrong
If NumPy's products take most of the step and are large, they need their threads.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.examples import budget, op_line, ops, stack, stacks, system, threads
from tdiag.rules.feed import left_by_others
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent, plural

CODE = "TD731"
NAME = "library-threads-beside-torch"
CLASS = "overhead"

BESIDE_TIMES = Threshold(
    5.5,
    "times as long",
    "Measured on two cores: forward and backward of four Linear(128) after a product of NumPy, 512"
    " × 16 × 512, with two threads of OpenBLAS instead of one; 3.2 to 5.1 for three others"
    " (benchmarks/rule_constants.py td731).",
)
# Packages whose calls compute with such pools.
_LIBRARIES = ("numpy", "scipy", "sklearn", "numexpr", "cv2")


def check(
    budget: Budget,
    system: System,
    threads: Threads,
    loaders: Loaders | None,
    phases: Phases | None,
    stacks: Stacks,
    ops: Ops | None,
) -> Found | None:
    pools = {name: number for name, number in threads.pools.items() if number > 1}
    queued = (system.training_queued_frac or 0.0) * budget.step_ns
    if budget.has_device or not pools or queued < NOTICEABLE_FRAC * budget.step_ns:
        return None
    name = max(pools, key=lambda x: pools[x])
    together = threads.intra_op + pools[name] - 1
    if threads.intra_op > system.cores_allowed or together <= system.cores_allowed:
        return None
    if _others(budget, system, threads, loaders, phases):
        return None
    lines = _computing(stacks, ops)
    if sum(line.self_frac for line in lines) < NOTICEABLE_FRAC:
        return None  # a library that is only loaded has idle threads
    at = lines[0].at
    library = "OpenBLAS (NumPy, SciPy)" if "openblas" in name else name
    return Found(
        summary=(
            f"The training thread waits {duration(queued)} per step"
            f" ({percent(queued / budget.step_ns)}) for a core, and only this process uses them:"
            f" {library} has {plural(pools[name], 'thread')} beside torch's {threads.intra_op}."
        ),
        evidence=(
            ns("waiting for a core, per step", queued, "system"),
            count(f"threads of {name}", pools[name], "probe"),
            count("threads of torch", threads.intra_op, "probe"),
            count("cores available", system.cores_allowed, "system", "cores"),
            *(
                (count("cores that this run used", system.cores_used, "system", "cores"),)
                if system.cores_used is not None
                else ()
            ),
        ),
        fix=Fix(
            f"Start the training with OPENBLAS_NUM_THREADS=1, for what is called{where(at)}, or"
            ' call threadpoolctl.threadpool_limits(1, "blas") before it. Torch keeps its threads.',
            "safe",
            "process.library_threads=1",
            action="Give NumPy's library one thread",
            code="import threadpoolctl\n\n"
            'threadpoolctl.threadpool_limits(1, "blas")  # before training',
        ),
        gain=Gain(
            queued * LOW_END_FRAC,
            budget.step_ns * (1 - 1 / BESIDE_TIMES),
            "high end: the step is as much faster as torch's calls were in measurements; low end:"
            " half of the wait for a core is gone.",
            tuple(budget.components_ns),
        ),
        at=at,
    )


def _computing(stacks: Stacks, ops: Ops | None) -> list[StackLine]:
    """Lines that may compute with such a library, most samples first: they call one of its
    functions, or compute themselves (``a @ b`` has no frame) and make no torch call."""
    torchs = {line.at.spot for line in ops.lines} if ops else set()
    return [
        line
        for line in stacks.training
        if line.library in _LIBRARIES
        or (line.own_frac > MAJORITY_FRAC * line.self_frac and line.at.spot not in torchs)
    ]


def _others(
    budget: Budget,
    system: System,
    threads: Threads,
    loaders: Loaders | None,
    phases: Phases | None,
) -> bool:
    """Whether something else may take its cores: other programs (also if they were not measured),
    ranks, workers, Python's own threads."""
    loader = loaders.train() if loaders else None
    beside = phases.beside_ns if phases else None
    return (
        threads.processes > 1
        or bool(loader and loader.num_workers)
        or left_by_others(system) < 1 - NOTICEABLE_FRAC
        or (beside or 0.0) > NOTICEABLE_FRAC * budget.step_ns
    )


def fires() -> Evidence:
    """A product of NumPy before each step, on two cores."""
    product = replace(stack(31, 0.4), library="numpy")
    return _crowded({"openblas": 2}, stacks((product,)))


def clear() -> Evidence:
    """NumPy is only imported: its threads sleep, and something else makes the training wait."""
    layers = ops(op_line(31, "forward", 20))
    return _crowded({"openblas": 2}, stacks((stack(31, 0.4),))).add(layers)


def _crowded(pools: dict[str, int], sampled: Stacks) -> Evidence:
    two = system(
        cores_allowed=2.0, cores_machine=2, cores_used=1.9, machine_busy_cores=1.92,
        training_queued_frac=0.12,
    )  # fmt: skip
    step = budget(prepare=37, forward=10, backward=9, optimizer=3)
    return Evidence().add(step, two, threads(intra_op=2, pools=pools), sampled)
