"""How the training loader feeds the loop: the sums that the input rules share.

In the steady state a step cannot be shorter than (a) the rest of the step, (b) the CPU work of
fetching and training ÷ the cores' capacity, (c) one batch's fetch ÷ the workers that fetch side
by side. The predictions below are the largest of the three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.model.diagnosis import Measure
from tdiag.rules.base import DATA_WAIT, Abstain, held
from tdiag.rules.measures import count, frac, ns

# By definition of "mostly": what the larger half of the fetch time went to.
MAJORITY_FRAC = 0.5
# With more than 90 % of the allowed cores in use, no rearrangement of the same work can win more
# than 1 ÷ 0.9 = 1.11×: from there on the work itself has to shrink.
SATURATED_FRAC = 0.9
# What a further core adds, as a share of the first. High: all of it. Low: on a shared 2-core
# machine going from 0 to 2 workers on pure decoding won 1.06–1.21×: the second core may add
# nothing, those after it as little as the two workers won.
CORE_WORTH_LOW = 0.06
# One worker on the second of two cores won 0.67–1.23×, in nine of ten trials 0.77× or more
# (benchmarks/second_core.py, three quiet processes, five kinds of work, steps of 5 to 34 ms; the
# cores were two threads of one).
SECOND_CORE_COSTS_FRAC = 1 / 0.77 - 1
CORE_WORTH_HIGH = 1.0
# What the training thread pays for taking a batch from a worker process instead of making it:
# 0.6–0.7 ms and 0.18 ns for each byte on a slow sandboxed core (batches of 4 kB and 10 MB, torch
# 2.13); a fast core is taken to need a seventh of that, and to map the bytes for nothing.
HANDOVER_HIGH_NS = 700_000
HANDOVER_LOW_NS = 100_000
HANDOVER_NS_PER_BYTE = 0.18
# One core's copy into fresh memory, page faults included, lies at 2–10 GB/s; the low end is taken,
# so that a plain stack of large samples is not blamed.
COPY_BYTES_PER_S = 2e9
# What a dataset may take of the free memory; the other half stays for workers, batches in flight
# and the page cache. Ours.
RAM_FOR_DATA_FRAC = 0.5
# Datasets whose samples are in memory, one next to the other, so that one call can index many.
IN_MEMORY = ("TensorDataset", "Tensor", "list")
# Indexing TensorDataset with a list instead of one by one, torch 2.13: no win with 4 samples a
# batch, 1.6× and more with 16 small ones.
MIN_SAMPLES_AT_ONCE = 16
# Picking a sample of two fields from tensors, arrays or lists in memory took 0.1 to 6 µs, and 7 µs
# with the caches cold from training (torch 2.13, one slow core). What takes no longer is not made
# any cheaper by keeping its result: that would have to be picked, too.
PICK_NS = 10_000


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
    blocked: float
    collate: float  # on a core, so that waiting for one is not blamed on the collate function

    @property
    def rest(self) -> float:
        """The step without its data wait: what the loader has time for."""
        return max(self.step - self.wait, 0.0)

    @property
    def copying(self) -> float:
        """What copying one step's batches once takes at least, ns."""
        return self.batches * (self.loader.batch_bytes or 0.0) / COPY_BYTES_PER_S * 1e9

    @property
    def picked(self) -> bool:
        """Loading a sample takes no longer than picking one that lies in memory does: nothing of
        it can be done beforehand. False where the samples were not counted."""
        samples = self.batches * (self.loader.samples or self.loader.batch_size or 0)
        return 0 < self.cpu + self.blocked - self.collate <= PICK_NS * samples

    @property
    def from_memory(self) -> bool:
        """Samples lie in memory, and torch's own code puts them together."""
        torchs = self.loader.dataset_at is None and self.loader.dataset_class in IN_MEMORY
        return self.loader.collate_at is None and (torchs or self.picked)

    @property
    def singly(self) -> float:
        """Of fetching from memory, the time on a core that goes by the number of samples, not by
        their bytes: what indexing whole batches at once can save, ns; 0 where that saves nothing.
        """
        many = (self.loader.batch_size or 0) >= MIN_SAMPLES_AT_ONCE
        weighed = bool(self.loader.batch_bytes) and self.loader.dataset_len is not None
        return max(0.0, self.cpu - self.copying) if many and weighed and self.from_memory else 0.0

    @property
    def blocked_mostly(self) -> bool:
        """Of the time that is the fetches' own. Waiting for a core is not: other programs may take
        the cores, and it is shared out in proportion, as in the budget."""
        return self.blocked > MAJORITY_FRAC * (self.blocked + self.cpu)

    @property
    def queued_mostly(self) -> bool:
        return self.queued > MAJORITY_FRAC * self.wall

    def with_queueing(self, cpu_ns: float) -> float:
        """What so much less work on a core takes off the fetch, ns: the wait for a core goes by the
        work that waits."""
        return cpu_ns * (self.cpu + self.queued) / self.cpu if self.cpu else 0.0

    def cores_wanted(self) -> float:
        """Cores that fetching and training would keep busy if they were there."""
        return (self.cpu + self.queued + self.rest) / self.step

    def saturates(self, system: System) -> bool:
        return cores_full(system) or self.cores_wanted() >= SATURATED_FRAC * system.cores_allowed

    def out_of_cores(self, system: System) -> bool:
        """No arrangement of the same work helps: the allowed cores are full, or there is a busy
        worker for each core that training leaves free, or fetches mostly queue on a full machine.
        """
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
        """The step that so many workers on that capacity (in cores) would leave, ns."""
        alone = self.cpu + self.blocked
        return max(self.rest, work / capacity, alone / workers)

    def gain_with(self, workers: int, system: System) -> tuple[float, float]:
        """Low and high end of what ``workers`` workers win, ns per step; below zero where taking
        batches from workers may cost more than they win.

        Fetches that mostly queue for a core show that other programs take the cores: further
        workers may then only queue as well.
        """
        work = self.cpu + self.rest
        further = max(system.cores_allowed - 2.0, 0.0)
        used = system.cores_used or 0.0
        poor = max(1.0 + CORE_WORTH_LOW * further, min(used, system.cores_allowed))
        rich = 1.0 + CORE_WORTH_HIGH * max(system.cores_allowed - 1.0, 0.0)
        low = self.step - self.step_with(workers, poor, max(work, used * self.step))
        high = self.step - self.step_with(workers, rich, work)
        low = 0.0 if self.queued_mostly else max(0.0, low)
        if self.loader.num_workers == 0:
            costs = self.handover(dear=True)
            if system.cores_allowed <= 2.0:
                costs = max(costs, SECOND_CORE_COSTS_FRAC * self.step)
            low, high = low - costs, high - self.handover(dear=False)
        return min(low, high), max(0.0, high)

    def handover(self, dear: bool) -> float:
        """What taking a step's batches from another process costs the training thread, ns."""
        if not dear:
            return self.batches * HANDOVER_LOW_NS
        sent = (self.loader.batch_bytes or 0.0) * HANDOVER_NS_PER_BYTE
        return self.batches * (HANDOVER_HIGH_NS + sent)

    def gain_of_saving(self, fetch_ns: float) -> float:
        """What ``fetch_ns`` less of fetching per step wins: all of it in the training process;
        with starved workers the step shrinks as the fetch does."""
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


