"""The facts about a run: frozen, typed, with the unit in every name. Device side: ``device``.

A field that could not be measured is ``None``, never zero. Times are integer ns, shares fractions
of 1 (``_frac``), "per step" is: total over the clean window ÷ its steps."""

from __future__ import annotations

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class Steps(Kind, frozen=True, kw_only=True):
    """Clean step times (window ``baseline``: hooks only, no profiler), boundary to boundary.

    ``mean_ns`` is wall time of the kept steps ÷ their number, so that what happens every k-th
    step or between epochs is in it. ``boundary`` says what ended a step: ``optimizer``,
    ``backward``, ``batch``, or of long steps with parts ``closure`` or ``micro-batch``.
    """

    durations_ns: tuple[int, ...]
    mean_ns: int
    median_ns: int
    p90_ns: int
    count: int
    boundary: str
    total_steps_seen: int  # every step of the run, warm-up and profiled ones included


class Phases(Kind, frozen=True, kw_only=True):
    """What the training thread did in the clean steps, ns per step; they add up to ``mean_ns``.

    Keys of ``wall_ns`` (absent = never seen): ``data_wait`` (inside a DataLoader's ``__next__``),
    ``prepare`` (batch in hand → first forward; without a DataLoader: step end → first forward),
    ``forward``, ``loss`` (end of the outermost forward → start of backward), ``backward``,
    ``optimizer`` (end of backward → end of ``optimizer.step``), ``evaluation``, ``checkpoint``
    (``torch.save``), ``comm`` (waiting for other processes of the job, on a CPU: within whichever
    of the others), ``gc`` (garbage collector), ``after_step`` (optimizer end → next batch is
    asked for), ``unattributed``.
    ``cpu_ns``: on-CPU time of the training thread there, for ``prepare`` without a DataLoader.
    ``counts``: how often per step a region of this name was entered.
    """

    wall_ns: dict[str, float]
    cpu_ns: dict[str, float]
    counts: dict[str, float]
    eval_grad_frac: float | None = None  # share of evaluation forward time with grad recording on
    eval_batches_per_step: float = 0.0
    # Shares of the time in outermost modules with parameters, None where there was none:
    eval_train_mode_frac: float | None = None  # of evaluation, in training mode
    train_eval_mode_frac: float | None = None  # of forward that records gradients, in eval mode
    checkpoint_ns_each: float | None = None  # mean duration of one torch.save
    waits_ns: tuple[int, ...] = ()  # every single data wait of the clean window
    # Of data_wait: iter(loader), and a pass's first and last request beyond the usual wait.
    iterator_start_ns: float = 0.0
    # A DataLoader feeds the evaluations, or a loss module judges them. Calls without gradients that
    # have neither may gather what to train on (an agent's rollouts).
    eval_evident: bool = True
    gc_in_wait_ns: float = 0.0  # of gc: collections inside a DataLoader's ``__next__``
    # Of optimizer: inside ``optimizer.step``; the rest, as clipping, lies before it. None: unknown.
    update_ns: float | None = None


class OpLine(Kind, frozen=True, kw_only=True):
    """Torch calls issued by one user line, per step (window ``ops``; exact counts)."""

    at: Place
    phase: str  # a key of Phases.wall_ns
    calls: float
    grad_calls: float  # calls whose result records gradients (they are walked again in backward)
    conversions: dict[str, float]  # item, bool, float, int, tolist, numpy, cpu, nonzero, print…
    # torch.tensor / as_tensor / from_numpy / stack of Python data, by the line itself
    constructions: float
    elapsed_ns: float  # wall time inside these calls, measured under the counting mode
    # The line itself made the same call more than once in a turn. Loops of a library that it called
    # (an optimizer's step, a module's forward, a Trainer) are that library's.
    in_loop: bool
    # The commonest calls ("mul", "linear") and how many of each the line made, those of a library's
    # function counted once for each call of it.
    names: dict[str, float] = msgspec.field(default_factory=dict)
    # In how many turns it was reached: a turn is one batch, one call of a module with what follows,
    # or one backward.
    turns: float = 1.0
    # The most calls that took the same weights before one backward, and whether each of the line's
    # calls with weights was given a single row (a batch of one).
    repeated: float = 0.0
    one_row: bool = False
    # Copies to another device of a tensor that an earlier counted step had copied too, unchanged
    # since; and their bytes.
    moved_again: float = 0.0
    moved_bytes: float = 0.0


