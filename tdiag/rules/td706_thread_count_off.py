"""The number of threads does not match the available cores

## What it measures
Torch's intra-op threads, summed over all training processes of the run on this machine (and loader
workers if known), compared with the cores available to them: affinity and cgroup quota, minus what
other trainings on the machine need. Too many threads follow from the numbers alone. Too few are
reported only if cores idled that one more thread could have had, and calls were large enough to be
split.

## Why it is slow
Too many threads take turns on the cores inside every parallel call, and the call ends with the last
one. Across processes it is worse: threads that run wait for threads of their process that do not,
and OpenMP only knows its own process's threads. Too few threads leave cores idle in large calls.
`torchrun` sets `OMP_NUM_THREADS=1` for every rank by default.

## What to do
Use one intra-op thread for each core that this process has to itself.

## How the gain is computed
All ends start from the computing time. Too many threads in one process: at worst every call takes
threads ÷ cores turns, or, if that is more, the calls need only the time of their work at the
machine's best rates and their fixed cost; at best the extra threads only wait. In several
processes: at worst a call takes as many times as long as the worst measurement on an otherwise idle
machine, but the step's work still takes its time at the machine's best rates. Too few threads: at
best calls speed up in proportion to threads, but no more than this machine's products and copies
did when all cores were tried after the run; at worst they do not. If that was not tried, threads
beyond the physical cores do not count, as in torch's default. Such a step computes (class
`compute`): it spends nothing on overhead, and is not healthy either.

## When this advice is wrong
Calls bound by memory bandwidth gain little from more threads. Another training on the machine may
end and free its cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Busy, System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, held, text, where
from tdiag.rules.examples import MS, budget, op_line, ops, system, threads
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.units import plural

CODE = "TD706"
NAME = "thread-count-off"
CLASS = "overhead"

# Phases in which torch's intra-op threads work.
PARALLEL = ("forward", "loss", "backward", "optimizer", "evaluation")
# Phases whose calls are counted individually.
COUNTED = ("forward", "loss", "evaluation")
LARGE_CALL_NS = Threshold(
    200_000,
    "ns",
    "PyTorch splits element-wise work into grains of 32,768 (at::internal::GRAIN_SIZE), tens"
    " of µs on one core; only calls well above that can use a second thread.",
)
CROWDED_TIMES = Threshold(
    7.0,
    "times as long",
    "Measured: two processes of two threads on two cores took 4 to 7 times as long per step as"
    " two of one thread (matrices of 128 to 512, torch 2.13, libgomp, otherwise idle machine)"
    " (benchmarks/rule_constants.py td706).",
)


def check(
    budget: Budget,
    threads: Threads,
    system: System,
    loaders: Loaders | None,
    ops: Ops | None,
    roof: Roof | None,
    work: Work | None,
    dispatch: Dispatch | None,
) -> Found | None:
    cores = max(1, int(system.cores_allowed))
    loader = loaders.train() if loaders else None
    if loader and (threads.worker_intra_op or 1) > 1:
        each = threads.worker_intra_op or 1
        if loader.num_workers * each > cores:
            return _workers_too_many(budget, loader, each, cores, system)
    if budget.has_device:
        return None  # the device computes; host threads only issue work
    trainings = [b for b in system.others if b.torch]
    if threads.intra_op > 1 and (threads.processes > 1 or trainings):
        fit = max(1, int(_left(system, trainings) // threads.processes))
        if threads.intra_op > fit:
            lost = held(budget, *PARALLEL) * _share_at_stake(ops) * (1 - 1 / CROWDED_TIMES)
            lost = min(lost, _beyond_the_work(budget, roof, work))
            return _crowded(budget, threads, system, trainings, fit, lost) if lost > 0 else None
    if threads.intra_op > cores:
        lost = held(budget, *PARALLEL) * (1 - cores / threads.intra_op) * _share_at_stake(ops)
        lost = max(lost, _lost_by_calls(budget, ops, dispatch, roof, work))
        return _training(budget, threads, system, cores, lost)
    fit = min(cores, system.fitting(threads.intra_op))
    if threads.intra_op < fit:
        idle = min(1 - threads.intra_op / fit, _saved_by_more(threads, system, roof, work))
        lost = held(budget, *PARALLEL) * idle * _large_share(ops)
        return _training(budget, threads, system, fit, lost) if lost else None
    return None


def _training(
    budget: Budget, threads: Threads, system: System, cores: int, lost_ns: float
) -> Found:
    """Too many or too few intra-op threads for the ``cores`` that are free."""
    available = plural(round(system.cores_allowed, 2), "available core")
    few = threads.intra_op < cores
    return Found(
        summary=(
            f"torch uses {threads.intra_op} of {available}."
            if few
            else f"torch runs {plural(threads.intra_op, 'thread')} on {available}."
        ),
        evidence=_measures(threads, system),
        fix=Fix(
            _changed(threads, cores),
            "safe",
            f"torch.num_threads={cores}",
            action=f"Use {plural(cores, 'torch thread')}",
            code=f"torch.set_num_threads({cores})",
        ),
        gain=Gain(
            0.0,
            lost_ns,
            f"high end: computing time changes with the threads, from {threads.intra_op} to"
            f" {cores}"
            + ("" if few else ", or calls take no longer than their work and their fixed cost")
            + "; low end: nothing, if threads are not the limit.",
            PARALLEL,
        ),
        at=threads.set_at,
        cls="compute" if few else "",  # nothing but work is done, on too few cores
    )


def _changed(threads: Threads, cores: int) -> str:
    """The fix where the number was set: the user's line, else the environment."""
    call = f"Call torch.set_num_threads({cores})"
    if threads.set_at is not None:
        return f"{call}{where(threads.set_at)}."
    if threads.omp_num_threads == str(threads.intra_op):
        return (
            f"Set OMP_NUM_THREADS={cores} in the environment, where it is"
            f" {threads.omp_num_threads}, or call torch.set_num_threads({cores}) in the script."
        )
    return f"{call} at the start of the script, or set OMP_NUM_THREADS={cores} in its environment."


