"""How the training loader feeds the loop: the calculations that the input rules share.

In the steady state a step cannot be shorter than (a) the rest of the step, (b) the CPU work of
fetching and training ÷ the cores' capacity, (c) one batch's fetch ÷ the number of workers. The
predictions below are the largest of the three.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Startup, System, Threads
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.model.diagnosis import Measure
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, count, frac, held, ns, where
from tdiag.rules.evaluation import clean_span
from tdiag.rules.thresholds import SLOW_FRAC

SATURATED_FRAC = Threshold(
    0.9,
    "of the available cores",
    "By arithmetic: above 90 % no rearrangement of the same work is faster than 1 ÷ 0.9 = 1.11×, so"
    " the work itself has to shrink.",
)
CORE_WORTH_LOW = Threshold(
    0.06,
    "of the first core",
    "Measured on a shared machine of two cores: two workers instead of none made pure decoding"
    " 1.06× to 1.21× faster, so a further core may add as little (benchmarks/rule_constants.py"
    " feed.CORE_WORTH_LOW).",
)
CORE_WORTH_HIGH = Threshold(
    1, "of the first core", "By definition of the high end: each core adds as much as the first."
)
SECOND_CORE_COSTS_FRAC = Threshold(
    1 / 0.77 - 1,
    "of the step",
    "benchmarks/second_core.py: one worker on the second of two hardware threads changed the speed"
    " to 0.67× to 1.23×, in nine of ten trials to at least 0.77×.",
)
HANDOVER_HIGH_NS = Threshold(
    700_000,
    "ns per batch",
    "Measured on one slow core, torch 2.13: taking a batch of 4 kB from a worker cost the training"
    " thread 0.6 to 0.7 ms; 1.2 to 1.3 ms next to busy neighbours, where a plain torch.add took 1.7"
    " times as long (benchmarks/rule_constants.py feed.HANDOVER).",
)
HANDOVER_LOW_NS = Threshold(
    100_000, "ns per batch", "Heuristic: a fast core needs a seventh of what the slow core needed."
)
HANDOVER_NS_PER_BYTE = Threshold(
    0.18,
    "ns per byte",
    "Measured with HANDOVER_HIGH_NS, a batch of 10 MB compared with one of 4 kB: 0.18; 0.34 to 0.42"
    " with busy neighbours (benchmarks/rule_constants.py feed.HANDOVER).",
)
COPY_BYTES_PER_S = Threshold(
    2e9,
    "bytes/s",
    "One core copies into fresh memory, page faults included, at 2 to 10 GB/s; the low end avoids"
    " blaming a plain stack of large samples (benchmarks/rule_constants.py feed.COPY_BYTES_PER_S).",
)
RAM_FOR_DATA_FRAC = Threshold(
    0.5, "of the free memory", "Heuristic: workers, batches and page cache need the rest."
)
REPEATED_LOW_FRAC = Threshold(
    0.9,
    "of what later epochs repeat",
    "Measured: of what was predicted to repeat, 32 of 34 twins that keep it saved 0.90 or more, the"
    " least 0.82 (benchmarks/rule_constants.py feed.REPEATED_LOW_FRAC).",
)
MIN_READ_BYTES = Threshold(
    4096, "bytes per batch", "One page: the smallest amount that Linux reads from storage."
)
# Datasets of torch whose samples are in memory side by side: one call can index many.
IN_MEMORY = ("TensorDataset", "Tensor", "list")
MIN_SAMPLES_AT_ONCE = Threshold(
    16,
    "samples",
    "Measured with TensorDataset, torch 2.13: indexing with a list gained nothing with 4 samples"
    " a batch, and 1.6× or more with 16 small ones; on another machine 1.25× or more from 4 on"
    " (benchmarks/rule_constants.py feed.MIN_SAMPLES_AT_ONCE).",
)
PICK_NS = Threshold(
    10_000,
    "ns per sample",
    "Measured with torch 2.13 on one slow core: picking a sample of two fields from tensors,"
    " arrays or lists in memory took 0.1 to 7 µs; a stored result would have to be picked as well"
    " (benchmarks/rule_constants.py feed.PICK_NS).",
)


@dataclass(frozen=True)
class Feed:
    """One step's worth of fetching, ns per step. ``wall`` = ``cpu`` + ``queued`` + ``blocked``."""

    loader: Loader
    step: float
    wait: float
    batches: float  # fetched in a step
    wall: float
    cpu: float
    queued: float  # ready to run, waiting for a core
    blocked: float  # blocked outside its own process
    collate: float  # CPU time: waiting for a core is not the collate function's

    @property
    def rest(self) -> float:
        """The step without its data wait: the time that the loader has."""
        return max(self.step - self.wait, 0.0)

    @property
    def copying(self) -> float:
        """Time to copy one step's batches once, ns."""
        return self.batches * (self.loader.batch_bytes or 0.0) / COPY_BYTES_PER_S * 1e9

    @property
    def picked(self) -> bool:
        """Loading a sample takes no longer than picking one from memory, so nothing can be done
        beforehand. False if the samples were not counted."""
        samples = self.batches * (self.loader.samples or self.loader.batch_size or 0)
        return 0 < self.cpu + self.blocked - self.collate <= PICK_NS * samples

    @property
    def from_memory(self) -> bool:
        """Samples are in memory, and torch's own code collates them."""
        torchs = self.loader.dataset_at is None and self.loader.dataset_class in IN_MEMORY
        return self.loader.collate_at is None and (torchs or self.picked)

    @property
    def singly(self) -> float:
        """CPU time of a fetch from memory beyond copying its bytes: it grows with the number of
        samples and is what indexing whole batches can save, ns; 0 if that saves nothing."""
        many = (self.loader.batch_size or 0) >= MIN_SAMPLES_AT_ONCE
        weighed = bool(self.loader.batch_bytes) and self.loader.dataset_len is not None
        return max(0.0, self.cpu - self.copying) if many and weighed and self.from_memory else 0.0

    @property
    def blocked_mostly(self) -> bool:
        """Of the fetches' own time. Waiting for a core is left out: other programs cause it."""
        return self.blocked > MAJORITY_FRAC * (self.blocked + self.cpu)

    @property
    def queued_mostly(self) -> bool:
        return self.queued > MAJORITY_FRAC * self.wall

    def with_queueing(self, cpu_ns: float) -> float:
        """Fetch time saved by ``cpu_ns`` less CPU work, ns: the wait for a core shrinks with it."""
        return cpu_ns * (self.cpu + self.queued) / self.cpu if self.cpu else 0.0

    def cores_wanted(self) -> float:
        """Cores that fetching and training would keep busy if there were enough."""
        return (self.cpu + self.queued + self.rest) / self.step

    def saturates(self, system: System) -> bool:
        return cores_full(system) or self.cores_wanted() >= SATURATED_FRAC * system.cores_allowed

    def out_of_cores(self, system: System) -> bool:
        """No rearrangement of the same work helps: the available cores are full, each core that
        training leaves free has a busy worker, or fetches mostly queue on a full machine."""
        busy = self.wall > MAJORITY_FRAC * self.loader.num_workers * self.step
        full = (system.machine_busy_cores or 0.0) >= SATURATED_FRAC * system.cores_machine
        return (
            self.saturates(system)
            or (busy and self.loader.num_workers >= self.workers_free(system.cores_allowed))
            or (self.queued_mostly and full)
        )

    def workers_free(self, cores: float) -> int:
        """Workers for the cores that training leaves free, at least one."""
        shortest = max(self.rest, (self.cpu + self.queued + self.rest) / cores, 1.0)
        return max(1, math.ceil(cores - self.rest / shortest))

    def workers_needed(self, cores: float) -> int:
        """Fetch time ÷ rest-of-step time, bounded by the cores that training leaves free."""
        return min(math.ceil(self.wall / max(self.rest, 1.0)), self.workers_free(cores))

    def step_with(self, workers: int, capacity: float, work: float) -> float:
        """The step with this many workers on ``capacity`` cores, ns."""
        alone = self.cpu + self.blocked
        return max(self.rest, work / capacity, alone / workers)

    def gain_with(self, workers: int, system: System) -> tuple[float, float]:
        """Low and high end of the gain with ``workers`` workers, ns per step; negative if taking
        batches from workers may cost more. Where fetches mostly queue for a core, other programs
        take the cores, and further workers may only queue as well: the low end is then 0. What a
        further core adds is measured after the run, or else assumed."""
        work = self.cpu + self.rest
        further = max(system.cores_allowed - 2.0, 0.0)
        used = system.cores_used or 0.0
        least, most = system.further_core or (CORE_WORTH_LOW, CORE_WORTH_HIGH)
        poor = max(1.0 + least * further, min(used, system.cores_allowed))
        rich = max(1.0 + most * max(system.cores_allowed - 1.0, 0.0), poor)
        low = self.step - self.step_with(workers, poor, max(work, used * self.step))
        high = self.step - self.step_with(workers, rich, work)
        low = 0.0 if self.queued_mostly else max(0.0, low)
        if self.loader.num_workers == 0:
            costs = self.handover(slow_core=True)
            if system.cores_allowed <= 2.0:
                costs = max(costs, SECOND_CORE_COSTS_FRAC * self.step)
            low, high = low - costs, high - self.handover(slow_core=False)
        return min(low, high), max(0.0, high)

    def handover(self, slow_core: bool) -> float:
        """Cost of taking a step's batches from worker processes, for the training thread, ns."""
        if not slow_core:
            return self.batches * HANDOVER_LOW_NS
        sent = (self.loader.batch_bytes or 0.0) * HANDOVER_NS_PER_BYTE
        return self.batches * (HANDOVER_HIGH_NS + sent)

    def gain_of_saving(self, fetch_ns: float) -> float:
        """Gain of ``fetch_ns`` less fetching, ns per step: all of it in the training process; with
        workers that are too slow, the step shrinks in proportion to the fetch."""
        if self.loader.num_workers == 0:
            return min(self.wait, fetch_ns)
        return min(self.wait, self.step * fetch_ns / self.wall)

    def measures(self) -> tuple[Measure, ...]:
        return (
            frac("data wait, share of the step", self.wait / self.step, "budget"),
            ns("fetching one step's batches", self.wall, "fetch"),
            ns("rest of the step", self.rest, "budget"),
            frac("fetch time on a core", self.cpu / self.wall, "fetch"),
            frac("fetch time waiting for a core", self.queued / self.wall, "fetch"),
            frac("fetch time blocked", self.blocked / self.wall, "fetch"),
            count("num_workers", self.loader.num_workers, "probe"),
        )


