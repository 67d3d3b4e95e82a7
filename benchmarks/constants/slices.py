"""Slices taken one by one in a loop against one ``unbind`` or ``split``, with their backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from constants import Figures, interleaved, measures

# Shape and dimension: time steps, sensors, patches, heads, three parts of a projection.
TAKEN = (
    ((32, 207, 32), 1), ((64, 100, 64), 1), ((16, 400, 128), 1), ((128, 48, 256), 1),
    ((8, 16, 256, 64), 1), ((64, 12, 1000), 1), ((32, 128, 3, 96), 2), ((24, 256, 300), 0),
)  # fmt: skip


def one_by_one(x: Any, dim: int) -> list[Any]:
    return [x.select(dim, number) for number in range(x.shape[dim])]


def differentiated(take: Callable[[Any, int], Any], x: Any, dim: int) -> Callable[[], None]:
    gradients = [torch.ones_like(part) for part in take(x, dim)]

    def work() -> None:
        x.grad = None
        torch.autograd.backward(take(x, dim), gradients)

    return work


def whole_gradients_frac(work: Callable[[], None]) -> float:
    """Share of the work's time that fills and adds gradients as large as the whole tensor."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            work()
    rows = profiler.key_averages()
    whole = sum(r.self_cpu_time_total for r in rows if r.key in ("aten::fill_", "aten::add_"))
    return float(whole / sum(r.self_cpu_time_total for r in rows))


@measures(td750_gradient_for_each_slice__SAVED_LOW_FRAC="least",
          td750_gradient_for_each_slice__SAVED_HIGH_FRAC="most")  # fmt: skip
def slices() -> Figures:
    """What taking the parts at once saves, in times of the time of the whole gradients."""
    figures = {}
    for shape, dim in TAKEN:
        x = torch.randn(shape, requires_grad=True)
        singly = differentiated(one_by_one, x, dim)
        at_once = differentiated(lambda x, dim: list(x.unbind(dim)), x, dim)
        before, after = interleaved(singly, at_once)
        figures[f"{shape} along {dim}"] = (1 - after / before) / whole_gradients_frac(singly)
    return figures
