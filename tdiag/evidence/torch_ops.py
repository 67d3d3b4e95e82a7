"""Torch calls and functions, by line and by name."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC

# Names of calls that take a part of a tensor.
TAKING = {"__getitem__", "select", "narrow", "index_select", "gather", "masked_select"}


class OpLine(Kind, frozen=True, kw_only=True):
    """Torch calls issued by one user line, per step (window ``ops``; exact counts)."""

    at: Place
    phase: str  # a key of Phases.wall_ns
    calls: float
    grad_calls: float  # calls whose result records gradients (backward runs them again)
    conversions: dict[str, float]  # item, bool, float, int, tolist, numpy, cpu, nonzero, print…
    # torch.tensor / as_tensor / from_numpy / stack of Python data, by the line itself
    constructions: float
    elapsed_ns: float  # wall time inside these calls, measured under the counting mode
    # The line itself made the same call more than once in a turn. Loops in a library that it called
    # (an optimizer's step, a module's forward, a Trainer) count for that library.
    in_loop: bool
    # The most frequent calls ("mul", "linear") and how many of each the line made; calls inside a
    # library function are counted once per call of that function.
    names: dict[str, float] = msgspec.field(default_factory=dict)
    # In how many turns the line was reached. A turn is one batch, one module call with what follows
    # it, or one backward.
    turns: float = 1.0
    # The maximum number of calls that recorded gradients and took the same weights before one
    # backward; and whether most of the line's calls with weights got a single row (a batch of one).
    repeated: float = 0.0
    one_row: bool = False
    # How many of these needed no earlier one's result: the samples of a batch computed one by one;
    # a recurrence is one series. Without gradients, all calls count. 0 = unknown. And the line that
    # repeats them.
    series: float = 0.0
    looped_at: Place | None = None
    # The maximum number of different weights that took the same input or slices of it, and the
    # parameters of these calls (with their biases); and the line that goes through them.
    shared: int = 0
    shared_tensors: int = 0
    shared_at: Place | None = None
    joined: int = 0  # the most parameters that one call of stack or cat took
    # Where some samples of the batch were chosen of what the line computed for all of them.
    samples_at: Place | None = None
    # Copies to another device of a tensor that an earlier counted step had copied too, unchanged
    # since then; and their bytes.
    moved_again: float = 0.0
    moved_bytes: float = 0.0
    # With a device, the host's time of all lines × this line's share of their estimated work on the
    # device; the parts below are of this. 0 without one: they are of elapsed_ns.
    work_ns: float = 0.0
    # Parts of elapsed_ns: constructions (0 in an older run); calls whose result depends only on
    # constants; calls whose result depends only on the batch and on frozen weights; calls whose
    # result depends on the batch alone; calls that repeat one of the same step on the same tensors,
    # and those of them in a parametrization (torch.nn.utils.parametrize) of a weight; products of
    # which at most half is used, and what is made of their elements, times the share that is not
    # used; calls that record gradients for results that nothing uses; calls on a sequence of which
    # a part was computed before, times that part; products of which one operand is nearly only
    # zeros, and of these the share that is not; calls on zeros into which at most half was written,
    # times the share that was not; calls on rows that were copied, times the share of further
    # copies; calls that write low-rank products of parameters out, and products with these as a
    # weight; calls that pick a matrix of weights for each row, and products with these; calls of
    # torch.autograd.grad through what earlier calls went through; calls that sum the squares of
    # parameters for the loss; factors of products of a triangular matrix and its transpose,
    # and these products; calls that compute a batch of equal matrices, times the share of further
    # ones; copies of what the same line copied before, times the share of that; copies that are
    # only read, of what does not change meanwhile; brackets that pick, with gradients, what a
    # tensor of numbers names.
    constructed_ns: float = 0.0
    constant_ns: float = 0.0
    frozen_ns: float = 0.0
    of_batch_ns: float = 0.0
    again_ns: float = 0.0
    parametrized_ns: float = 0.0
    thrown_away_ns: float = 0.0
    never_used_ns: float = 0.0
    mostly_zero_ns: float = 0.0
    nonzero_ns: float = 0.0
    unwritten_ns: float = 0.0
    copied_ns: float = 0.0
    low_rank_ns: float = 0.0
    low_rank_used_ns: float = 0.0
    gathered_ns: float = 0.0
    gathered_used_ns: float = 0.0
    separate_ns: float = 0.0
    penalty_ns: float = 0.0
    factored_ns: float = 0.0
    multiplied_out_ns: float = 0.0
    alike_ns: float = 0.0
    copied_on_ns: float = 0.0
    copied_to_read_ns: float = 0.0
    matrices: int = 0  # the most equal ones of one call
    indexed_ns: float = 0.0
    fft_ns: float = 0.0
    fft_length: int = 0
    # Sums of a product of few factors with its transpose and of a diagonal that are factored or
    # solved with: making them, and that; the most factors, and the rows.
    thin_ns: float = 0.0
    thin_rank: int = 0
    thin_rows: int = 0
    prefix_ns: float = 0.0
    # Calls that broadcast two tensors into a large one and sum it, ns per step wherever the sum is:
    # a "product", a "difference" or a "comparison" of everything with everything. Or that write an
    # "outer" product out and reduce it again.
    contracted_ns: float = 0.0
    contraction: str = ""
    # Measured time of backward for its calls (``elapsed_ns``), and the parts of that, by the names
    # above, ns per step; parts known only when a result was used are not in it.
    backward: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def recording_ns(self) -> float:
        """Time of its calls that record gradients, ns per step."""
        return self.elapsed_ns * self.grad_calls / self.calls if self.calls else 0.0

    @property
    def constructs(self) -> bool:
        """It mostly creates tensors from Python data: by time, else by count."""
        if self.constructed_ns:
            return self.constructed_ns > MAJORITY_FRAC * self.elapsed_ns
        return self.constructions > MAJORITY_FRAC * self.calls


class ModuleMove(Kind, frozen=True, kw_only=True):
    """``module.to(…)``, ``.cuda()``, ``.half()`` … called within steps, outermost calls only."""

    at: Place | None
    per_step: float


class Attention(Kind, frozen=True, kw_only=True):
    """Attention written out: a product, a softmax, and a product with the values. ``at``: the line
    where its weights were computed last (softmax, or the dropout after it)."""

    at: Place | None
    per_step: float


class FusedAttention(Kind, frozen=True, kw_only=True):
    """Calls of ``scaled_dot_product_attention`` and ``MultiheadAttention``. ``unfused``: why they
    may not get a fused kernel: ``dropout`` (on a CPU), ``mask with gradient``, ``dimensions`` (not
    four), ``sizes`` (values not as wide as keys), ``weights`` (``need_weights``, on by default)."""

    at: Place | None
    per_step: float
    unfused: tuple[str, ...]


class PrefixLine(Kind, frozen=True, kw_only=True):
    """A line that gives a model a sequence which it was given before, with more at its end.
    ``calls``, and per step ``positions`` and ``new`` ones, over all sequences of the batch."""

    at: Place | None
    calls: float
    positions: float
    new: float


class NeverUsedLine(Kind, frozen=True, kw_only=True):
    """A line that leads to calls that record gradients for results that nothing uses; ``ns`` per
    step, as long as calls were counted."""

    at: Place | None
    ns: float


class CopiedRows(Kind, frozen=True, kw_only=True):
    """A line that copies rows (or, if unknown, one that computes with them), with which layers then
    compute; ``ns`` per step for what is computed of further copies, as long as calls were counted;
    ``copies``: the most of one row."""

    at: Place | None
    ns: float
    copies: int


class PickedWeights(Kind, frozen=True, kw_only=True):
    """A line that picks a matrix of weights for each row: the most that one call ``picked`` of how
    many ``weights``."""

    at: Place | None
    picked: int
    weights: int


class InputGradient(Kind, frozen=True, kw_only=True):
    """Tensors without an optimizer whose gradients nothing reads, by the line that made them
    require one (None if unknown). ``alone``: of the graph's ``nodes``, those that lead to them
    alone; ``alone_ns`` and ``ns``: the time of the calls that made them. All are sums over the
    backward passes of the counted steps that reached such tensors."""

    at: Place | None
    alone: int
    nodes: int
    alone_ns: int
    ns: int


class Ops(Kind, frozen=True, kw_only=True):
    """Exact torch-call counts by user line, from one or two steps under a TorchFunctionMode.
    ``attention``: None if tensors were not followed from product to product.
    ``backward_other_ns``: backward for calls that were not counted, per step; None if its time was
    not measured by line (``OpLine.backward``): with a device, several ranks, checkpoints, a huge
    graph, or in an older run."""

    steps: int
    lines: tuple[OpLine, ...]
    module_moves: tuple[ModuleMove, ...] = ()
    attention: tuple[Attention, ...] | None = None
    fused_attention: tuple[FusedAttention, ...] = ()
    prefixes: tuple[PrefixLine, ...] = ()
    never_used: tuple[NeverUsedLine, ...] = ()
    copied: tuple[CopiedRows, ...] = ()
    input_gradients: tuple[InputGradient, ...] = ()
    gathered: tuple[PickedWeights, ...] = ()
    acts: bool = False  # Phases.acts
    backward_other_ns: float | None = None

    @property
    def measured_backward_ns(self) -> float:
        """All of backward, per step, by its lines' measured time; 0 if that was not measured."""
        if self.backward_other_ns is None:
            return 0.0
        by_line = sum(line.backward.get("elapsed_ns", 0.0) for line in self.lines)
        return self.backward_other_ns + by_line