def asks_for_worker(file: str) -> bool:
    """Whether this file asks in which of a loader's workers it runs."""
    return "get_worker_info" in "".join(linecache.getlines(file))


def share_of_stream(loader: Loader) -> str:
    """What workers need before they can share the user's stream: each would repeat all of it.
    Empty where its file asks for the worker's number."""
    at = loader.dataset_at
    if at is None or not loader.streams or asks_for_worker(at.file):
        return ""
    return (
        f" First let __iter__{where(at)} read each worker's own share"
        " (torch.utils.data.get_worker_info()): otherwise every worker repeats all of the data."
    )


def main_guard(loader: Loader) -> str:
    """What a script needs before it starts its first workers, where they are not forked."""
    if loader.num_workers or loader.start_method in (None, "fork"):
        return ""
    return (
        f" Put the script's top level under `if __name__ == '__main__':`: here workers start by"
        f" {loader.start_method} and import the script."
    )


def left_by_others(system: System) -> float:
    """Share of a core that other programs left to the training thread, 0..1.

    They took the time that the thread waited for a core (the kernel's run queue), and no more than
    they used: it may also have waited for the program's own threads. If no core is idle, they took
    at least their share of the machine: the thread also waits for workers and for torch's own
    threads, whose run queue time it does not have.
    """
    queued = min(1.0, system.training_queued_frac or 0.0)
    if system.machine_busy_cores is None or system.cores_used is None:
        return 1.0 - queued
    others = max(0.0, system.machine_busy_cores - system.cores_used)
    idle = system.machine_busy_cores < SATURATED_FRAC * system.cores_machine
    least = 0.0 if idle else min(1.0, others / system.cores_machine)
    return 1.0 - max(least, min(queued, others))


