"""Embedding tables whose gradients are as large as themselves."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import KernelFamily, Kernels
from tdiag.evidence.torch_ops import HostOp, HostOps
from tdiag.evidence.training import Clip, ClipCalls, EmbeddingTables
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, optimizers, phases

RULE = find("TD611")


def judged(*kinds: Any, **changes: Any) -> Finding | None:
    """The rule's own example, a table of a million rows, with these changes to the table."""
    evidence = RULE.fires()
    tables = evidence.get(EmbeddingTables)
    assert tables is not None
    mine = EmbeddingTables(tables=tuple(replace(x, **changes) for x in tables.tables))
    found = run_rule(RULE, evidence.add(mine, *kinds))
    assert found is None or isinstance(found, Finding)
    return found


def test_only_tables_that_nothing_else_uses_and_of_which_few_rows_are_looked_up() -> None:
    assert judged() is not None
    assert judged(sparse=True) is None
    assert judged(elsewhere=True) is None, "a shared output layer makes the gradient dense"
    assert judged(looked_up=1_000_000 / 7, distinct=1_000_000 / 7) is None
    assert judged(looked_up=0.0, distinct=0.0) is None


@pytest.mark.parametrize(("looked_up", "found"), [(200_000, True), (500_000, False)])
def test_a_row_that_a_step_looks_up_again_costs_less_than_another(
    looked_up: int, found: bool
) -> None:
    """Frequent words: 200,000 lookups of different rows would cost more than a dense update."""
    finding = judged(looked_up=float(looked_up))
    assert (finding is not None) == found
    assert judged(looked_up=float(looked_up), distinct=float(looked_up)) is None


def test_only_optimizers_that_have_a_sparse_form() -> None:
    assert judged(optimizers("RMSprop")) is None
    adam, sgd = judged(optimizers("Adam")), judged(optimizers("SGD", momentum=0.9))
    assert adam is not None and "SparseAdam for it and Adam at" in adam.fix.text
    assert sgd is not None and "SGD at train.py:45, which accepts such gradients" in sgd.fix.text


def test_what_sparse_gradients_cannot_have_is_said() -> None:
    clip = Clip(name="clip_grad_norm_", at=at(9), calls=1.0, elapsed_ns=1.0, total_ns=None,
                tensors=3, foreach=None)  # fmt: skip
    found = judged(optimizers("AdamW", weight_decay=0.01, fused=True), ClipCalls(clips=(clip,)))
    assert found is not None
    assert "cannot have weight_decay, fused=True, gradient clipping" in found.fix.text
    plain = judged(optimizers("Adam", weight_decay=0), ClipCalls(clips=()))
    assert plain is not None and "cannot" not in plain.fix.text


@pytest.mark.parametrize("op", ["embedding_dense_backward", "_embedding_bag_dense_backward"])
def test_making_the_gradient_counts_by_its_part_of_the_backward(op: str) -> None:
    making = HostOp(name=f"aten::{op}", count=1, self_ns=0, total_ns=8 * MS)
    traced = HostOps(per_step=9, total_per_step=20, ops=(making,),
                     backward_of={"forward": 10 * MS})  # fmt: skip
    without, found = judged(), judged(traced)
    assert without is not None and found is not None
    more = (found.at_best_ns - without.at_best_ns) / MS
    assert more == pytest.approx(0.8 * 20, rel=0.01)  # 8 of 10 ms, of a clean backward of 20 ms
    assert without.speedup is not None and found.speedup is not None
    assert found.speedup.low > without.speedup.low + 0.1


def test_freeing_the_gradient_counts_by_the_tables_part_of_zero_grad() -> None:
    freed = HostOps(per_step=9, total_per_step=20, ops=(), backward_of={},
                    zero_grad_frac={"prepare": 0.75})  # fmt: skip
    parts = {"forward": 2.0, "backward": 20.0, "optimizer": 60.0, "prepare": 8.0}
    step, clean = budget(**parts), phases(**parts)
    without, found = judged(step, clean), judged(step, clean, freed)
    assert without is not None and found is not None
    more = (found.at_best_ns - without.at_best_ns) / MS
    assert more == pytest.approx(6 * 128 / 130, rel=0.01)  # the table has 128 of 130 MB


def test_on_a_device_nothing_is_promised() -> None:
    family = KernelFamily(family="optimizer", count=4, device_ns=30.0 * MS, float32_ns=0.0,
                          tensor_core_ns=None)  # fmt: skip
    step = budget(device=True, compute=60)
    kernels = Kernels(families=(family,), count=4, device_ns=60.0 * MS)
    found = judged(step, kernels)
    assert found is not None and found.advisory and found.speedup is None
    assert judged(step) is None, "no kernel of the optimizer was seen"
