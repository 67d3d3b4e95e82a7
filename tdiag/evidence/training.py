"""How training was set up and how it behaved, beyond its time: looked at between windows."""

from __future__ import annotations

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class Scheduler(Kind, frozen=True, kw_only=True):
    """One ``torch.optim.lr_scheduler`` object. ``steps``: how often it had stepped when last
    looked at (its ``last_epoch``); None if it was gone by then or does not count."""

    name: str
    created_at: Place | None
    steps: int | None


class Schedulers(Kind, frozen=True, kw_only=True):
    """Torch's schedulers that were made. One of another library, or rates set by hand, show in
    ``Optimizer.lr_changed`` alone."""

    schedulers: tuple[Scheduler, ...]


class Gradients(Kind, frozen=True, kw_only=True):
    """Total L2 norm of the leading optimizer's gradients in a handful of steps, as the step used
    them, after any clipping. ``not_finite``: how many of the steps looked at had inf or NaN
    instead; ``norms`` holds the others, first to last. ``clipped``: ``clip_grad_norm_`` or
    ``clip_grad_value_`` was called, None where calls were not counted."""

    norms: tuple[float, ...]
    not_finite: int
    clipped: bool | None = None


class Startup(Kind, frozen=True, kw_only=True):
    """From the start of the program to the end of its first step, ns, once.

    ``parts_ns``, in order of time, absent where nothing of it was seen: ``imports`` (before
    torch's), ``import torch``, ``set-up`` (datasets, model; until the first batch is asked for),
    ``workers`` (made by the first iterator), ``first batch``, ``first step`` (from its batch to its
    end). ``run_ns``: the whole program's time, None where tdiag ended it.
    """

    parts_ns: dict[str, int]
    run_ns: int | None

    @property
    def total_ns(self) -> int:
        return sum(self.parts_ns.values())


class Recompiled(Kind, frozen=True, kw_only=True):
    """A function that was compiled again because this guard failed, ``times`` in the run."""

    at: Place | None
    reason: str
    times: int


class Compiles(Kind, frozen=True, kw_only=True):
    """What dynamo compiled. Absent where nothing was ever compiled.

    Up to the end of the clean window: ``frames``, functions compiled, each version counted,
    ``recompiles``, all but the first version of each, and ``total_ns``, time spent compiling. Of
    these in the clean window, per step: ``clean_recompiles`` and ``clean_ns``.
    ``limit_hit``: a function was given up after too many versions and runs as plain Python.
    """

    frames: int
    recompiles: int
    total_ns: int
    clean_recompiles: float
    clean_ns: float
    reasons: tuple[Recompiled, ...]
    limit_hit: bool


class BiasedLayer(Kind, frozen=True, kw_only=True):
    """A linear or convolution layer with a bias whose output is the input of a batch (or
    instance) norm in training mode and of nothing else. ``name``: in its outermost module, "" where
    the weight is no layer's; ``features``: numbers in the bias."""

    name: str
    cls: str
    at: Place | None  # the user's line that calls it
    features: int
    calls: float  # per step


class Activation(Kind, frozen=True, kw_only=True):
    """Calls of a ReLU-like function that were not in place, by the user's line, per step.

    ``bytes``: of their results. ``held_bytes``: of those inputs that still lived when the backward
    began, that nothing else takes, and whose maker's backward does not need them: what ``inplace``
    would free then. The other inputs were gone by that time anyway.
    """

    name: str
    at: Place | None
    calls: float
    bytes: float
    held_bytes: float


class Layers(Kind, frozen=True, kw_only=True):
    """What the outermost modules with parameters are made of, and (window ``ops``) how their calls
    follow one another. ``bias_before_norm`` and ``out_of_place``: None where calls were not
    followed."""

    classes: dict[str, int]  # how many modules of each class
    mode_dependent: tuple[str, ...]  # classes that compute something else in evaluation
    dtypes: dict[str, int]  # bytes of parameters by dtype
    conv_bytes: int  # weights of convolutions over images
    channels_last_bytes: int  # of these, laid out channels last
    bias_before_norm: tuple[BiasedLayer, ...] | None
    out_of_place: tuple[Activation, ...] | None


class Clip(Kind, frozen=True, kw_only=True):
    """``torch.nn.utils`` clips gradients at this line. ``elapsed_ns``: wall time per step,
    measured under the counting mode; ``total_ns``: under cProfile, None where that saw none."""

    name: str
    at: Place | None
    calls: float  # per step
    elapsed_ns: float
    total_ns: float | None
    tensors: int
    foreach: bool | None  # the argument


class ClipCalls(Kind, frozen=True, kw_only=True):
    """Empty where nothing was clipped in the counted steps."""

    clips: tuple[Clip, ...]


class Table(Kind, frozen=True, kw_only=True):
    """An embedding table that is trained. ``at``: the line whose call looked rows up first."""

    name: str  # in its outermost module, "" where it is none's
    at: Place | None
    rows: int
    bytes: int
    looked_up: float  # rows per step, those that are looked up twice counted twice
    sparse: bool  # its gradient holds the rows that were looked up, alone
    elsewhere: bool  # used by other calls, too: its gradient is dense whatever the lookups make


class EmbeddingTables(Kind, frozen=True, kw_only=True):
    """Empty where the counted steps looked nothing up."""

    tables: tuple[Table, ...]


class Recomputations(Kind, frozen=True, kw_only=True):
    """``torch.utils.checkpoint`` in the counted steps; ``at`` is the first call's line, None where
    there was no call. ``calls`` and ``forward_ns`` (inside it, which backward does again): per
    step, under cProfile, None where that was not captured."""

    at: Place | None
    reentrant: bool | None
    calls: float | None
    forward_ns: float | None


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


REDUCER = "DistributedDataParallel"  # the name of what its reducer waits for


class Collective(Kind, frozen=True, kw_only=True):
    """Communication that one line of the user's waits for, per clean step. ``name``: as called
    (``all_reduce``; ``wait``: of what was begun before), or ``DistributedDataParallel``: its
    gradients, from the moment the last one was ready until backward ended."""

    name: str
    at: Place | None
    count: float
    wall_ns: float


class Collectives(Kind, frozen=True, kw_only=True):
    """What the training thread waited for other processes of the job, on a CPU, most first. They
    add up to the phase ``comm``."""

    lines: tuple[Collective, ...]


class Kept(Kind, frozen=True, kw_only=True):
    """Tensors made at this line that outlive their step. Per step."""

    at: Place | None
    tensors: float
    bytes: float
    graphs: float  # of them, those that hold the graph of their making


class GrowingGraph(Kind, frozen=True, kw_only=True):
    """What this line makes holds the graphs of more and more steps (a sum of losses that were not
    detached): nodes that its graph gains each step, at least."""

    at: Place | None
    nodes: float


class MemoryGrowth(Kind, frozen=True, kw_only=True):
    """What one or two counted steps made and still lived ``since_steps`` steps later, most bytes
    first. ``bytes_per_step``: of all of them. ``device``: growth of the device's allocated memory
    over the clean window, bytes per step; None without one."""

    kept: tuple[Kept, ...]
    bytes_per_step: float
    since_steps: int
    graphs: tuple[GrowingGraph, ...] = ()
    device_bytes_per_step: float | None = None