def _left(system: System, trainings: Sequence[Busy]) -> float:
    """Cores left to the run's processes after other trainings have taken cores that the run may not
    use."""
    elsewhere = system.cores_machine - system.cores_allowed
    taken = max(0.0, sum(training.wants for training in trainings) - elsewhere)
    return system.cores_allowed - taken


def _crowded(
    budget: Budget,
    threads: Threads,
    system: System,
    trainings: Sequence[Busy],
    fit: int,
    lost_ns: float,
) -> Found:
    """Several processes train on the same cores, with more threads than cores."""
    together = max(threads.together, threads.intra_op)
    mine = f"torch runs {plural(threads.intra_op, 'thread')}"
    if threads.processes > 1:
        mine = f"{threads.processes} processes of this run train at once with {together} threads"
    taken = sum(training.wants for training in trainings)
    names = ", ".join(f"{b.name}, pid {b.pid}, {plural(b.threads, 'thread')}" for b in trainings)
    who = "other trainings need" if len(trainings) > 1 else "another training needs"
    theirs = f", {taken:.1f} of which {who} ({names})" if trainings else ""
    each = " in each process" if threads.processes > 1 else ""
    return Found(
        summary=f"{mine} on {plural(round(system.cores_allowed, 2), 'available core')}{theirs}.",
        evidence=(
            count("training processes", threads.processes, "probe"),
            count("their intra-op threads", together, "probe"),
            *_measures(threads, system),
            *(count(f"cores needed by {b.name} {b.pid}", b.wants, "system", "cores")
              for b in trainings),
        ),
        fix=Fix(
            f"Call torch.set_num_threads({fit}){each}{where(threads.set_at)}, or set"
            f" OMP_NUM_THREADS={fit} in the environment.",
            "safe",
            f"torch.num_threads={fit}",
            action=f"Use {plural(fit, 'torch thread')}{each}",
            code=f"torch.set_num_threads({fit})",
        ),
        gain=Gain(
            0.0,
            lost_ns,
            f"high end: {CROWDED_TIMES} times as fast, the largest difference measured, but no"
            " faster than the step's work at this machine's best rates; low end: nothing, if"
            " threads are not the limit.",
            PARALLEL,
        ),
        at=threads.set_at,
    )  # fmt: skip


def _beyond_the_work(budget: Budget, roof: Roof | None, work: Work | None) -> float:
    """The part of the computing time, ns per step, that the traced work does not need at the
    machine's best rates: no number of threads saves more. All of it if the rates are not known
    well."""
    computing = held(budget, *PARALLEL)
    if roof is None or work is None or roof.certainty < MAJORITY_FRAC:
        return computing
    return max(0.0, computing - sum(map(roof.best_ns, work.ops)))


