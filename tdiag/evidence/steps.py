"""The steps of a run or a trace: their times, phases and budget."""

from __future__ import annotations

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.threshold import MAJORITY_FRAC

# Phase → its component of the budget, if the names differ, and back.
_COMPONENTS = {"after_step": "other"}
_PHASES = {component: phase for phase, component in _COMPONENTS.items()}


# Phases that a sampled stack shows by one of its frames. ``optimizer`` is not among them: it begins
# before ``optimizer.step``, and what a closure calls there is of other phases.
SHOWN = ("data_wait", "backward", "checkpoint")


def component_of(phase: str) -> str:
    """The budget component of this phase's time."""
    return _COMPONENTS.get(phase, phase)


def phase_of_component(component: str) -> str:
    """The phase whose time this budget component is."""
    return _PHASES.get(component, component)


class Steps(Kind, frozen=True, kw_only=True):
    """Clean step times (window ``baseline``: hooks only, no profiler), boundary to boundary.

    ``mean_ns`` is wall time of the kept steps ÷ their number, so it includes what happens every
    k-th step or between epochs. ``boundary`` names what ends a step: ``optimizer``, ``backward``,
    ``batch``, or for long steps with parts ``closure`` or ``micro-batch``.
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
    (``torch.save``), ``comm`` (waiting for other processes of the job, on a CPU: taken out of the
    phase around it), ``gc`` (garbage collector), ``after_step`` (optimizer end → next batch
    request), ``unattributed``.
    ``cpu_ns``: on-CPU time of the training thread there, for ``prepare`` without a DataLoader.
    ``counts``: how often per step a region with this name was entered.
    ``covariance_ns2``: phase → phase → sample covariance of their times in a step, ns²; empty with
    fewer than two clean steps.
    """

    wall_ns: dict[str, float]
    cpu_ns: dict[str, float]
    counts: dict[str, float]
    covariance_ns2: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    eval_grad_frac: float | None = None  # share of evaluation forward time with grad recording on
    eval_batches_per_step: float = 0.0
    # Shares of the time in outermost modules with parameters; None without such time:
    eval_train_mode_frac: float | None = None  # of evaluation, in training mode
    train_eval_mode_frac: float | None = None  # of forward that records gradients, in eval mode
    checkpoint_ns_each: float | None = None  # mean duration of one save
    # Every single data wait of the clean window, except the first and last of a pass.
    waits_ns: tuple[int, ...] = ()
    # Of data_wait: iter(loader), and a pass's first and last request beyond the usual wait.
    iterator_start_ns: float = 0.0
    # A DataLoader feeds the evaluations, or a loss module is applied. Calls without gradients and
    # without either may collect training data (an agent's rollouts).
    eval_evident: bool = True
    gc_in_wait_ns: float = 0.0  # of gc: collections inside a DataLoader's ``__next__``
    # Batches that each loader gave to training per step, by loader id; empty if not counted.
    batches: dict[int, float] = msgspec.field(default_factory=dict)
    # Of counts["backward"]: calls of torch.autograd.grad, which may be part of a loss.
    grad_calls: float = 0.0
    # Of optimizer: inside ``optimizer.step``; the rest, such as clipping, lies before it. None:
    # unknown.
    update_ns: float | None = None
    # CPU time of this process's other Python threads, per step. None: unknown.
    beside_ns: float | None = None
    # Time per step in which the training thread is neither on a core nor waits for one. None:
    # unknown.
    blocked_ns: float | None = None
    # Most of the time before the forward follows a call of a model without gradients, and no loader
    # gives batches: an agent acts.
    acts: bool = False
    rolls_out: bool = False  # most of it lies between two such calls: an environment is stepped
    learners_acts: float = 0.0  # such calls per step of models that the script also trains
    # The share of prepare and after_step in what SHOWN leaves of the clean steps ÷ of the sampled
    # ones. Not 1 if their work grows with the run: a metric over all results so far.
    around_scale: float = 1.0
    # Shares of the clean steps, by the names in SHOWN, with all calls that stacks show as such.
    # Denominator: the phases that the sampled steps have, too. Empty if no step was sampled.
    shown_frac: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def without_modules(self) -> bool:
        """No module was called but losses: the model is written with functions, so no mark
        separates its forward from making the batch."""
        between = {"prepare", "forward"} & self.wall_ns.keys()
        return bool(between) and "backward" in self.wall_ns and not self.counts.get("forward")

    @property
    def prepare_waits(self) -> bool:
        """Before the forward the training thread mostly waits: it is not on a core."""
        wall = self.wall_ns.get("prepare", 0.0)
        return self.cpu_ns.get("prepare", wall) < MAJORITY_FRAC * wall

    @property
    def made_beside(self) -> bool:
        """While it waits there, more than anywhere else, other Python threads of its process mostly
        work: they make the batches."""
        waited = self.wall_ns.get("prepare", 0.0) - self.cpu_ns.get("prepare", 0.0)
        if self.blocked_ns is not None and waited < MAJORITY_FRAC * self.blocked_ns:
            return False  # it waits as much where it needs no batch: for the interpreter (TD723)
        return self.prepare_waits and (self.beside_ns or 0.0) > MAJORITY_FRAC * waited


