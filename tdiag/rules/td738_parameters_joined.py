"""One matrix is kept as many parameters, and joined in every step

## What it measures
Calls of `torch.stack` and `torch.cat` that take parameters themselves, and how many; and the time
of the optimizer that updates them, tensor by tensor.

## Why it is slow
A code for each shape, user or sensor, held in a `ParameterList`, is a tensor of its own: the
optimizer loops over all of them, `backward` writes a gradient for each, and the forward copies them
into one matrix. Each of these calls costs microseconds, whatever it does.

## What to do
Keep them as one parameter, of one row each: `nn.Parameter(torch.randn(n, size))`, or an
`nn.Embedding`. Pick rows by index. In a checkpoint the names change.

## How the gain is computed
High end: the optimizer's time without these tensors, as if each of its tensors took as long, that
of zero_grad() likewise, the join, the share of the backward that divides and writes their gradients
(by the trace; without that, four times the share of the join among the calls), and garbage
collection, which thousands of tensors set off. Low end: half of the update, the join and its
backward, or all of these but five times the least time that this machine needs for the work of the
whole step, whichever is more.

## When this advice is wrong
If the parameters have different shapes, or settings of their own in the optimizer.
"""

from __future__ import annotations

from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps, Ops
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.call_parts import PartOfCalls, part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import LITTLE_WORK_FRAC, best_of_step_ns
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.rules.zero_grad import ZERO_GRAD_IN, zero_grad_ns
from tdiag.units import duration, percent

CODE = "TD738"
NAME = "parameters-joined"
CLASS = "overhead"
AFTER = {"TD704": "anomaly detection formats a stack for each of the parameters"}
UNTRIED = "the parameters must be made as one"
BY_ISSUE = True

# Torch's names in a trace for what backward does node by node.
NODE = "autograd::engine::evaluate_function: "
WRITES_GRADIENT = f"{NODE}torch::autograd::AccumulateGrad"
DIVIDES_GRADIENT = (f"{NODE}StackBackward0", f"{NODE}CatBackward0")

MIN_JOINED = Threshold(
    16,
    "parameters in one call",
    "Heuristic: weights of queries, keys and values, or of a few heads, are joined on purpose.",
)


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    optimizers: Optimizers,
    host_ops: HostOps | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    worst = max(ops.lines, key=lambda x: x.joined, default=None)
    tensors = sum(x.tensors for x in optimizers.optimizers)
    joined = worst.joined if worst else 0
    # One optimizer's tensors, by far most of them: then its time is theirs.
    if worst is None or joined < MIN_JOINED or joined <= MAJORITY_FRAC * tensors:
        return None
    part = part_of_calls(phases, ops, None, lambda x: x.elapsed_ns if x.joined else 0.0)
    if part is None:
        return None
    joining = part.ns
    share = min(1.0, joined / tensors)
    updating = phases.wall_ns.get("optimizer", 0.0) * share
    clearing = zero_grad_ns(host_ops, phases) * share
    writing, dividing = _of_backward(host_ops, phases)
    writing *= share
    backward = max(part.most_backward_ns, writing + dividing)
    least = updating + joining + max(part.least_backward_ns, writing)
    low, kept = least * LOW_END_FRAC, "half of this is saved"
    best = best_of_step_ns(work, roof)
    if best is not None and least - best / LITTLE_WORK_FRAC > low:
        low = least - best / LITTLE_WORK_FRAC
        kept = f"the work of the whole step stays, {1 / LITTLE_WORK_FRAC:.0f} times its least time"
    return Found(
        summary=(
            f"{joined} parameters are joined{where(worst.at)} in every step, and updated one by"
            f" one: {duration(updating + joining)}"
            f" ({percent((updating + joining) / budget.step_ns)}) without their backward."
        ),
        evidence=(
            count("parameters that one call joins", joined, "ops"),
            count("tensors that optimizers update", tensors, "probe"),
            ns("their part of the update", updating, "baseline"),
            ns("joining them", joining, "baseline"),
            *((ns("writing their gradients", writing, "trace"),) if writing else ()),
            *((ns("clearing their gradients", clearing, "trace"),) if clearing else ()),
        ),
        fix=Fix(
            f"Keep what is joined{where(worst.at)} as one parameter with a row for each.",
            "review",
            action="Make one parameter of many",
            code="self.codes = nn.Parameter(torch.randn(number, size))  # not a ParameterList\n"
            "code = F.embedding(ids, self.codes)  # not torch.stack(list(self.codes))[ids]",
        ),
        gain=Gain(
            low,
            updating + joining + backward + clearing + held(budget, "gc"),
            "high end: nothing is left of them in the update, zero_grad(), garbage collection and"
            f" the join, with {_whose(part, backward)}; low end: {kept}.",
            tuple(dict.fromkeys((*part.phases, *ZERO_GRAD_IN, "gc"))),
        ),
        at=worst.at,
    )


def _of_backward(host_ops: HostOps | None, phases: Phases) -> tuple[float, float]:
    """Writing gradients to parameters, and dividing the gradients of joins, in the clean step's
    backward by their shares of the traced one, ns per step."""
    nodes = [x for x in host_ops.ops if x.name.startswith(NODE)] if host_ops else []
    whole = sum(x.total_ns for x in nodes)
    if not whole:
        return 0.0, 0.0
    backward = phases.wall_ns.get("backward", 0.0)
    writing = sum(x.total_ns for x in nodes if x.name == WRITES_GRADIENT)
    dividing = sum(x.total_ns for x in nodes if x.name in DIVIDES_GRADIENT)
    return writing / whole * backward, dividing / whole * backward


def _whose(part: PartOfCalls, backward: float) -> str:
    return part.share.at_most if backward == part.most_backward_ns else "their part of backward"


def fires() -> Evidence:
    """A code for each of 2,500 shapes."""
    return _codes(2_500)


def clear() -> Evidence:
    """All codes in one matrix."""
    return _codes(0)


def _codes(joined: int) -> Evidence:
    stack = op_line(45, "forward", 2, grad_calls=2.0, elapsed_ns=1e6, joined=joined)
    rest = op_line(47, "forward", 8, grad_calls=8.0, elapsed_ns=2e6)
    update = Optimizer(name="Adam", created_at=at(66), tensors=joined + 6, config={})
    step = budget(forward=5, loss=1, backward=12, optimizer=40)
    clean = phases(forward=5, loss=1, backward=12, optimizer=40)
    return Evidence().add(step, clean, ops(stack, rest), Optimizers(optimizers=(update,)))
