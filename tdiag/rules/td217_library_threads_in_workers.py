"""Workers' libraries start their own threads, more than there are cores

## What it measures
In each worker's fetches: the CPU time of all its threads compared with that of the fetching thread,
and how many threads it has that Python did not start; and the numbers of workers and of cores. If
the training thread waits for cores that its workers have, torch's threads in training count, too.

## Why it is slow
torch limits its own threads to one in each worker. OpenCV, NumPy's OpenBLAS, MKL and numexpr do not
follow: each starts a pool of as many threads as the machine has cores, in every worker. The pools
share the cores, and a call ends only with its last thread; meanwhile the others spin. On a CPU they
also spin on the cores that the training computes with.

## What to do
Give every library one thread in each worker: the workers already use all cores.

## How the gain is computed
From the data wait, and from the computing time that the workers' cores cost. High end: all of it,
because the time that one thread would need cannot be seen while threads spin. Low end: half of the
pools' share of the workers' CPU time.

## When this advice is wrong
With few workers on many cores, pools may use cores that would idle: the rule reports only if the
threads together outnumber the cores. Your own threads that wait for a service use no CPU time and
do not count.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, MODEL_PHASES, Abstain, Found, Gain, count, held, ns, where
from tdiag.rules.examples import MS, at, budget, loaders, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import fetch_place, top_fetch_lines
from tdiag.rules.own_workers import computing_lost
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import percent, plural

CODE = "TD217"
NAME = "library-threads-in-workers"
CLASS = "cpu"

POOL_FRAC = Threshold(
    0.2,
    "of the worker's CPU time",
    "Measured with NumPy's OpenBLAS, two workers on two cores: 0.50 with pools of two and eight"
    " threads (products of 256 rows, a batch took 8 to 19 times as long as with one thread), 0.36"
    " (512 rows, 2.5 times); 0.00 to 0.09 with one thread and for products too small to be split"
    " (benchmarks/rule_constants.py td217).",
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
    stacks: Stacks | None,
    roof: Roof | None,
    work: Work | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.loader.num_workers:
        return None
    loader = fed.loader
    if loader.pool_cpu_ns is None or loader.pool_threads is None:
        raise Abstain("CPU time of the workers' other threads was not measured")
    if threads is not None and (threads.worker_intra_op or 1) > 1:
        return None  # torch's own pool: TD706
    pool = loader.pool_cpu_ns
    share = pool / (pool + _own_cpu(loader)) if pool else 0.0
    each = loader.pool_threads + 1
    together = loader.num_workers * each
    least, most = computing_lost(budget, system, fed, threads, roof, work)
    training = threads.intra_op if threads and least else 0
    together += training
    if share < POOL_FRAC or not loader.pool_threads or together <= system.cores_allowed:
        return None
    lines = top_fetch_lines(fed.loader, stacks)
    place = fetch_place(fed, lines)
    waiting = held(budget, *DATA_WAIT)
    return Found(
        summary=(
            f"{_run(loader.num_workers, each)}{f', training {training}' if training else ''}:"
            f" {together} threads on {plural(round(system.cores_allowed, 2), 'available core')}."
            f" {percent(share)} of the workers' CPU time goes to threads that a library started."
        ),
        evidence=(
            count("num_workers", loader.num_workers, "probe"),
            count("computing threads in a worker", each, "fetch"),
            count("cores available", system.cores_allowed, "system", "cores"),
            ns("CPU time of a fetch, its own thread", _own_cpu(loader), "fetch"),
            ns("CPU time of a fetch, other threads", pool, "fetch"),
            ns("waiting for data, per step", waiting, "baseline"),
            *(
                [ns("computing waits for a core that a worker has", least, "system")]
                if least
                else ()
            ),
        ),
        fix=_fix(loader, place, {line.library for line in lines}),
        gain=Gain(
            (waiting + least) * share * LOW_END_FRAC,
            waiting + most,
            "high end: no data wait is left"
            + (", and computing has the cores to itself" if least else "")
            + ", if the threads mostly spin; low end: half of the pools' share of the CPU time.",
            (*DATA_WAIT, *MODEL_PHASES) if least else DATA_WAIT,
        ),
        at=place,
    )


def _run(workers: int, each: int) -> str:
    many = workers > 1
    return f"{workers} workers run {each} threads each" if many else f"A worker runs {each} threads"


def _own_cpu(loader: Loader) -> float:
    return (loader.load_cpu_ns or 0.0) + (loader.collate_cpu_ns or 0.0)


def _fix(loader: Loader, place: Place | None, libraries: set[str]) -> Fix:
    opencv = libraries & {"cv2", "albumentations"}
    limit = "cv2.setNumThreads(0)" if opencv else "threadpoolctl.threadpool_limits(1)"
    library = limit.partition(".")[0]
    variables = (
        ""
        if opencv
        else " Or set OPENBLAS_NUM_THREADS=1 in the environment, for NumPy alone; OpenCV needs"
        " cv2.setNumThreads(0)."
    )
    return Fix(
        f"Call {limit} in a worker_init_fn of the DataLoader{where(loader.created_at)}, for what"
        f" the workers call{where(place)}.{variables}",
        "safe",
        "loader.worker_threads=1",
        action="Give the workers' libraries one thread each",
        code=(
            f"import {library}\n\ndef one_thread(worker):\n    {limit}\n\n"
            "loader = DataLoader(..., worker_init_fn=one_thread)"
        ),
    )


def fires() -> Evidence:
    """Four workers on four cores, each with a pool of four threads."""
    return _fetching(pool_ms=55.0, threads=3)


def clear() -> Evidence:
    """The same workers, whose libraries have one thread."""
    return _fetching(pool_ms=0.4, threads=0)


def _fetching(pool_ms: float, threads: int) -> Evidence:
    loader = loaders(
        num_workers=4, load_ns=240.0 * MS, load_cpu_ns=60.0 * MS, runqueue_ns=170.0 * MS,
        pool_cpu_ns=pool_ms * MS, pool_threads=threads, dataset_at=at(12, "__getitem__"),
    )  # fmt: skip
    step = budget(data_wait_cpu=50, forward=6, backward=9)
    line = stack(17, 0.8, "filter (numpy/linalg.py)", function="__getitem__")
    return Evidence().add(
        step,
        loader,
        system(cores_allowed=4.0, cores_machine=4, cores_used=3.9),
        stacks(workers=(line,)),
    )