class Budget(Kind, frozen=True, kw_only=True):
    """The clean step, ns per component; the values add up to ``step_ns`` exactly.

    Made by :mod:`tdiag.diagnose.budget` before the rules run. Host components: ``data_wait_io``,
    ``data_wait_cpu`` (or ``data_wait`` where the split is unknown), ``prepare``, ``forward``,
    ``loss``, ``backward``, ``optimizer``, ``evaluation``, ``checkpoint``, ``comm``, ``gc``,
    ``other``, ``unattributed``. With a device: ``compute``, ``comm``, ``h2d``, ``d2h``, and,
    device idle, what the host did (``sync``, ``alloc``, ``launch``, ``python_loss`` and the host
    names above).
    ``has_device``: the run computed on a device, whether or not a trace shows it. ``blind``: it
    did, but no trace shows what the device did; then the components are the host's, and each may
    include waiting for the device.
    """

    step_ns: int
    components_ns: dict[str, int]
    has_device: bool
    blind: bool = False

    def share(self, *names: str) -> float:
        """These components' share of the step, 0..1."""
        return sum(self.components_ns.get(n, 0) for n in names) / self.step_ns


class StepHistory(Kind, frozen=True, kw_only=True):
    """Every recorded step of the judged process, in order; four columns of equal length.

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


class PhaseGrowth(Kind, frozen=True, kw_only=True):
    """How much longer a phase (a key of ``Phases.wall_ns``) takes with each step, ns, and the 95 %
    interval. ``grown_frac``, ``late_frac``: lower bound of this growth's share of the phase, when
    the clean steps were timed and after half of the late-timed steps; None = unknown."""

    phase: str
    slope_ns: float
    least_ns: float
    most_ns: float
    grown_frac: float | None = None
    late_frac: float | None = None


class SlowingDown(Kind, frozen=True, kw_only=True):
    """Phases that keep taking longer, steepest first; empty if none does. ``first_step``,
    ``last_step``: of the steps timed without a profiler, numbers in the run; ``clean_step``: the
    last clean step. ``late``: the steps were timed in the late windows, after all others.
    ``memory_bytes``: lower bound of the process's memory growth per step in that time;
    ``compiled``: frames that dynamo recompiled in that time."""

    phases: tuple[PhaseGrowth, ...]
    first_step: int
    last_step: int
    clean_step: int
    late: bool = False
    memory_bytes: float = 0.0
    compiled: int = 0


class TracedSteps(Kind, frozen=True, kw_only=True):
    """The steps a trace covers. ``found_by``: ``ProfilerStep``, ``loader``, ``optimizer`` or
    ``span`` (no iterations found: everything is one step)."""

    durations_ns: tuple[int, ...]
    mean_ns: int
    count: int
    found_by: str
    sampled: bool = False  # the file holds only a sample of the events: gaps mean nothing


class StepEvent(Kind, frozen=True, kw_only=True):
    """An event with a duration; ns relative to the start of its step.

    ``merged``: how many events, too short to show individually, it stands for; ``name`` is then
    that of the longest, and ``idle_ns`` the time between them.
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
    events: tuple[StepEvent, ...]
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