def cores_full(system: System) -> bool:
    """This program uses all its available cores: a further process would only take turns."""
    return (system.cores_used or 0.0) >= SATURATED_FRAC * system.cores_allowed


def one_epoch(history: StepHistory | None, startup: Startup | None) -> bool:
    """The program came to its own end within the first pass over its data."""
    ended = startup is not None and startup.run_ns is not None
    return ended and history is not None and len(history.epochs_ns) == 1


def reads_once(loader: Loader, fits: bool, history: StepHistory | None) -> bool:
    """Whether what is read from storage fits into memory and most of the clean steps are in the
    first epoch: then nothing shows that a later epoch reads it again."""
    clean = clean_span(history)
    if history is None or clean is None or not fits or (loader.read_bytes or 0.0) < MIN_READ_BYTES:
        return False
    later = history.epochs_ns[1:]
    return not later or later[0] > sum(clean) / len(clean)


def share_of_rank(system: System, threads: Threads | None) -> System:
    """What of the machine is left to each training process of this run, if all take the advice that
    one is given: workers and cached data are those of every rank."""
    ranks = threads.processes if threads else 1
    if ranks <= 1:
        return system
    return replace(
        system,
        cores_allowed=system.cores_allowed / ranks,
        cores_used=None if system.cores_used is None else system.cores_used / ranks,
        ram_available_bytes=(
            None if system.ram_available_bytes is None else system.ram_available_bytes // ranks
        ),
    )


