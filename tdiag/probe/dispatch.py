"""Measures what one op costs here before it does any work."""

from __future__ import annotations

import time

import torch

OPS, ROUNDS = 100, 5


def measure_dispatch() -> dict[str, float]:
    """The fields of the `dispatch` record: ns per op on one element, on the CPU, without and with
    gradients (forward and backward together). The best of a few rounds: noise only adds.

    Takes about a millisecond, between two windows; touches no random state.
    """
    value = torch.ones(1, device="cpu")
    with torch.no_grad():
        plain = min(_time_plain(value) for _ in range(ROUNDS))
    with torch.enable_grad():
        graded = min(_time_graded(value) for _ in range(ROUNDS))
    return {"op_ns": plain / OPS, "grad_op_ns": graded / OPS}


def _time_plain(value: torch.Tensor) -> int:
    began = time.perf_counter_ns()
    for _ in range(OPS):
        torch.add(value, value)
    return time.perf_counter_ns() - began


def _time_graded(value: torch.Tensor) -> int:
    leaf = value.clone().requires_grad_()
    began = time.perf_counter_ns()
    result = leaf
    for _ in range(OPS):
        result = torch.add(result, value)
    result.backward()
    return time.perf_counter_ns() - began
