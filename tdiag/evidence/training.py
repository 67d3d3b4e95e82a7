"""What is trained, and how: modules, optimizers, torch's switches."""

from __future__ import annotations

from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import MADE


class Module(Kind, frozen=True, kw_only=True):
    """One outermost module seen in the run. ``calls_per_step``: by training, in clean steps.

    ``trained_at``, ``evaluated_at``: the user's lines that first called it in training mode with
    gradients recorded, and otherwise. ``unused_gradients``: how many of its ``parameters`` have a
    gradient although no optimizer updates them, and neither does the script by hand;
    ``unused_with_state``: how many of these an optimizer has all the same, at a learning rate of 0;
    ``unused_within``: the name of the part that has them all and no others, "" if itself.
    ``frozen_by_name``: the module in it whose `requires_grad` was set to False as a plain
    attribute, which freezes nothing; empty if none."""

    name: str
    at: Place | None
    parameters: int
    parameter_bytes: int
    is_loss: bool
    calls_per_step: float
    evaluated_at: Place | None = None
    trained_at: Place | None = None
    unused_gradients: int = 0
    unused_with_state: int = 0
    unused_within: str = ""
    frozen_by_name: str = ""


class Modules(Kind, frozen=True, kw_only=True):
    modules: tuple[Module, ...]


class Optimizer(Kind, frozen=True, kw_only=True):
    """One optimizer that stepped. ``config``: the scalar entries of its first param group.
    ``settings``: how many of its ``groups`` have different ones."""

    name: str
    created_at: Place | None
    tensors: int  # parameter tensors it updates
    config: dict[str, float | int | bool | str | None]
    groups: int = 1
    settings: int = 1
    # The learning rate of a group differed between two readings; None = fewer than two readings.
    lr_changed: bool | None = None
    rates: tuple[float, ...] = ()  # of its first group, one per reading, first to last
    # Of its state in float32 or wider, at the last reading; None = unknown, or sharded.
    state_bytes: int | None = None

    @property
    def has_fused(self) -> bool:
        """It has a switch for a fused form: a torch optimizer, in a release that has one, and not a
        class of the same name from the user or a library."""
        return "fused" in self.config


class Optimizers(Kind, frozen=True, kw_only=True):
    optimizers: tuple[Optimizer, ...]


class Flags(Kind, frozen=True, kw_only=True):
    """torch switches that were on at a step boundary (value at the end of the clean window)."""

    anomaly_mode: bool
    deterministic: bool
    cudnn_benchmark: bool
    user_profiler: bool  # the script runs its own torch profiler
    user_trace: str  # "cProfile", "settrace", "" – sys.setprofile / sys.settrace of the script
    autocast_dtype: str  # "" = none seen in forward
    compiled: bool  # dynamo-compiled frames exist
    grad_scaler: bool | None = None  # an enabled GradScaler has stepped
    agent_library: str = ""  # an imported reinforcement-learning library ("gymnasium"); "" = none


class Setting(Kind, frozen=True, kw_only=True):
    """The user's line that last set ``name`` to ``value`` ("made" for an object or a call without
    arguments). ``per_step``: how often it did so in the clean steps, 0 if before them."""

    name: str  # as in SWITCHES, CUDNN and CLASSES of tdiag/probe/settings.py
    value: bool | int | str
    at: Place
    per_step: float


class Settings(Kind, frozen=True, kw_only=True):
    """What the user's lines set, ordered by when each last did."""

    settings: tuple[Setting, ...]

    def last(self, name: str, value: bool | int | str = MADE) -> Setting | None:
        found = (x for x in reversed(self.settings) if (x.name, x.value) == (name, value))
        return next(found, None)

    def in_most_steps(self, name: str, value: bool | int | str = MADE) -> bool:
        """Set repeatedly in the clean steps: in at least every second step."""
        found = self.last(name, value)
        return found is not None and found.per_step >= MAJORITY_FRAC


# Settings whose object is a torch profiler; the first creates objects of the second.
PROFILERS = ("torch.profiler.profile", "torch.autograd.profiler.profile")


class Scheduler(Kind, frozen=True, kw_only=True):
    """One ``torch.optim.lr_scheduler`` object. ``steps``: how often it had stepped at the last
    reading (its ``last_epoch``); None if it was gone by then or does not count."""

    name: str
    created_at: Place | None
    steps: int | None


class Schedulers(Kind, frozen=True, kw_only=True):
    """The torch schedulers that were created. Another library's scheduler, or rates set by hand,
    show only in ``Optimizer.lr_changed``."""

    schedulers: tuple[Scheduler, ...]


class RepeatedHooks(Kind, frozen=True, kw_only=True):
    """The user's hooks that one module, or all together, have more than once: where the function
    was written, and how often."""

    times: tuple[tuple[Place, int], ...]

    def of(self, place: Place) -> int:
        """How often this function is registered in one place; 1 if it is not among them."""
        name = place.function.rpartition(".")[2]
        return next((n for at, n in self.times if (at.file, at.function) == (place.file, name)), 1)


class Saver(Kind, frozen=True, kw_only=True):
    """A line that saves checkpoints. ``name``: of the function, ``torch.save``."""

    name: str
    at: Place | None


class Savers(Kind, frozen=True, kw_only=True):
    """In order of their first save."""

    savers: tuple[Saver, ...]


class ProcessStarts(Kind, frozen=True, kw_only=True):
    """Each start of a process by the training thread: the user's line, and when, on the events'
    clock; those of DataLoaders are left out."""

    starts: tuple[tuple[Place, int], ...]


