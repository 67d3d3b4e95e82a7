"""The processes of a distributed job, and what they wait for."""

from __future__ import annotations

from typing import Literal

from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold

CERTAIN_ERRORS = Threshold(
    3.0,
    "standard errors",
    "By the normal distribution: so large a difference is chance in one of 370 cases.",
)
REDUCER = "DistributedDataParallel"  # the name of what its reducer waits for


class RankTime(Kind, frozen=True, kw_only=True):
    """One rank's step. ``components_ns`` as in DeviceTime, empty where its trace holds no device
    activity; ``communication_ns``: union of its communication, None where unmeasured. Of a run on
    the CPU: phases of its clean steps, and what it waits for the last rank (``comm``)."""

    rank: int
    step_ns: float
    components_ns: dict[str, float]
    communication_ns: float | None


class Ranks(Kind, frozen=True, kw_only=True):
    """Every rank of one job that was traced or, on a CPU (``source`` baseline), timed, by rank.

    A collective ends for all ranks at once, so the rank that the others wait for communicates
    the *least*. ``slowest``: that rank; ``waited_ns``: the median of the others' communication
    beyond its own, per step, which is what they wait for it. None with fewer than two ranks whose
    communication was measured.

    ``shortest_ns``: exposed communication per step, of each collective that of the rank where it
    was shortest, which came last to it: what is left if all ranks arrive together. ``changing_ns``:
    the ranks' mean wait for whichever came last, per step, beyond that for the rank that is late on
    the whole. None where the ranks' collectives could not be paired.
    """

    ranks: tuple[RankTime, ...]
    slowest: int | None
    waited_ns: float | None
    shortest_ns: float | None = None
    changing_ns: float | None = None
    source: Literal["trace", "baseline"] = "trace"


class Beside(Kind, frozen=True, kw_only=True):
    """``own``: the late rank's number; ``others``: the median of the other ranks' numbers.
    ``error``: standard error of the difference, 0 for what was counted exactly."""

    own: float
    others: float
    error: float = 0.0


class LateRank(Kind, frozen=True, kw_only=True):
    """The rank that the others wait for, compared with them; None where unknown.

    ``samples``, ``batch_bytes``: of one training batch, bytes of its tensors, padding included.
    ``dealt_at``: the line that distributes the batches: a sampler of the user's own, else where the
    DataLoader is made. ``calls``: torch calls per traced step; ``flops``: floating-point operations
    of its matrix products and convolutions, per traced step. ``line``: the user's own line in which
    this rank spends most time beyond the others, and ``line_ns``: that time per step, of sampled
    stacks.
    """

    rank: int
    samples: Beside | None = None
    batch_bytes: Beside | None = None
    dealt_at: Place | None = None
    calls: Beside | None = None
    flops: Beside | None = None
    line: Place | None = None
    line_ns: Beside | None = None


class Communication(Kind, frozen=True, kw_only=True):
    """``collectives``: each in turn, ``(end_ns, exposed_ns)``: when it ended, on the trace's clock,
    and how much of it ran with no compute beside it. Empty where there were more than 10,000.

    ``most``: what most of the exposed time goes to: "all_reduce", "all_gather", "reduce_scatter",
    "all_to_all", "send_recv", "broadcast"; "" where no name says. ``ddp``: the trace shows
    DistributedDataParallel at work."""

    total_ns: float
    exposed_ns: float
    count: float
    collectives: tuple[tuple[int, int], ...] = ()
    most: str = ""
    ddp: bool = False


class Ddp(Kind, frozen=True, kw_only=True):
    """The DistributedDataParallel of the judged rank. ``unused_parameters``: those without a
    gradient after a step, the most that any look saw (0: every one was used each time); None where
    there was no look. ``backwards`` and ``synced``: per step of window ``ops``; a synced one
    reduces the gradients."""

    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    bucket_bytes: int | None
    comm_hook: str
    parameter_bytes: int
    unused_parameters: int | None
    backwards: float | None
    synced: float | None


class CollectiveLine(Kind, frozen=True, kw_only=True):
    """Communication that one line of the user's waits for, per clean step. ``name``: as called
    (``all_reduce``; ``wait``: of what was begun before), or ``DistributedDataParallel``: its
    gradients, from the moment the last one was ready until backward ended. ``by``: the module of
    the library that calls it there, "" for the user's own call."""

    name: str
    at: Place | None
    count: float
    wall_ns: float
    by: str = ""


class Collectives(Kind, frozen=True, kw_only=True):
    """What the training thread waited for other processes of the job, on a CPU, most first. They
    add up to the phase ``comm``."""

    lines: tuple[CollectiveLine, ...]