def free_cores(system: System) -> str:
    """``6.9 of 8 cores``: available ones that this program leaves unused."""
    free = max(0.0, system.cores_allowed - (system.cores_used or 1.0))
    return f"{free:.2g} of {system.cores_allowed:g} cores"


def feed_of(budget: Budget, loaders: Loaders, phases: Phases | None, system: System) -> Feed | None:
    """The training loader's feed; None without a loader or without waiting for it."""
    loader = loaders.train()
    starting = phases.iterator_start_ns if phases else 0.0  # workers being started: not a fetch
    waiting = held(budget, *DATA_WAIT)
    wait = waiting - starting
    if loader is None or wait <= 0:
        return None
    if loader.load_ns is None or loader.load_cpu_ns is None:
        raise Abstain("wall and CPU time of the fetches were not measured")
    batches = batches_per_step(phases, loader)
    wall = batches * (loader.load_ns + (loader.collate_ns or 0.0))
    if wall <= 0:
        return None
    times = batches  # how often a fetch's times count
    if wall < MAJORITY_FRAC * wait:
        wait = wall  # the loop waits for something else: the sampler, or batches to be handed over
    elif not loader.num_workers:
        collected = phases.gc_in_wait_ns if phases else 0.0
        if MAJORITY_FRAC * wall < wait + collected:
            # Fetched within the wait: times of all steps, profiled ones too, and with garbage
            # collection, become the clean steps'. Another thread would fetch for much longer.
            times *= min(1.0, wait / wall)
            wall = min(wall, wait)
    own = loader.load_cpu_ns + (loader.collate_cpu_ns or 0.0)
    cpu = min(wall, times * (own + loader.awaited_cpu_ns()))
    queued = min(wall - cpu, times * _queued(loader, system))
    return Feed(
        loader=loader,
        step=budget.step_ns - starting,
        wait=wait,
        batches=batches,
        wall=wall,
        cpu=cpu,
        queued=queued,
        blocked=wall - cpu - queued,
        collate=times * (loader.collate_cpu_ns or 0.0),
    )


def burst_frac(waits_ns: Sequence[float]) -> float:
    """The share of all waiting that falls into the slowest tenth of the waits, 0..1."""
    slowest = sorted(waits_ns, reverse=True)[: max(1, round(len(waits_ns) * SLOW_FRAC))]
    return sum(slowest) / (sum(waits_ns) or 1)


def batches_per_step(phases: Phases | None, loader: Loader) -> float:
    """Batches that this loader gives per step: several with gradient accumulation, fewer than one
    where steps share a batch. Where they were not counted: its requests, rounded, since iterator
    starts and ends of epochs are requests without a batch."""
    if phases is None:
        return 1.0
    asked = max(1.0, round(phases.counts.get("data_wait", 1.0)))
    return phases.batches.get(loader.id) or asked


def _queued(loader: Loader, system: System) -> float:
    """Time ready but without a core, ns per batch.

    Where the kernel does not count it (None, or 0 in some sandboxes): with a free core, time off
    the core is blocked time; on full cores it is queueing unless storage was read.
    """
    if loader.runqueue_ns or loader.load_ns is None or loader.load_cpu_ns is None:
        return loader.runqueue_ns or 0.0
    wall = loader.load_ns + (loader.collate_ns or 0.0)
    off = wall - loader.load_cpu_ns - (loader.collate_cpu_ns or 0.0)
    full = cores_full(system)
    if not full or off <= MAJORITY_FRAC * wall:
        return 0.0 if not full else max(0.0, off)
    if loader.read_bytes is None or loader.read_bytes > 0:
        raise Abstain(
            "the kernel does not report how long fetches waited for a core; with all cores busy,"
            " blocked and queued fetches look alike"
        )
    return off