class Gradients(Kind, frozen=True, kw_only=True):
    """Total L2 norm of the leading optimizer's gradients in a handful of steps, as the step used
    them, after any clipping. ``not_finite``: number of the examined steps with inf or NaN instead;
    ``norms`` holds the others, first to last. ``clipped``: ``clip_grad_norm_`` or
    ``clip_grad_value_`` was called, None if calls were not counted."""

    norms: tuple[float, ...]
    not_finite: int
    clipped: bool | None = None


class BiasedLayer(Kind, frozen=True, kw_only=True):
    """A linear or convolution layer with a bias whose output goes only into a batch (or instance)
    norm in training mode. ``name``: in its outermost module, "" if the weight belongs to no layer;
    ``features``: size of the bias."""

    name: str
    cls: str
    at: Place | None  # the user's line that calls it
    features: int
    calls: float  # per step


class Activation(Kind, frozen=True, kw_only=True):
    """Calls of a ReLU-like function that were not in place, by the user's line, per step.

    ``bytes``: of their results. ``held_bytes``: of the inputs that were still alive when backward
    began, that nothing else uses, and that their producer's backward does not need: what
    ``inplace`` would free then. The other inputs were freed by that time anyway.
    """

    name: str
    at: Place | None
    calls: float
    bytes: float
    held_bytes: float


class Layers(Kind, frozen=True, kw_only=True):
    """The layers of the outermost modules with parameters, and (window ``ops``) how their calls
    follow one another. ``bias_before_norm`` and ``out_of_place``: None if calls were not
    followed."""

    classes: dict[str, int]  # number of modules of each class
    mode_dependent: tuple[str, ...]  # classes that compute differently in evaluation mode
    dtypes: dict[str, int]  # bytes of parameters by dtype
    conv_bytes: int  # weights of convolutions over images
    channels_last_bytes: int  # of these, laid out channels last
    bias_before_norm: tuple[BiasedLayer, ...] | None
    out_of_place: tuple[Activation, ...] | None


class Clip(Kind, frozen=True, kw_only=True):
    """A line where ``torch.nn.utils`` clips gradients. ``elapsed_ns``: wall time per step, measured
    under the counting mode; ``total_ns``: under cProfile, None if cProfile saw none."""

    name: str
    at: Place | None
    calls: float  # per step
    elapsed_ns: float
    total_ns: float | None
    tensors: int
    foreach: bool | None  # the argument ``foreach``


class ClipCalls(Kind, frozen=True, kw_only=True):
    """Empty if nothing was clipped in the counted steps."""

    clips: tuple[Clip, ...]


class EmbeddingTable(Kind, frozen=True, kw_only=True):
    """An embedding table that is trained. ``at``: the line of its first lookup."""

    name: str  # in its outermost module, "" if in none
    at: Place | None
    rows: int
    bytes: int
    looked_up: float  # rows per step; a row looked up twice counts twice
    # The same, but a row that one call looks up twice counts once; as many where it is not known.
    distinct: float
    sparse: bool  # its gradient holds only the rows that were looked up
    elsewhere: bool  # used by other calls, too: its gradient is dense in any case
    highest: int | None = None  # the largest row number looked up in the counted steps


class EmbeddingTables(Kind, frozen=True, kw_only=True):
    """Empty if the counted steps looked nothing up."""

    tables: tuple[EmbeddingTable, ...]


class FrozenLayers(Kind, frozen=True, kw_only=True):
    """What frozen weights compute from the batch in the counted steps. Absent if there is none.

    ``names``: for each outermost module the smallest module that holds these weights
    ("Net.backbone"). ``feature_bytes``: of the results used by the trained part, per step.
    ``modes``: layers among them that compute differently in training ("dropout", "batch norm").
    ``random``: random numbers reach them. ``changing``: the weights change after all.
    """

    names: tuple[str, ...]
    feature_bytes: float
    modes: tuple[str, ...] = ()
    random: bool = False
    changing: bool = False


class Recomputations(Kind, frozen=True, kw_only=True):
    """``torch.utils.checkpoint`` in the counted steps; ``at``: the first call's line, None without
    a call. ``calls`` and ``forward_ns`` (time inside it, which backward repeats): per step, under
    cProfile, None if that was not captured."""

    at: Place | None
    reentrant: bool | None
    calls: float | None
    forward_ns: float | None


class GraphShares(Kind, frozen=True, kw_only=True):
    """What backward computes for some parameters alone, of the nodes of its graph, of their
    multiplications and of the numbers in the gradients that the nodes take, 0..1."""

    nodes: float
    products: float
    numbers: float


class UnusedBackward(Kind, frozen=True, kw_only=True):
    """Of all lines' graphs together, for parameters that no optimizer has."""

    shares: GraphShares


class DroppedAt(Kind, frozen=True, kw_only=True):
    """A line that calls backward: ``values`` numbers in parameters whose gradients are mostly gone
    before their optimizer steps, ``kept`` in those whose optimizer uses them. ``beyond``: the
    former are further from the loss, so that backward goes on for their sake alone. ``shares``: of
    the line's graph, for them alone. ``module``: the class that has most of them, "" if unknown;
    ``optimizer_at``: where their optimizer is made."""

    at: Place | None
    values: int
    kept: int
    beyond: bool
    shares: GraphShares
    module: str = ""
    optimizer_at: Place | None = None


class DroppedGradients(Kind, frozen=True, kw_only=True):
    """Empty if none were seen to be dropped while stacks were sampled."""

    lines: tuple[DroppedAt, ...]
