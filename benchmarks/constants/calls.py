"""What small torch calls cost beside a plain torch.add, on one core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from constants import Figures, interleaved, measures

nn = torch.nn
CALLS = 100  # one after another, as tdiag's own measurement of a call (probe/facts.py)
DEEP = 15  # frames
IN_A_ROW = 25  # layers


def plain() -> Callable[[], Any]:
    value = torch.ones(1)

    def adds() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                torch.add(value, value)

    return adds


def graded() -> Callable[[], Any]:
    value = torch.ones(1, requires_grad=True)

    def adds() -> None:
        result = value
        for _ in range(CALLS):
            result = torch.add(result, value)
        result.backward()

    return adds


def deeper(work: Callable[[], Any], frames: int) -> Any:
    return deeper(work, frames - 1) if frames else work()


def with_anomaly(work: Callable[[], Any], frames: int = 0) -> Callable[[], None]:
    def watched() -> None:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            deeper(work, frames)

    return watched


@measures(loops__PLAIN_CALL_NS="median")
def plain_call() -> Figures:
    return {f"turn {k}": ns / CALLS for k, ns in enumerate(interleaved(*[plain()] * 3))}


@measures(td704_debugging_left_on__GRAD_CALL="median")
def grad_call() -> Figures:
    ratios = [interleaved(plain(), graded()) for _ in range(3)]
    return {f"turn {k}": slow / fast for k, (fast, slow) in enumerate(ratios)}


@measures(fixed_cost__GRAD_CALL_MOST="between")
def anomaly_apart() -> Figures:
    fast, slow, anomaly = interleaved(plain(), graded(), with_anomaly(graded()))
    return {"with gradients": slow / fast, "with anomaly detection": anomaly / fast}


@measures(
    td704_debugging_left_on__ANOMALY_CALLS_LOW="least",
    td704_debugging_left_on__ANOMALY_CALLS_HIGH="most",
)
def anomaly() -> Figures:
    """What it adds to a call with gradients, in plain calls."""
    fast, slow, shallow, deep = interleaved(
        plain(), graded(), with_anomaly(graded()), with_anomaly(graded(), DEEP)
    )
    return {"shallow": (shallow - slow) / fast, f"{DEEP} deeper": (deep - slow) / fast}


@measures(
    td704_debugging_left_on__LEAF_CALLS_LOW="least",
    td704_debugging_left_on__LEAF_CALLS_HIGH="most",
)
def anomaly_of_leaves() -> Figures:
    """What it adds to each of 400 parameters that one call takes, in plain calls."""
    leaves = [torch.ones(4, requires_grad=True) for _ in range(400)]

    def stack() -> None:
        torch.stack(leaves)

    fast, bare, shallow, deep = interleaved(
        plain(), stack, with_anomaly(stack), with_anomaly(stack, DEEP)
    )
    call = fast / CALLS * len(leaves)
    return {"shallow": (shallow - bare) / call, f"{DEEP} deeper": (deep - bare) / call}


def _nan_checks(tensors: int, numbers: int) -> tuple[float, float]:
    """What checking the gradients of one backward adds, and a plain call, ns. Each gradient comes
    from a view, which makes it for next to nothing."""
    leaves = [torch.ones(numbers, requires_grad=True) for _ in range(tensors)]
    views, ups = [leaf.view(-1) for leaf in leaves], [torch.ones(numbers) for _ in leaves]

    def backward(check: bool) -> Callable[[], None]:
        def run() -> None:
            with torch.autograd.set_detect_anomaly(True, check_nan=check):
                torch.autograd.grad(views, leaves, ups, retain_graph=True)

        return run

    fast, without, checked = interleaved(plain(), backward(False), backward(True))
    return (checked - without), fast / CALLS


@measures(
    td704_debugging_left_on__CHECK_CALLS_LOW="least",
    td704_debugging_left_on__CHECK_CALLS_HIGH="most",
)
def nan_check() -> Figures:
    figures = {}
    for tensors in (50, 200, 400):
        added, call = _nan_checks(tensors, 1)
        figures[f"{tensors} gradients"] = added / tensors / call
    return figures


@measures(td704_debugging_left_on__CHECK_NS_HIGH="most")
def nan_check_numbers() -> Figures:
    figures = {}
    for tensors, numbers in ((400, 4096), (50, 4096), (50, 65_536)):
        added, _ = _nan_checks(tensors, numbers)
        fixed, _ = _nan_checks(tensors, 1)
        figures[f"{tensors} × {numbers}"] = (added - fixed) / tensors / numbers
    return figures


@measures(fixed_cost__FIXED_COST_FACTOR="most")
def layers() -> Figures:
    """Forward and backward on one element, in calls of torch.add with theirs; layers in a row, so
    that starting backward is shared as in a model."""
    number, picture = torch.ones(2, 1), torch.ones(2, 1, 1, 1)
    made: dict[str, tuple[Callable[[], Any], Any]] = {
        "Linear": (lambda: nn.Linear(1, 1), number),
        "Conv2d": (lambda: nn.Conv2d(1, 1, 1), picture),
        "LayerNorm": (lambda: nn.LayerNorm(1), number),
        "BatchNorm2d": (lambda: nn.BatchNorm2d(1), picture),
        "ReLU": (nn.ReLU, number),
        "GELU": (nn.GELU, number),
        "Softmax": (lambda: nn.Softmax(dim=1), number),
    }
    figures = {}
    for name, (make, x) in made.items():
        row = nn.Sequential(*(make() for _ in range(IN_A_ROW)))
        start = x.clone().requires_grad_()

        def both(row: Any = row, start: Any = start) -> None:
            torch.autograd.grad(row(start), [start, *row.parameters()], torch.ones_like(start))

        unit, took = interleaved(graded(), both)
        figures[name] = (took / IN_A_ROW) / (unit / CALLS)
    return figures


@measures(call_parts__BACKWARD_TIMES="most")
def backward_of_small_calls() -> Figures:
    """Backward ÷ forward of what loops and broadcasts call, as a multiple of that of Linear."""
    rows, sequence, number = torch.randn(120, 64), torch.randn(64, 32, 16), torch.randn(16)
    large, table = torch.randn(64, 48, 24, 1), torch.randn(48, 24, 48)
    made: dict[str, tuple[Callable[..., Any], Any]] = {
        "one row": (lambda x: x[7], (rows,)),
        "a slice": (lambda x: x[:, 3:4], (sequence,)),
        "a small product": (torch.matmul, (number[None], torch.randn(16, 16))),
        "a small mul": (torch.mul, (number, number.clone())),
        "a mean of rows": (lambda x: x.mean(0), (rows,)),
        "a broadcast product, summed": (lambda x, w: (x * w).sum((1, 2)), (large, table)),
    }
    layer = _backward_by_forward(
        nn.functional.linear, (torch.randn(64, 256), torch.randn(256, 256))
    )
    return {name: _backward_by_forward(call, x) / layer for name, (call, x) in made.items()}


def _backward_by_forward(call: Callable[..., Any], given: Any) -> float:
    leaves = [x.clone().requires_grad_() for x in given]
    ups = [torch.ones_like(call(*leaves))] * IN_A_ROW

    def forward() -> list[Any]:
        return [call(*leaves) for _ in range(IN_A_ROW)]

    fast, both = interleaved(forward, lambda: torch.autograd.grad(forward(), leaves, ups))
    return (both - fast) / fast


@measures(loops__SMALL_CALL="most")
def losses() -> Figures:
    """Built-in losses on one sample of ten numbers, in plain calls, without backward."""
    f, x, y = nn.functional, torch.rand(1, 10, requires_grad=True), torch.rand(1, 10)
    label, sign = torch.tensor([3]), torch.ones(1)
    made: dict[str, Callable[[], Any]] = {
        "cross_entropy": lambda: f.cross_entropy(x, label),
        "nll_loss": lambda: f.nll_loss(x, label),
        "mse_loss": lambda: f.mse_loss(x, y),
        "l1_loss": lambda: f.l1_loss(x, y),
        "smooth_l1_loss": lambda: f.smooth_l1_loss(x, y),
        "bce_with_logits": lambda: f.binary_cross_entropy_with_logits(x, y),
        "kl_div": lambda: f.kl_div(x, y, reduction="batchmean"),
        "hinge_embedding_loss": lambda: f.hinge_embedding_loss(x, y),
        "margin_ranking_loss": lambda: f.margin_ranking_loss(x[:, 0], y[:, 0], sign),
        "cosine_embedding_loss": lambda: f.cosine_embedding_loss(x, y, sign),
        "triplet_margin_loss": lambda: f.triplet_margin_loss(x, y, y),
        "multi_margin_loss": lambda: f.multi_margin_loss(x, label),
        "gaussian_nll_loss": lambda: f.gaussian_nll_loss(x, y, y),
    }
    unit = plain()
    ratios = {name: interleaved(unit, loss) for name, loss in made.items()}
    return {name: took / (fast / CALLS) for name, (fast, took) in ratios.items()}
