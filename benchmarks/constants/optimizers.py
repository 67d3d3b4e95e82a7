"""Optimizers, clipping and embeddings on one core."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from constants import Figures, interleaved, measures, times_as_fast
from constants.calls import CALLS, plain
from tdiag.evidence.training import Optimizer
from tdiag.rules import sgd as rule
from tdiag.rules.examples import optimizers

# Tensors and the numbers in each: from many small ones to a few large ones.
SIZES = ((100, 256), (100, 4096), (50, 65_536), (8, 1_048_576))
SMALL = ((100, 16), (100, 256), (100, 4096))


def parameters(tensors: int, numbers: int) -> list[Any]:
    made = [torch.zeros(numbers, requires_grad=True) for _ in range(tensors)]
    for one in made:
        one.grad = torch.randn(numbers)
    return made


def fused_wins(optimizer: Callable[..., Any]) -> Figures:
    return {
        f"{tensors} × {numbers}": times_as_fast(
            optimizer(parameters(tensors, numbers), foreach=False, fused=False).step,
            optimizer(parameters(tensors, numbers), fused=True).step,
        )
        for tensors, numbers in SIZES
    }


@measures(td702_optimizer_not_fused__ADAM_LOW="least", td702_optimizer_not_fused__ADAM_HIGH="most")
def adam() -> Figures:
    return fused_wins(torch.optim.AdamW)


SGDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "momentum, decay": {"momentum": 0.9, "weight_decay": 0.1},
    "Nesterov, decay": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
}


def described(settings: dict[str, Any]) -> Optimizer:
    """As the rule sees it."""
    return optimizers("SGD", **settings).optimizers[0]


def sgd(settings: dict[str, Any], tensors: int, numbers: int, **form: bool) -> Callable[[], Any]:
    made = parameters(tensors, numbers)
    return torch.optim.SGD(made, lr=0.01, **settings, **form).step


@measures(sgd__CALL_ADDS="least")
def sgd_calls() -> Figures:
    one, other = torch.ones(1), torch.ones(1)
    figures = {}
    for name, settings in SGDS.items():
        for numbers in (16, 1024):
            loop, add = interleaved(
                sgd(settings, 100, numbers, foreach=False), partial(torch.add, one, other)
            )
            figures[f"{name}, 100 × {numbers}"] = loop / 100 / rule.calls(described(settings)) / add
    return figures


@measures(sgd__FIXED_LOW="least", sgd__FIXED_HIGH="most")
def sgd_small() -> Figures:
    return {
        f"{name}, 100 × {numbers}": fused_sgd_wins(settings, 100, numbers)
        / rule.calls(described(settings))
        for name, settings in SGDS.items()
        for numbers in (16, 1024)
    }


@measures(sgd__PLAIN_LOW="least")
def plain_sgd_large() -> Figures:
    return large_sgd_wins("plain")


@measures(sgd__WORK_LOW="least", sgd__WORK_HIGH="most")
def sgd_large() -> Figures:
    return large_sgd_wins("decay", "momentum", "momentum, decay")


@measures(sgd__FRESH_WORK_HIGH="most")
def nesterov_large() -> Figures:
    return large_sgd_wins("Nesterov, decay")


def large_sgd_wins(*names: str) -> Figures:
    return {
        f"{name}, {tensors} × {numbers}": fused_sgd_wins(SGDS[name], tensors, numbers)
        / rule.fewer_passes(described(SGDS[name]))
        for name in names
        for tensors, numbers in ((50, 65_536), (8, 1_048_576))
    }


@measures(sgd__FOREACH_FIXED_LOW="least")
def sgd_small_foreach() -> Figures:
    return {
        f"{name}, 100 × {numbers}": fused_sgd_wins(settings, 100, numbers, foreach=True)
        / rule.calls(described(settings))
        for name, settings in SGDS.items()
        for numbers in (16, 1024)
    }


def fused_sgd_wins(
    settings: dict[str, Any], tensors: int, numbers: int, foreach: bool = False
) -> float:
    return times_as_fast(
        sgd(settings, tensors, numbers, foreach=foreach),
        sgd(settings, tensors, numbers, fused=True),
    )


@measures(
    td702_optimizer_not_fused__ADAGRAD_LOW="least", td702_optimizer_not_fused__ADAGRAD_HIGH="most"
)
def adagrad() -> Figures:
    return fused_wins(torch.optim.Adagrad)


@measures(
    td710_optimizer_loops_over_tensors__FOREACH_LOW="least",
    td710_optimizer_loops_over_tensors__FOREACH_HIGH="most",
)
def foreach() -> Figures:
    """SGD with momentum, and Adam, written by hand: a loop over tensors, and torch's foreach
    functions."""
    figures = {}
    for tensors, numbers in SMALL:
        figures[f"SGD, {tensors} × {numbers}"] = times_as_fast(*_sgd_by_hand(tensors, numbers))
        figures[f"Adam, {tensors} × {numbers}"] = times_as_fast(*_adam_by_hand(tensors, numbers))
    return figures


GROUPED: dict[str, Callable[..., Any]] = {
    "fused AdamW": partial(torch.optim.AdamW, fused=True),
    "foreach AdamW": partial(torch.optim.AdamW, foreach=True),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
}


@measures(td751_groups_of_one_tensor__CALLS_OF_GROUP="least")
def groups() -> Figures:
    """A further parameter group of one tensor, in calls of ``torch.add`` on one number."""
    figures = {}
    for name, make in GROUPED.items():
        for tensors, numbers in SMALL:
            made, others = parameters(tensors, numbers), parameters(tensors, numbers)
            apart, joined, call = interleaved(
                make([{"params": [p]} for p in made]).step, make(others).step, plain()
            )
            figures[f"{name}, {tensors} × {numbers}"] = (
                (apart - joined) / (tensors - 1) / (call / CALLS)
            )
    return figures


def _sgd_by_hand(tensors: int, numbers: int) -> tuple[Callable[[], None], Callable[[], None]]:
    made = parameters(tensors, numbers)
    grads, velocities = [p.grad for p in made], [torch.zeros_like(p) for p in made]

    @torch.no_grad()
    def loop() -> None:
        for p, velocity in zip(made, velocities, strict=True):
            velocity.mul_(0.9).add_(p.grad)
            p.add_(velocity, alpha=-0.01)

    @torch.no_grad()
    def at_once() -> None:
        torch._foreach_mul_(velocities, 0.9)
        torch._foreach_add_(velocities, grads)
        torch._foreach_add_(made, velocities, alpha=-0.01)

    return loop, at_once


def _adam_by_hand(tensors: int, numbers: int) -> tuple[Callable[[], None], Callable[[], None]]:
    made = parameters(tensors, numbers)
    grads = [p.grad for p in made]
    means, squares = ([torch.zeros_like(p) for p in made] for _ in range(2))

    @torch.no_grad()
    def loop() -> None:
        for p, mean, square in zip(made, means, squares, strict=True):
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.addcdiv_(mean, square.sqrt().add_(1e-8), value=-0.001)

    @torch.no_grad()
    def at_once() -> None:
        torch._foreach_mul_(means, 0.9)
        torch._foreach_add_(means, grads, alpha=0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, grads, grads, value=0.001)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(made, means, roots, value=-0.001)

    return loop, at_once


@measures(td705_gradients_clipped_one_by_one__FOREACH_WINS="median")
def clipping() -> Figures:
    clip = torch.nn.utils.clip_grad_norm_
    return {
        f"{tensors} × {numbers}": times_as_fast(
            partial(clip, made, 1.0, foreach=False), partial(clip, made, 1.0, foreach=True)
        )
        for tensors, numbers in ((100, 64), (100, 512), (100, 4096))
        for made in [parameters(tensors, numbers)]
    }


def table(rows: int, looked_up: int | None, distinct: int | None = None) -> Any:
    """A table of 64 numbers a row with a dense gradient, or one of rows that were looked up.
    ``distinct``: so many of them, each about as often."""
    made = torch.zeros(rows, 64, requires_grad=True)
    if looked_up is None:
        made.grad = torch.randn(rows, 64)
    else:
        at = torch.randint(rows, (1, looked_up))
        if distinct is not None:
            at = torch.randperm(rows)[:distinct].repeat(-(-looked_up // distinct))
            at = at[torch.randperm(looked_up)].unsqueeze(0)
        made.grad = torch.sparse_coo_tensor(
            at, torch.randn(looked_up, 64), (rows, 64), check_invariants=False
        )
    return made


@measures(td611_embedding_updated_whole__SPARSE_AGAIN_FACTOR="most")
def sparse_duplicates() -> Figures:
    figures = {}
    for name in ("SGD", "Adam", "Adagrad"):
        for rows, distinct, looked_up in ((50_000, 2_000, 8_000), (50_000, 2_000, 32_000)):
            dense, sparse = updates(name)
            many = table(rows, looked_up, distinct)
            whole, once, again = interleaved(
                dense([table(rows, None)]).step,
                sparse([table(rows, distinct, distinct)]).step,
                sparse([many]).step,
            )
            more = (again - once) / (looked_up - distinct)
            figures[f"{name}, {looked_up} of {distinct} of {rows}"] = more / (whole / rows)
    return figures


def updates(name: str) -> tuple[Callable[[list[Any]], Any], Callable[[list[Any]], Any]]:
    """Dense and sparse."""
    if name in ("SGD", "Adagrad"):
        return (partial(getattr(torch.optim, name), lr=0.01),) * 2
    return torch.optim.Adam, torch.optim.SparseAdam


@measures(td611_embedding_updated_whole__SPARSE_ROW_FACTOR="most")
def sparse_rows() -> Figures:
    figures = {}
    for name in ("SGD", "Adam", "Adagrad"):
        for rows, looked_up in ((10_000, 1_000), (10_000, 5_000), (50_000, 12_000)):
            dense, sparse = updates(name)
            whole, few = interleaved(
                dense([table(rows, None)]).step, sparse([table(rows, looked_up)]).step
            )
            figures[f"{name}, {looked_up} of {rows}"] = (few / looked_up) / (whole / rows)
    return figures


@measures(td611_embedding_updated_whole__SPARSE_FIXED_NS="most")
def sparse_fixed() -> Figures:
    figures = {}
    for name in ("Adam", "Adagrad"):
        for looked_up in (1, 16, 64):
            sparse = updates(name)[1]([table(10_000, looked_up)])
            (figures[f"{name}, {looked_up} rows"],) = interleaved(sparse.step)
    return figures