class Dispatch(Kind, frozen=True, kw_only=True):
    """The cost of one op on this machine before it does any work, ns; measured in the process.

    ``op_ns``: ``torch.add`` on one-element tensors without gradients. ``grad_op_ns``: the same with
    gradients recorded, its backward included. ``profiled_ns``: how much longer ``torch.add`` takes
    on the training thread, which the script's own torch profiler records, than on a thread without
    a profiler; None if no such profiler was on.
    """

    op_ns: float
    grad_op_ns: float
    profiled_ns: float | None = None

    def least_ns(self, lines: Iterable[OpLine]) -> float:
        """Cost of these lines' calls and their backward before any work, ns per step."""
        return sum(
            (x.calls - x.grad_calls) * self.op_ns + x.grad_calls * self.grad_op_ns for x in lines
        )


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


class SameInput(Kind, frozen=True, kw_only=True):
    """What one line calls, and how often with the same input and result as before. Numbers are per
    step, those of a worker per fetch. ``inputs``: the different ones that came again, of the whole
    window; ``size``: of the largest result, bytes. ``name`` is "" if it is not known; ``phase``: at
    its first call."""

    at: Place
    name: str
    phase: str
    calls: float
    again: float
    inputs: int
    ns: float
    again_ns: float
    size: int


class SameInputs(Kind, frozen=True, kw_only=True):
    """Functions that the training thread called again with the same input, most time first."""

    steps: int
    lines: tuple[SameInput, ...]


