"""Watches DataLoaders: what they are, how long the training waits, and what a fetch costs.

Fetches are timed where they run, in the worker or in the training process, so that on-CPU time,
storage reads and blocked time are exact rather than sampled.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import dataloader as _dataloader
from torch.utils.data._utils import fetch as _fetch

from . import facts, fetches, places
from .boundary import BATCH
from .fetches import count_bytes
from .iterators import OwnIterators, ready
from .known_loaders import KnownLoaders
from .patches import RETURNS, STAYS, hidden
from .procfs import ThreadCounters, kernel_ns, pool_threads
from .record import MOST_VALUES, here
from .wire import CONTROL, ITERATOR_MADE, KERNEL, NEXT_BEGIN, NEXT_END, OVER

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe

# Batches of one loader are alike, so measure the size of the first few, then of one in sixteen.
WEIGH_FIRST, WEIGH_EVERY = 4, 16
# Measuring a fetch costs about 0.2 ms on a slow core with cold caches: one in 200 ms is 0.1 %.
MEASURE_EVERY_NS = 200_000_000
PAUSE_FRAC = 1 / 20  # as for late windows

_wall = time.perf_counter_ns
_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns


class LoaderWatch:
    """One per process; forked workers inherit it and write their own events file."""

    def __init__(
        self, probe: Probe, boundary: Boundary, began_pass: Callable[[int, int, int], None]
    ) -> None:
        """``began_pass`` is called with a DataLoader's number, its workers, and how many batches
        each of them prefetches."""
        self.probe, self.boundary, self.began_pass = probe, boundary, began_pass
        self.known = KnownLoaders(probe)
        self.fetches = 0  # measured in this process
        self.measured: dict[int | None, int] = {}  # of those, by loader number
        self.counters: ThreadCounters | None = None
        self.pid = -1
        self.entered_ns = 0  # the first fetch of this process
        self.budget_ns = float(probe.config.get("time_budget_s") or "inf") * 1e9
        self.due_ns = 0  # when the next fetch is to be measured
        self.fetchers: list[tuple[Any, Any, Any]] = []  # class, its own fetch, tdiag's wrapper
        # Called in a worker whose notebook cell or visit has ended.
        self.left: Callable[[], None] = probe.detach
        self.inputs: Any = None  # made by a worker, to compare those of its first fetches
        self.make_inputs: Callable[[Probe], Any] = lambda _: None
        self.own = OwnIterators(self)
        self.before = probe.guard(self.before_fetch)
        self.after = probe.guard(self.after_fetch)

    def install(self) -> None:
        """Wrap DataLoader's making, iterating, next batch, and the fetchers."""
        patches = self.probe.patches
        patches.set(DataLoader, "__init__", self.wrap_init(DataLoader.__init__))
        patches.set(DataLoader, "__iter__", self.wrap_iter(DataLoader.__iter__), STAYS)
        base = _dataloader._BaseDataLoaderIter
        patches.set(base, "__next__", self.wrap_next(base.__next__), RETURNS)
        for fetcher in (_fetch._MapDatasetFetcher, _fetch._IterableDatasetFetcher):
            self.fetchers.append((fetcher, fetcher.fetch, self.wrap_fetch(fetcher.fetch)))
            patches.set(fetcher, "fetch", self.fetchers[-1][-1])
        self.own.install()
        os.register_at_fork(after_in_child=self.listen)

    def wrap_init(self, original: Any) -> Any:
        watch = self

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            watch.probe.guard(watch.known.made)(self)

        return hidden(init)

    def wrap_iter(self, original: Any) -> Any:
        watch, marks, put = self, self.probe.marks, self.probe.marks.put

        @functools.wraps(original)
        def iterate(self: Any) -> Any:
            if not marks.mine():
                iterator = original(self)
                if watch.probe.count is not None:  # a late window needs the loader's number
                    watch.probe.guard(watch.label)(self, iterator)
                return iterator
            new = self not in watch.known.numbers
            number = watch.probe.guard(watch.known.begin_pass)(self) or 0
            began = _wall()
            put((NEXT_BEGIN, began, number))
            watch.own.in_torchs = True
            try:
                iterator = original(self)
            finally:
                watch.own.in_torchs = False
                put((NEXT_END, _wall(), ITERATOR_MADE))
            watch.probe.guard(watch.iterator_made)(iterator, number, _wall() - began, new)
            return iterator

        return hidden(iterate)

    def iterator_made(self, iterator: Any, number: int, took_ns: int, new: bool) -> None:
        """``new``: no iterator of this DataLoader was made before."""
        if not isinstance(iterator, _dataloader._BaseDataLoaderIter):
            return  # a subclass with its own iterator (such as a generator)
        fresh = not hasattr(iterator, "tdiag_loader")
        iterator.tdiag_loader = number  # type: ignore[attr-defined]
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:  # in this process; two loaders may share one dataset
            fetcher.tdiag_loader = number
        pids = [w.pid for w in getattr(iterator, "_workers", ())]
        self.probe.recorder.write(
            "iterator",
            t=_wall(),
            loader=number,
            pids=pids,
            started=fresh,
            start_ns=took_ns,
            new=new,
            at=places.caller(),
        )
        about = self.known.described[number][0]
        self.began_pass(number, about["num_workers"] or 0, about["prefetch_factor"] or 0)

    def label(self, loader: Any, iterator: Any) -> None:
        """Only record which loader an iterator belongs to."""
        if isinstance(iterator, _dataloader._BaseDataLoaderIter):
            iterator.tdiag_loader = self.known.number(loader)  # type: ignore[attr-defined]

    def wrap_next(self, original: Any) -> Any:
        watch, marks, boundary = self, self.probe.marks, self.boundary
        put, log = marks.put, marks.log
        own, begun = self.probe.guard(self.own.number), self.own.begun

        @functools.wraps(original)
        def following(self: Any) -> Any:
            number = own(self) if self in begun else getattr(self, "tdiag_loader", None)
            if number is None or (here() != marks.thread and not marks.mine()):
                watch.listen()
                return original(self)
            full = len(log) > MOST_VALUES
            held = ready(self) if getattr(self, "_num_workers", 0) else -1
            began = _wall()
            if held < 0 and began >= watch.due_ns:
                watch.listen()
            if not full:
                put((NEXT_BEGIN, began, number))
            try:
                batch = original(self)
            finally:
                if not full:
                    put((NEXT_END, _wall(), held))
            boundary.batches += 1
            boundary.starved = held == 0
            marks.fed = True
            if boundary.rank <= BATCH or boundary.unreplayed is not None:
                boundary.batch()
            return batch

        return hidden(following)

    def wrap_fetch(self, original: Any) -> Any:
        watch = self

        @functools.wraps(original)
        def fetch(self: Any, indices: Any) -> Any:
            if watch.inputs and watch.inputs.left and watch.fetches >= WEIGH_FIRST:
                return watch.inputs.fetch(original, self, indices)
            if watch.probe.finished or (_wall() < watch.due_ns and watch.fetches >= WEIGH_FIRST):
                return original(self, indices)
            timing = watch.before(self)
            if timing is None:
                return original(self, indices)
            began, cpu, all_threads = _wall(), _cpu(), _process_cpu()
            try:
                batch = original(self, indices)
            except BaseException:
                fetches.leave()
                raise
            timing["wall"], timing["cpu"], timing["t"] = _wall() - began, _cpu() - cpu, began
            timing["process_cpu"] = _process_cpu() - all_threads
            watch.after(timing, indices, batch)
            watch.due_ns = _wall() + pause_ns(_wall() - watch.entered_ns, watch.budget_ns)
            if watch.fetches >= WEIGH_FIRST and get_worker_info() is None:
                watch.rest()
            return batch

        return hidden(fetch)

    def rest(self) -> None:
        """Remove our ``fetch`` if it is still in place: even a Python frame that does nothing costs
        a step microseconds. ``__next__`` puts it back when a measurement is due; in a worker, whose
        time is not the training's, it stays."""
        for kind, original, wrapper in self.fetchers:
            if vars(kind).get("fetch") is wrapper:
                kind.fetch = original

    def listen(self) -> None:
        """Measure the next fetch of this process or, in a newly forked one, those that are due."""
        if self.probe.finished:
            return
        for kind, original, wrapper in self.fetchers:
            if vars(kind).get("fetch") is original:
                kind.fetch = wrapper

    def over(self) -> bool:
        """Whether this is a worker of a notebook cell that has ended."""
        control = os.path.join(self.probe.run_dir, CONTROL, OVER)
        return bool(self.probe.config.get(KERNEL)) and os.path.exists(control)

    def before_fetch(self, fetcher: Any) -> dict[str, Any] | None:
        if self.over():
            self.left()
            return None
        if self.pid != os.getpid():
            self._enter_process()
        timing = getattr(fetcher, "tdiag_timing", None)
        if timing is None:
            number = getattr(
                fetcher, "tdiag_loader", self.known.by_dataset.get(id(fetcher.dataset))
            )
            timing = fetcher.tdiag_timing = {"loader": number}
            fetcher.collate_fn = _timed_collate(fetcher.collate_fn, timing)
        timing["on"] = True
        timing["collate"] = timing["collate_cpu"] = timing["collate_kernel"] = 0
        number = timing["loader"]
        again = get_worker_info() is not None and self.known.passes.get(number, 1) > 1
        first = not again and self.measured.get(number, 0) < WEIGH_FIRST
        timing["dataset"] = fetcher.dataset if first else None
        timing["states"] = fetches.begin(first)
        if self.counters is not None:
            timing["before"] = self.counters.read()
        return timing

    def after_fetch(self, timing: dict[str, Any], indices: Any, batch: Any) -> None:
        timing["on"] = False
        seen = fetches.end(timing["states"])
        if timing["dataset"] is not None:
            seen.update(fetches.values_of(batch, timing["dataset"]))
        info = get_worker_info()
        record: dict[str, Any] = {
            "loader": timing["loader"],
            "worker": info.id if info else None,
            "t": timing["t"],
            "wall": timing["wall"],
            "cpu": timing["cpu"],
            "load": timing["wall"] - timing["collate"],
            "load_cpu": timing["cpu"] - timing["collate_cpu"],
            "collate": timing["collate"],
            "collate_cpu": timing["collate_cpu"],
            "samples": len(indices) if isinstance(indices, (list, tuple)) else 1,
            **seen,
        }
        if info:  # in the training process its other threads may be working
            record["process_cpu"] = timing["process_cpu"]
            record["pool_threads"] = pool_threads()
        if self.counters is not None:
            record.update(self.counters.since(timing["before"]))
            record["kernel"] = max(0, record["kernel"] - timing["collate_kernel"])
        before = self.measured.get(timing["loader"], 0)
        if before < WEIGH_FIRST or before % WEIGH_EVERY == 0:
            record["bytes"], record["dtypes"] = count_bytes(batch)
        self.measured[timing["loader"]] = before + 1
        self.fetches += 1
        self.probe.recorder.write("fetch", **record)

    def _enter_process(self) -> None:
        """The first fetch of this process: open its own counters, and let a worker identify
        itself."""
        self.pid = os.getpid()
        self.entered_ns = _wall()
        self.fetches = 0
        self.measured = {}
        self.counters = ThreadCounters()
        info = get_worker_info()
        if info is None:
            return
        self.probe.marks.never()  # modules called by a transform are not training
        if not self.known.by_dataset:  # spawned: this process never saw the loader itself
            self.known.by_dataset[id(info.dataset)] = -1
        facts.allow_sampling()
        self.probe.recorder.write(
            "role",
            role="worker",
            tid=threading.get_native_id(),
            worker=info.id,
            loader=self.known.by_dataset.get(id(info.dataset)),
            intra_op=torch.get_num_threads(),
        )
        # A spawned worker does not know whether the loader had others before.
        number = self.known.by_dataset.get(id(info.dataset), -1)
        if info.id == 0 and self.known.passes.get(number) == 1:
            self.inputs = self.make_inputs(self.probe)
        from multiprocessing.util import Finalize

        Finalize(None, self.probe.recorder.flush, exitpriority=0)

    def take_over(self, before: LoaderWatch) -> None:
        """Share the numbers of an earlier watch, which its iterators carry."""
        self.known.take_over(before.known)

    def adopt(self, iterator: Any, loader: Any) -> None:
        """Adopt an iterator that is in use, and that ``loader`` has made."""
        number = getattr(iterator, "tdiag_loader", -1)
        if number not in self.known.described:
            number = self.known.number(loader)
        self.iterator_made(iterator, number, 0, False)


def pause_ns(age_ns: float, budget_ns: float) -> int:
    """ns until the next fetch is measured. Beyond the time budget, when the windows are over, this
    grows: a worker that lives for hours writes little more than one that lives for minutes."""
    return int(max(MEASURE_EVERY_NS, (age_ns - budget_ns) * PAUSE_FRAC))


def _timed_collate(original: Any, timing: dict[str, Any]) -> Any:
    @functools.wraps(original, updated=())
    def collate(data: Any) -> Any:
        if not timing["on"]:
            return original(data)
        began, cpu, kernel = _wall(), _cpu(), kernel_ns()
        try:
            return original(data)
        finally:
            timing["collate_kernel"] += kernel_ns() - kernel
            timing["collate"] += _wall() - began
            timing["collate_cpu"] += _cpu() - cpu

    return hidden(collate)
