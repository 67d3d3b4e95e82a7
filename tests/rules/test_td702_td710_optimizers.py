"""Loops over the parameters: told from updates whose calls do work, and from foreach forms."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import EmbeddingTable, EmbeddingTables, Optimizers
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, budget, environment, op_line, ops, optimizers, phases

DISPATCH = Dispatch(op_ns=1500, grad_op_ns=7000)


def updating(
    name: str = "SignSGD",
    calls: float = 200,
    call_us: float = 8.0,
    device: bool = False,
    in_loop: bool = True,
    **config: bool | None,
) -> Evidence:
    """A step of 20 ms besides the optimizer, which makes so many calls of that length."""
    line = op_line(17, "optimizer", calls, elapsed_ns=calls * 5000, in_loop=in_loop)
    step = budget(forward=0.5, backward=0.9, optimizer=calls * call_us / 1000, device=device)
    evidence = Evidence().add(step, ops(line), DISPATCH, environment())
    return evidence.add(optimizers(name, **config))


def fires(code: str, evidence: Evidence) -> bool:
    return isinstance(run_rule(find(code), evidence), Finding)


@pytest.mark.parametrize(
    ("evidence", "loops"),
    [
        (updating(), True),
        (updating(call_us=9.0), True),  # six times a call without work
        (updating(call_us=9.1), False),
        (updating(calls=48), True),
        (updating(calls=47), False),
        (updating(in_loop=False), True),  # a library's optimizer loops, inside one call of the line
        (updating(in_loop=False, calls=47), False),
        (updating("RMSprop", foreach=None), True),
        (updating("RMSprop", calls=12, call_us=60.0, foreach=True), False),
        (updating(device=True, call_us=30.0), True),  # the device idles meanwhile: measured
    ],
)
def test_loops_over_small_tensors_and_nothing_else_are_found(
    evidence: Evidence, loops: bool
) -> None:
    assert fires("TD710", evidence) is loops


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_an_optimizer_with_a_fused_form_gets_that_advice_alone(name: str) -> None:
    evidence = updating(name, fused=None, foreach=False, momentum=name == "SGD")
    assert fires("TD702", evidence) and not fires("TD710", evidence)
    assert not fires("TD702", updating(name, fused=True))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_class_with_torchs_name_and_no_such_switch_is_another_makers(name: str) -> None:
    """A user's own Adam, bitsandbytes' AdamW, and torch's SGD before 2.3."""
    assert not fires("TD702", updating(name)) and fires("TD710", updating(name))
    decaying = Evidence().add(optimizers(name, weight_decay=0.1))
    assert not fires("TD002", decaying)


def test_a_fused_form_takes_no_sparse_gradient_and_no_foreach() -> None:
    table = EmbeddingTable(
        name="users", at=None, rows=9, bytes=36, looked_up=2.0, distinct=2.0, sparse=True,
        elsewhere=False,
    )  # fmt: skip
    evidence = updating("SGD", fused=None, foreach=True, momentum=True)
    found = run_rule(find("TD702"), evidence)
    assert isinstance(found, Finding) and "fused=True instead of foreach=True" in found.fix.text
    evidence.add(EmbeddingTables(tables=(table,)))
    assert not fires("TD702", evidence)
    (sgd,) = optimizers("SGD", fused=None, momentum=True).optimizers
    two = Optimizers(optimizers=(sgd, msgspec.structs.replace(sgd, name="SparseAdam")))
    assert fires("TD702", evidence.add(two)), "the table has an optimizer of its own"


def test_adagrad_has_no_fused_form_on_a_device() -> None:
    assert not fires("TD702", updating("Adagrad", device=True, fused=None))
    assert fires("TD702", updating("Adam", device=True, fused=None))


def test_the_switch_is_named_where_torch_has_one_and_the_line_where_it_has_not() -> None:
    switch = run_rule(find("TD710"), updating("RMSprop", foreach=False))
    own = run_rule(find("TD710"), updating())
    assert isinstance(switch, Finding) and isinstance(own, Finding)
    assert "foreach=True in torch.optim.RMSprop at train.py:45" in switch.fix.text
    assert "at train.py:17 by torch._foreach_" in own.fix.text
    assert (switch.fix.intervention, own.fix.intervention) == ("optimizer.foreach", None)


def test_a_librarys_optimizer_is_not_to_be_rewritten() -> None:
    found = run_rule(find("TD710"), updating("Lion", in_loop=False))
    assert isinstance(found, Finding)
    assert "the option of Lion at train.py:45" in found.fix.text
    assert "_foreach_mul_" not in found.fix.text


def test_an_optimizer_that_is_no_torch_optim_at_all_is_found_by_its_calls() -> None:
    evidence = updating()
    evidence.facts = {k: v for k, v in evidence.facts.items() if k.__name__ != "Optimizers"}
    assert fires("TD710", evidence)


def test_an_update_that_takes_little_of_the_step_is_left_alone() -> None:
    evidence = updating()  # 1.6 ms
    evidence.add(budget(forward=5, backward=9.41, optimizer=1.6))
    assert not fires("TD710", evidence)
    evidence.add(budget(forward=5, backward=9.39, optimizer=1.6))
    assert fires("TD710", evidence)
    assert 1.6 * MS >= 0.1 * (5 + 9.39 + 1.6) * MS


def test_several_optimizers_of_a_kind_update_the_tensors_of_all() -> None:
    """A GAN's two, whose updates are measured together."""
    both = optimizers("SGD", fused=None, momentum=0.9)
    both = replace(both, optimizers=both.optimizers * 2)
    found = run_rule(find("TD702"), updating(calls=1000).add(both))
    assert isinstance(found, Finding)
    assert found.evidence[1].value == 2 * both.optimizers[0].tensors


def test_clipping_is_no_part_of_the_update() -> None:
    """Of 10 ms between backward and the step's end the update takes 1: 5 % of the step."""
    clipped = updating("SGD", calls=1000, call_us=10, fused=None, momentum=True)
    assert fires("TD702", clipped)
    whole = phases(optimizer=10)
    assert not fires("TD702", clipped.add(msgspec.structs.replace(whole, update_ns=0.5e6)))


@pytest.mark.parametrize(("updates", "expected_ms"), [(0.05, None), (0.3, 6.0)])
def test_callbacks_inside_a_frameworks_step_are_no_update(
    updates: float, expected_ms: float | None
) -> None:
    """Lightning calls backward and `on_before_optimizer_step` within torch's step: 6 of 20 ms."""
    torchs, lightnings = "/lib/torch/optim/adam.py", "/lib/lightning/trainer.py"
    frames = (
        CallFrame(name="main", file="/me/train.py", line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="Adam.step", file=torchs, line=0, parent=0, frac=0.5, user=False),
        CallFrame(name="call", file=lightnings, line=0, parent=1, frac=0.5 - updates, user=False),
        CallFrame(name="before_step", file="/me/train.py", line=90, parent=2, frac=0.4 - updates,
                  user=True),
        CallFrame(name="backward", file="/lib/torch/_tensor.py", line=0, parent=2, frac=0.1,
                  user=False),
    )  # fmt: skip
    step = budget(forward=6, backward=8, optimizer=6)
    clean = replace(phases(forward=6, backward=8, optimizer=6), update_ns=6.0 * MS)
    evidence = Evidence().add(step, clean, environment(), optimizers("Adam", fused=None))
    evidence.add(CallTrees(training=frames, workers=()))
    found = run_rule(find("TD702"), evidence)
    told = found.evidence[0].value / MS if isinstance(found, Finding) else None
    assert told == expected_ms