class ModuleMove(Kind, frozen=True, kw_only=True):
    """``module.to(…)``, ``.cuda()``, ``.half()`` … called within steps, outermost calls only."""

    at: Place | None
    per_step: float


class Attention(Kind, frozen=True, kw_only=True):
    """Attention that is written out: a product, softmaxed, and multiplied with the values. ``at``:
    where its weights were made last (softmax, or the dropout after it)."""

    at: Place | None
    per_step: float


class Ops(Kind, frozen=True, kw_only=True):
    """Exact torch-call counts by user line, from one or two steps under a TorchFunctionMode.
    ``attention``: None where tensors were not followed from product to product."""

    steps: int
    lines: tuple[OpLine, ...]
    module_moves: tuple[ModuleMove, ...] = ()
    attention: tuple[Attention, ...] | None = None


class SyncLine(Kind, frozen=True, kw_only=True):
    """One user line that made the device synchronise (``torch.cuda.set_sync_debug_mode``)."""

    at: Place
    per_step: float


class SyncLines(Kind, frozen=True, kw_only=True):
    """Implicit device synchronisations by user line, window ``ops``, CUDA only."""

    lines: tuple[SyncLine, ...]


class Dispatch(Kind, frozen=True, kw_only=True):
    """What one op costs on this machine before it does any work, ns; measured in the process.

    ``op_ns``: ``torch.add`` on one-element tensors without gradients. ``grad_op_ns``: the same
    recording gradients, its backward included.
    """

    op_ns: float
    grad_op_ns: float


class CallRow(Kind, frozen=True, kw_only=True):
    """One function of cProfile's table, per step of window ``calls``."""

    at: Place
    calls: float
    own_ns: float
    total_ns: float


class Calls(Kind, frozen=True, kw_only=True):
    """cProfile of the training thread, largest own time first."""

    steps: int
    rows: tuple[CallRow, ...]


class StackLine(Kind, frozen=True, kw_only=True):
    """Samples whose innermost *user* frame is this line, as a share of the thread's samples."""

    at: Place
    self_frac: float
    leaf: str  # commonest innermost frame of all under that line, e.g. "decode (PIL/Image.py)"
    phase: str = ""  # Phases key the samples fell in, "" where mixed or unknown
    library: str = ""  # installed package that the line called in most of them, e.g. "pandas"
    own_frac: float = 0.0  # of self_frac: the line itself is the innermost frame of all


class Stacks(Kind, frozen=True, kw_only=True):
    """Sampled wall-clock stacks, window ``sample``.

    ``source``: ``py-spy``, or ``in-process`` where attaching was refused (then no workers)."""

    source: str
    samples: int
    training: tuple[StackLine, ...]
    workers: tuple[StackLine, ...]  # share of all *fetching* samples of all workers
    worker_samples: int
    # By how much the sampler made steps longer: shares are of these longer steps.
    slowed_frac: float = 0.0


class Busy(Kind, frozen=True, kw_only=True):
    """A process that is not of this run. ``cores``: its CPU seconds ÷ wall seconds; ``wants``:
    with those that its threads waited for a core. ``torch``: it has loaded torch; None where its
    memory map may not be read."""

    pid: int
    name: str
    threads: int
    cores: float
    wants: float
    torch: bool | None


class System(Kind, frozen=True, kw_only=True):
    """The machine during the clean window.

    ``cores_allowed``: min(affinity, cgroup quota); may be fractional. ``cores_used``: CPU
    seconds of the whole process tree ÷ wall seconds. ``machine_busy_cores``: of everybody.
    """

    cores_allowed: float
    cores_machine: int
    cores_used: float | None
    machine_busy_cores: float | None
    rss_bytes: int | None  # whole tree, peak
    ram_available_bytes: int | None  # lowest seen; the cgroup's limit counts
    training_queued_frac: float | None = None  # of its time, the training thread lacked a core
    gpu_memory_used_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    others: tuple[Busy, ...] = ()  # that wanted half a core and more, most first