def _lost_by_calls(
    budget: Budget, ops: Ops | None, dispatch: Dispatch | None, roof: Roof | None, work: Work | None
) -> float:
    """The same without the fixed cost of the calls; 0 if that or the rates are not known. Short
    calls that are split wait for threads that have no core, too."""
    if ops is None or dispatch is None or roof is None or work is None:
        return 0.0
    calls = sum(x.calls for x in ops.lines if x.phase in PARALLEL)
    fixed = FIXED_COST_FACTOR * dispatch.grad_op_ns * calls
    known = roof.certainty >= MAJORITY_FRAC
    return max(0.0, _beyond_the_work(budget, roof, work) - fixed) if known else 0.0


def _workers_too_many(
    budget: Budget, loader: Loader, each: int, cores: int, system: System
) -> Found:
    wanted = loader.num_workers * each
    return Found(
        summary=(
            f"{plural(loader.num_workers, 'loader worker')} with {each} torch threads each run"
            f" {wanted} threads on {plural(round(system.cores_allowed, 2), 'available core')}."
        ),
        evidence=(
            count("worker threads", wanted, "probe"),
            count("available cores", system.cores_allowed, "system", "cores"),
        ),
        fix=Fix(
            "Keep one thread per worker, torch's default: remove torch.set_num_threads from"
            f" worker_init_fn or the dataset{where(loader.created_at)}.",
            "safe",
            "loader.worker_threads=1",
            action="Use one torch thread in each loader worker",
        ),
        gain=Gain(
            0.0,
            held(budget, *DATA_WAIT) * (1 - cores / wanted),
            "high end: fetches no longer share cores; low end: nothing, if they hardly did.",
            DATA_WAIT,
        ),
        at=loader.created_at,
    )


def _measures(threads: Threads, system: System) -> tuple[Measure, ...]:
    used = system.cores_used
    return (
        count("intra-op threads", threads.intra_op, "probe"),
        count("available cores", system.cores_allowed, "system", "cores"),
        *(() if used is None else (count("cores used", used, "system", "cores"),)),
        text("OMP_NUM_THREADS", threads.omp_num_threads or "unset", "probe"),
    )


def _saved_by_more(threads: Threads, system: System, roof: Roof | None, work: Work | None) -> float:
    """The largest share of the computing time that one thread on each available core saves: as
    measured after the run, for the step's own ops. If that is unknown, threads beyond the physical
    cores save nothing, because they share arithmetic units."""
    if roof and roof.in_force and work and roof.certainty >= MAJORITY_FRAC:
        now = sum(roof.in_force.best_ns(op) for op in work.ops)
        return 1 - sum(map(roof.best_ns, work.ops)) / now if now else 1.0
    physical = system.cores_physical or system.cores_machine
    mine = system.cores_allowed * physical / system.cores_machine
    return 0.0 if threads.intra_op >= mine else 1.0


def _share_at_stake(ops: Ops | None) -> float:
    """Share of the computing time that threads affect; all of it if calls were not counted."""
    return _large_share(ops) if ops else 1.0


def _large_share(ops: Ops | None) -> float:
    """Share of the calls' time in calls large enough to be split; 0 if they were not counted.

    Only for forward and loss: `backward()` is one call, however small the calls inside it are.
    """
    lines = [x for x in ops.lines if x.calls and x.phase in COUNTED] if ops else []
    total = sum(line.elapsed_ns for line in lines)
    large = [x for x in lines if x.elapsed_ns / x.calls >= LARGE_CALL_NS]
    return sum(line.elapsed_ns for line in large) / total if total else 0.0


def fires() -> Evidence:
    step = budget(forward=20, loss=1, backward=40, optimizer=5)
    return Evidence().add(step, threads(8), system(cores_allowed=2.0, cores_used=1.9))


def crowd(each: int, processes: int, *others: Busy, cores: float = 2.0) -> Evidence:
    """A machine with just these cores, all in use."""
    step = budget(forward=20, loss=1, backward=40, optimizer=5)
    machine = system(cores_allowed=cores, cores_machine=int(cores), cores_used=cores, others=others)
    return Evidence().add(
        step, threads(each, processes=processes, together=each * processes), machine
    )


def clear() -> Evidence:
    """One thread on eight idle cores, but every call is too small to be split."""
    step = budget(forward=20, loss=1, backward=40, optimizer=5)
    small = ops(op_line(20, "forward", 500, elapsed_ns=20 * MS))
    return Evidence().add(step, threads(1), system(cores_used=1.0), small)