class HostOp(Kind, frozen=True, kw_only=True):
    """One op name, per step. ``self_ns`` excludes children; ``on_host_ns``: of it, in calls that
    asked nothing of a device. ``dtype``: of the first tensor that its first call with recorded
    shapes takes, torch's name ("bfloat16"); "" if none was recorded."""

    name: str
    count: float
    self_ns: float
    total_ns: float
    on_host_ns: float = 0.0
    dtype: str = ""


class HostOps(Kind, frozen=True, kw_only=True):
    """Ops the host dispatched in the traced steps (profiler overhead included in times)."""

    per_step: float  # outermost ops (those called from Python or the autograd engine)
    total_per_step: float  # nested ones counted too
    ops: tuple[HostOp, ...]  # largest self time first
    backward_of: dict[str, float]  # ns of backward per phase that issued the forward op
    # Outermost ops by phase; empty if the phases are unknown.
    calls_of: dict[str, float] = msgspec.field(default_factory=dict)
    # Share of each phase's time, 0..1, spent in ``Optimizer.zero_grad``.
    zero_grad_frac: dict[str, float] = msgspec.field(default_factory=dict)
    # The ops that fill gradients with zeros there, all as one: no calls if gradients are set to
    # None. None if no ``Optimizer.zero_grad`` was seen.
    zeroing: HostOp | None = None


class MatrixOp(Kind, frozen=True, kw_only=True):
    """One matrix product, convolution or attention of one shape, per step. ``dims`` and
    ``dtypes``: of its tensor inputs, as recorded ("float", "c10::BFloat16", "double" …)."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    count: float
    host_ns: float
    device_ns: float | None  # of the kernels launched directly by it; None without a traced device


class MatrixOps(Kind, frozen=True, kw_only=True):
    """Absent if the trace holds no shapes."""

    ops: tuple[MatrixOp, ...]
