"""Transforms on a device: by their kernels, of which at best nothing is left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import OpWork, Work
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, device_time

RULE = find("TD743")


def test_the_kernels_of_all_transforms_count() -> None:
    evidence = RULE.fires().add(budget(device=True, compute=40))
    untraced = run_rule(RULE, evidence)
    assert isinstance(untraced, Abstained) and untraced.missing == "no device activity was traced"
    forward = OpWork(
        name="aten::_fft_r2c", dims=((16, 8191),), dtype="float32", count=6, flops=0, moved=1e6,
        host_ns=MS, device_ns=6 * MS,
    )  # fmt: skip
    backward = replace(forward, name="aten::_fft_c2c", device_ns=9 * MS, backward=True)
    other = replace(forward, name="aten::mm", device_ns=25 * MS)
    device = device_time(40, components_ns={"compute": 40 * MS})
    found = run_rule(RULE, evidence.add(Work(ops=(forward, backward, other), calls=20), device))
    assert isinstance(found, Finding) and found.speedup
    assert "they take 15.0 ms per step (38%) with their backward" in found.summary
    assert found.speedup.low == pytest.approx(40 / (40 - 15 / 3), rel=0.01)
    assert found.at_best_ns == pytest.approx(15 * MS)
