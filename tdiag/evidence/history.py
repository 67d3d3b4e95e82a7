"""The run over its time, to be looked at: profiled windows included. Rules judge by ``kinds``."""

from __future__ import annotations

from tdiag.model.kind import Kind


class Strip(Kind, frozen=True, kw_only=True):
    """One measure in each interval of a :class:`History`.

    ``unit``: ``cores``, ``bytes``, ``bytes_per_s`` or ``frac`` (0..1). ``values``: the mean of the
    interval for ``cores`` and ``bytes_per_s``, what its later sample read for the others; None
    where it was not measured. ``limit``: the most there can be, None where there is no such bound.
    """

    name: str
    unit: str
    values: tuple[float | None, ...]
    limit: float | None = None


class History(Kind, frozen=True, kw_only=True):
    """The samples of ``system.jsonl``, first to last.

    ``t_ns``: the samples' moments, ns on the events' clock. They bound the intervals, one fewer.
    ``no_gpu``: why no GPU was watched, "" where one was.
    """

    t_ns: tuple[int, ...]
    strips: tuple[Strip, ...]
    no_gpu: str = ""


class StepHistory(Kind, frozen=True, kw_only=True):
    """Every recorded step of the judged process, in order; four columns of one length.

    ``end_ns``: when it ended, on the events' clock. ``durations_ns``: boundary to boundary.
    ``windows``: what it was used for (``warmup``, ``baseline``, ``sample``, ``trace``, ``calls``,
    ``ops``, ``settle``, ``done``…). ``clean``: whether it is judged.
    ``epochs_ns``: when a new pass over the training loader began.
    """

    end_ns: tuple[int, ...]
    durations_ns: tuple[int, ...]
    windows: tuple[str, ...]
    clean: tuple[bool, ...]
    epochs_ns: tuple[int, ...] = ()


class Frame(Kind, frozen=True, kw_only=True):
    """One function of a call tree. ``parent``: index of its caller, which comes before it in the
    tuple; −1 = outermost. ``frac``: samples in it and what it called ÷ all samples of the tree.
    ``line``: of a user's function the line sampled (one frame a line), else 0."""

    name: str
    file: str
    line: int
    parent: int
    frac: float
    user: bool


class CallTrees(Kind, frozen=True, kw_only=True):
    """All sampled stacks of window ``sample``, as the trees that a flame graph draws.

    ``workers``: the samples of all DataLoader workers in which they fetched; empty without."""

    training: tuple[Frame, ...]
    workers: tuple[Frame, ...]


class Event(Kind, frozen=True, kw_only=True):
    """Something that went on for a while; ns since the begin of its step.

    ``merged``: how many events, too short to be told apart, it stands for; ``name`` is then that
    of the longest, and ``idle_ns`` is how much of it lies between them.
    """

    name: str
    begin_ns: int
    end_ns: int
    merged: int = 1
    idle_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return self.end_ns - self.begin_ns - self.idle_ns


class EventLane(Kind, frozen=True, kw_only=True):
    """``role``: ``phases`` (names are budget components), ``host``, ``worker``, ``device``,
    ``comm`` or ``copies``. ``partial``: only some of its events were recorded."""

    name: str
    role: str
    events: tuple[Event, ...]
    partial: bool = False


class StepEvents(Kind, frozen=True, kw_only=True):
    """What each thread, stream and worker did in the traced step of median length, by name.

    ``number``: which of the ``of`` traced steps, from 1. ``begin_ns``: on the trace's clock.
    Events are cut at the step's ends.
    """

    number: int
    of: int
    begin_ns: int
    duration_ns: int
    lanes: tuple[EventLane, ...]