def cores_full(system: System) -> bool:
    """This program uses the cores that it may use: a further process would only take them away
    from what runs already."""
    return (system.cores_used or 0.0) >= SATURATED_FRAC * system.cores_allowed


def feed_of(budget: Budget, loaders: Loaders, phases: Phases | None, system: System) -> Feed | None:
    """The training loader's feed; None where there is no loader or nobody waits for it."""
    loader = loaders.train()
    starting = phases.iterator_start_ns if phases else 0.0  # workers being started: not a fetch
    waiting = held(budget, *DATA_WAIT)
    wait = waiting - starting
    if loader is None or wait <= 0:
        return None
    if loader.load_ns is None or loader.load_cpu_ns is None:
        raise Abstain("wall and CPU time of the loader's fetches were not measured")
    batches = _batches_per_step(phases)
    wall = batches * (loader.load_ns + (loader.collate_ns or 0.0))
    if wall <= 0:
        return None
    cpu = min(wall, batches * (loader.load_cpu_ns + (loader.collate_cpu_ns or 0.0)))
    queued = min(wall - cpu, batches * _queued(loader, system))
    return Feed(
        loader=loader,
        step=budget.step_ns - starting,
        wait=wait,
        batches=batches,
        wall=wall,
        cpu=cpu,
        queued=queued,
        blocked=wall - cpu - queued,
        collate=batches * (loader.collate_cpu_ns or 0.0),
    )


def _batches_per_step(phases: Phases | None) -> float:
    """Gradient accumulation takes several batches a step. A whole number: what is over comes from
    iterators made and ends of epochs, which ask for a batch without a fetch."""
    return max(1.0, round(phases.counts.get("data_wait", 1.0))) if phases else 1.0


def _queued(loader: Loader, system: System) -> float:
    """Time ready but without a core, per batch.

    Where the kernel does not count it (None, or 0 in some sandboxes), time off the core is
    blocked time only if a core was free; on full cores it is told by whether storage was read.
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
            "the kernel does not say how long fetches waited for a core, so on full cores a"
            " blocked fetch cannot be told from a queued one"
        )
    return off