class Module(Kind, frozen=True, kw_only=True):
    """One outermost module seen in the run. ``calls_per_step``: by training, in clean steps.

    ``trained_at``, ``evaluated_at``: the user's lines that first called it in training mode with
    gradients recorded, and otherwise."""

    name: str
    at: Place | None
    parameters: int
    parameter_bytes: int
    is_loss: bool
    calls_per_step: float
    evaluated_at: Place | None = None
    trained_at: Place | None = None


class Modules(Kind, frozen=True, kw_only=True):
    modules: tuple[Module, ...]


class Optimizer(Kind, frozen=True, kw_only=True):
    """One optimizer that stepped. ``config``: the scalar entries of its first param group."""

    name: str
    created_at: Place | None
    tensors: int  # parameter tensors it updates
    config: dict[str, float | int | bool | str | None]
    # The learning rate of a group differed between two looks at it; None = fewer than two looks.
    lr_changed: bool | None = None
    rates: tuple[float, ...] = ()  # of its first group, one a look, first to last


class Optimizers(Kind, frozen=True, kw_only=True):
    optimizers: tuple[Optimizer, ...]


class Flags(Kind, frozen=True, kw_only=True):
    """Switches of torch found on at a step boundary (value at the end of the clean window)."""

    anomaly_mode: bool
    deterministic: bool
    cudnn_benchmark: bool
    user_profiler: bool  # the script runs a torch profiler of its own
    user_trace: str  # "cProfile", "settrace", "" – sys.setprofile / sys.settrace of the script
    autocast_dtype: str  # "" = none seen in forward
    compiled: bool  # dynamo-compiled frames exist
    grad_scaler: bool | None = None  # an enabled GradScaler has stepped
    agent_library: str = ""  # imported, of reinforcement learning ("gymnasium"); "" = none


class Threads(Kind, frozen=True, kw_only=True):
    """Thread settings of the training process and of its workers.

    ``processes``: of this run that trained on this machine at once, this one included, and
    ``together`` their intra-op threads. ``set_at``: the user's last ``torch.set_num_threads``."""

    intra_op: int
    inter_op: int
    worker_intra_op: int | None
    omp_num_threads: str  # the environment variable, "" = unset
    processes: int = 1
    together: int = 0
    set_at: Place | None = None


class Environment(Kind, frozen=True, kw_only=True):
    """What ran where; every field is printed in the report's foot."""

    torch: str
    python: str
    device: str  # "cpu" or the device's name, e.g. "NVIDIA H200"
    device_count: int
    tdiag: str
    command: tuple[str, ...]
    script: str
    hostname: str
    platform: str
    rank: int = 0
    world_size: int = 1
    exit_code: int | None = None  # the program's own; None while it runs and for a bare trace


class Budget(Kind, frozen=True, kw_only=True):
    """The clean step, ns per component; the values add up to ``step_ns`` exactly.

    Made by :mod:`tdiag.diagnose.budget` before the rules run. Host components: ``data_wait_io``,
    ``data_wait_cpu`` (or ``data_wait`` where the split cannot be told), ``prepare``, ``forward``,
    ``loss``, ``backward``, ``optimizer``, ``evaluation``, ``checkpoint``, ``comm``, ``gc``,
    ``other``, ``unattributed``. With a device: ``compute``, ``comm``, ``h2d``, ``d2h``, and,
    device idle, what the host did (``sync``, ``alloc``, ``launch``, ``python_loss`` and the host
    names above).
    """

    step_ns: int
    components_ns: dict[str, int]
    has_device: bool

    def share(self, *names: str) -> float:
        """These components' share of the step, 0..1."""
        return sum(self.components_ns.get(n, 0) for n in names) / self.step_ns
