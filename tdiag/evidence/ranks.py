"""The processes of a distributed job, and what they wait for."""

from __future__ import annotations

from typing import Literal

from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold

CERTAIN_ERRORS = Threshold(
    3.0,
    "standard errors",
    "For a normal distribution, chance exceeds this in one of 370 cases.",
)
REDUCER = "DistributedDataParallel"  # name of the collective that its reducer waits for


class RankTime(Kind, frozen=True, kw_only=True):
    """One rank's step. ``components_ns`` as in DeviceTime, empty if its trace holds no device
    activity; ``communication_ns``: union of its communication, None if unmeasured. For a run on the
    CPU: phases of its clean steps, and its wait for the last rank (``comm``)."""

    rank: int
    step_ns: float
    components_ns: dict[str, float]
    communication_ns: float | None


class Ranks(Kind, frozen=True, kw_only=True):
    """Every rank of one job that was traced or, on a CPU (``source`` baseline), timed, by rank.

    A collective ends for all ranks at once, so the rank that the others wait for communicates
    the *least*. ``slowest``: that rank; ``waited_ns``: median of the others' communication minus
    that rank's own, per step: the time they wait for it. None with fewer than two ranks whose
    communication was measured.

    ``shortest_ns``: exposed communication per step, counting each collective at the rank where it
    was shortest, which came last to it: what remains if all ranks arrive together. ``changing_ns``:
    the ranks' mean wait for whichever came last, per step, minus the wait for the rank that is late
    overall. None if the ranks' collectives could not be paired.
    """

    ranks: tuple[RankTime, ...]
    slowest: int | None
    waited_ns: float | None
    shortest_ns: float | None = None
    changing_ns: float | None = None
    source: Literal["trace", "baseline"] = "trace"


class Beside(Kind, frozen=True, kw_only=True):
    """``own``: the late rank's number; ``others``: the median of the other ranks' numbers.
    ``error``: standard error of the difference, 0 for exact counts."""

    own: float
    others: float
    error: float = 0.0


class LateRank(Kind, frozen=True, kw_only=True):
    """The rank that the others wait for, compared with them; None where unknown.

    ``samples``, ``batch_bytes``: of one training batch, bytes of its tensors, padding included.
    ``dealt_at``: the line that distributes the batches: the user's own sampler, else where the
    DataLoader is created. ``calls``: torch calls per traced step; ``flops``: floating-point
    operations of its matrix products and convolutions, per traced step. ``line``: the user's line
    with the largest extra time on this rank compared with the others, ``line_ns``: that time per
    step, from sampled stacks. ``queued_ns``: per step, the main thread was ready and waited for a
    core (at least; torch's further threads are not counted).
    """

    rank: int
    samples: Beside | None = None
    batch_bytes: Beside | None = None
    dealt_at: Place | None = None
    calls: Beside | None = None
    flops: Beside | None = None
    line: Place | None = None
    line_ns: Beside | None = None
    queued_ns: Beside | None = None


class Communication(Kind, frozen=True, kw_only=True):
    """``collectives``: ``(end_ns, exposed_ns)`` of each: when it ended, on the trace's clock, and
    how much of it ran without concurrent compute. Empty if there were more than 10,000.

    ``most``: the kind with most of the exposed time: "all_reduce", "all_gather", "reduce_scatter",
    "all_to_all", "send_recv", "broadcast"; "" if no name says. ``ddp``: the trace shows
    DistributedDataParallel."""

    total_ns: float
    exposed_ns: float
    count: float
    collectives: tuple[tuple[int, int], ...] = ()
    most: str = ""
    ddp: bool = False


class Ddp(Kind, frozen=True, kw_only=True):
    """The DistributedDataParallel of the judged rank. ``unused_parameters``: parameters without a
    gradient after a step, the maximum over all checks (0: every one was used each time); None if
    never checked. ``buffer_bytes``: sent before each forward; ``constant_buffer_bytes``: those of
    buffers that nothing changed between two checks. ``backwards`` and ``synced``: per step of
    window ``ops``; a synced backward reduces the gradients."""

    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    bucket_bytes: int | None
    comm_hook: str
    parameter_bytes: int
    unused_parameters: int | None
    buffer_bytes: int
    constant_buffer_bytes: int
    backwards: float | None
    synced: float | None


class CollectiveLine(Kind, frozen=True, kw_only=True):
    """Communication that one of the user's lines waits for, per clean step. ``name``: as called
    (``all_reduce``; ``wait``: for communication begun earlier), or ``DistributedDataParallel``: its
    gradients, from the moment the last one was ready until backward ended. ``by``: the library
    module that makes the call, "" for the user's own call."""

    name: str
    at: Place | None
    count: float
    wall_ns: float
    by: str = ""


class Collectives(Kind, frozen=True, kw_only=True):
    """Time the training thread waited for other processes of the job, on a CPU, longest first. The
    sum is the phase ``comm``."""

    lines: tuple[CollectiveLine, ...]

    def called_in(self, at: Place) -> bool:
        """Whether the user's function at this place calls one itself."""
        function = at.file, at.function
        return any(x.at and not x.by and (x.at.file, x.at.function) == function for x in self.lines)
