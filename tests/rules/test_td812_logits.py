"""Logits that fill the memory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.roofline import Work
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import GB, environment, system

RULE = find("TD812")


def judged(*kinds: Any, **changes: Any) -> Finding | Abstained | None:
    evidence = RULE.fires()
    known = evidence.get(Work)
    assert known is not None
    work = Work(ops=(replace(known.ops[0], **changes),), calls=known.calls)
    return run_rule(RULE, evidence.add(work, *kinds))


@pytest.mark.parametrize(
    "changes",
    [
        {"dims": ((8 * 4096, 32_000),)},  # 12.6 of 76 GB
        {"name": "aten::_softmax"},
        {"dims": ()},
        {"dtype": "int64"},
    ],
)
def test_silent_where_logits_are_a_small_part_or_none(changes: dict[str, Any]) -> None:
    assert isinstance(judged(), Finding)
    assert judged(**changes) is None


def test_rows_of_all_leading_dimensions_count() -> None:
    found = judged(dims=((8, 4096, 128_256),))
    assert isinstance(found, Finding) and "32,768 × 128,256" in found.summary


def test_an_older_torch_is_offered_no_function_that_it_lacks() -> None:
    old = judged(environment(device="NVIDIA A100", device_count=1, torch="2.8.0"))
    assert isinstance(old, Finding) and not old.fix.code
    assert "torch.utils.checkpoint" in old.fix.text


def test_without_a_device_the_programs_own_memory_counts() -> None:
    crowded = system(rss_bytes=76 * GB, ram_available_bytes=4 * GB)
    assert isinstance(judged(environment(), crowded), Finding)
    assert judged(environment(), system(rss_bytes=76 * GB, ram_available_bytes=40 * GB)) is None


def test_the_code_gives_the_loss_and_its_gradients() -> None:
    import torch

    found = judged()
    assert isinstance(found, Finding) and found.fix.code
    model = torch.nn.Module()
    model.head = torch.nn.Linear(8, 50, bias=False)
    hidden, targets = torch.randn(64, 8), torch.randint(50, (64,))
    scope: dict[str, Any] = {"torch": torch, "model": model, "hidden": hidden, "targets": targets}
    exec(found.fix.code, scope)
    scope["loss"].backward()
    chunked = model.head.weight.grad
    model.head.weight.grad = None
    loss = torch.nn.functional.cross_entropy(model.head(hidden), targets)
    loss.backward()
    assert torch.allclose(loss, scope["loss"])
    assert torch.allclose(model.head.weight.grad, chunked, atol=1e-6)
