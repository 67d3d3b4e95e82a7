"""What the counted steps tell of the model: moved again, clipped, kept, computed twice, reduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import Transfers
from tdiag.evidence.memory import GrowingGraph, Kept, MemoryGrowth
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls
from tdiag.evidence.training import (
    Activation,
    Clip,
    ClipCalls,
    GraphShares,
    Layers,
    Modules,
    Optimizer,
    Optimizers,
    Recomputations,
    UnusedBackward,
)
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.model.kind import Kind
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    GB,
    MB,
    MS,
    at,
    budget,
    copy,
    ddp_settings,
    device_holds,
    device_time,
    environment,
    module,
    op_line,
    ops,
    system,
)

ON_CPU, ON_DEVICE = environment(), environment(device="NVIDIA H200", device_count=1)


def result(code: str, *kinds: Kind) -> Finding | Abstained | None:
    return run_rule(find(code), Evidence().add(*kinds))


def finding(code: str, *kinds: Kind) -> Finding:
    found = result(code, *kinds)
    assert isinstance(found, Finding), found
    return found


def saved_ms(found: Finding, step_ms: float) -> tuple[float, float]:
    assert found.speedup is not None
    low, high = step_ms * (1 - 1 / found.speedup.low), found.at_best_ns / MS
    return round(low, 1), round(high, 1)


def test_what_is_sent_again_costs_its_share_of_bytes_to_its_share_of_copies() -> None:
    """Two of five copies, 10 of 100 MB, of 20 ms: 2 to 8 ms."""
    line = replace(op_line(58, "forward", 6), moved_again=2.0, moved_bytes=10.0 * MB)
    step = budget(device=True, compute=30, h2d=20)
    sent = Transfers(copies=(copy(count=5.0, bytes=100.0 * MB),))
    found = finding("TD304", step, ops(line), sent, device_time(50))
    assert saved_ms(found, 50) == (2.0, 8.0)
    untraced = finding("TD304", step, ops(line))
    assert untraced.advisory


@pytest.mark.parametrize(("trained", "line"), [(None, 41), (52, 52)])
def test_unused_gradients_are_where_the_module_is_called_in_either_mode(
    trained: int | None, line: int
) -> None:
    """A teacher made of torch's own layers, in evaluation mode, has no other line of the user's."""
    teacher = module(
        "Sequential", parameters=50_000, unused_gradients=50_000, evaluated_at=at(41, "targets"),
        trained_at=at(trained, "step") if trained else None,
    )  # fmt: skip
    found = finding("TD717", budget(forward=8, backward=20), Modules(modules=(teacher,)))
    assert found.location is not None and found.location.line == line


AVERAGED = """\
class Pair:
    def __init__(self, online):
        self.online, self.target = online, copy.deepcopy(online)

    def forward(self, x):
        return self.online(x) - self.target(x)
"""


@pytest.mark.parametrize(("within", "line"), [("target", 6), ("body.target", 6), ("teacher", 41)])
def test_unused_gradients_are_where_the_part_that_has_them_is_called(
    within: str, line: int, tmp_path: Path
) -> None:
    (tmp_path / "pair.py").write_text(AVERAGED)
    called = at(41, "fit", str(tmp_path / "pair.py"))
    pair = module("Pair", unused_gradients=1000, trained_at=called, unused_within=within)
    found = finding("TD717", budget(forward=8, backward=20), Modules(modules=(pair,)))
    assert found.location is not None and found.location.line == line
    assert f"all of Pair's {within} at pair.py:{line}" in found.summary


FREEZES = """\
def correct(model):
    for p in model.parameters():
        p.requires_grad = False

def freeze(module, head):
    head.requires_grad = True
    module.requires_grad = False
"""


def test_an_attribute_that_freezes_nothing_is_named_where_it_is_set(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FREEZES)
    (tmp_path / "other.py").write_text(FREEZES.partition("def freeze")[0])

    def found(file: str) -> Finding:
        called = at(41, "fit", str(tmp_path / file))
        net = module("Net", unused_gradients=1000, trained_at=called, frozen_by_name="encoder")
        return finding("TD717", budget(forward=8, backward=20), Modules(modules=(net,)))

    place = found("train.py").location
    assert place is not None and (place.line, place.function) == (7, "freeze")
    assert "on the module encoder is an attribute that nothing reads" in found("train.py").summary
    place = found("other.py").location
    assert place is not None and place.line == 41


@pytest.mark.parametrize(
    ("with_state", "line", "saved"), [(0, 41, (0.0, 16.0)), (50_000, 7, (4.0, 24.0))]
)
def test_an_optimizer_also_updates_the_state_of_what_it_leaves_alone(
    with_state: int, line: int, saved: tuple[float, float]
) -> None:
    """Its learning rate is 0, and they are four fifths of the model."""
    model = module("Net", parameters=62_500, unused_gradients=50_000, trained_at=at(41),
                   unused_with_state=with_state)  # fmt: skip
    made = Optimizer(name="AdamW", created_at=at(7), tensors=16, config={})
    step = budget(forward=8, backward=20, optimizer=10)
    found = finding("TD717", step, Modules(modules=(model,)), Optimizers(optimizers=(made,)))
    assert found.location is not None and found.location.line == line
    assert saved_ms(found, 38) == saved


def test_unused_gradients_take_their_share_of_the_graph() -> None:
    """A bank of filters, called twice: a tenth of the parameters, and 20 % to 40 % of backward."""
    bank = module("Bank", parameters=50_000, unused_gradients=5_000, trained_at=at(41))
    graph = UnusedBackward(shares=GraphShares(nodes=0.4, products=0.3, numbers=0.2))
    found = finding("TD717", budget(forward=8, backward=20), Modules(modules=(bank,)), graph)
    assert saved_ms(found, 28) == (3.6, 8.0)  # nine tenths of the least share, the largest


LAYERS = Layers(
    classes={}, mode_dependent=(), dtypes={}, conv_bytes=0, channels_last_bytes=0,
    bias_before_norm=None, out_of_place=None,
)  # fmt: skip


def test_a_model_whose_calls_were_not_followed_is_not_judged() -> None:
    assert isinstance(result("TD607", LAYERS), Abstained)
    assert isinstance(result("TD808", LAYERS, system(), ON_CPU), Abstained)


@pytest.mark.parametrize(("held_mb", "fires"), [(100, True), (99, False)])
def test_activations_count_from_a_twentieth_of_the_memory_in_use(held_mb: int, fires: bool) -> None:
    relu = Activation(name="relu", at=at(24), calls=1.0, bytes=1e9, held_bytes=held_mb * 1.0 * MB)
    layers = replace(LAYERS, out_of_place=(relu, replace(relu, held_bytes=0.0)))
    assert isinstance(result("TD808", layers, system(rss_bytes=2 * GB), ON_CPU), Finding) is fires
    on_device = device_holds(2 * GB)
    assert isinstance(result("TD808", layers, on_device, ON_DEVICE), Finding) is fires


def clipping(calls: float, foreach: bool | None, elapsed_ms: float = 3.0) -> tuple[Kind, ...]:
    clip = Clip(
        name="clip_grad_norm_", at=at(72), calls=calls, elapsed_ns=elapsed_ms * MS,
        total_ns=None, tensors=60, foreach=foreach,
    )  # fmt: skip
    clipped = op_line(72, "optimizer", 9, elapsed_ns=elapsed_ms * MS)
    stepped = op_line(73, "optimizer", 9, elapsed_ns=(10.0 - elapsed_ms) * MS)
    lines = ops(clipped, stepped)
    return budget(forward=50, optimizer=50), ClipCalls(clips=(clip,)), lines


@pytest.mark.parametrize(
    ("kinds", "saved"),
    [
        (clipping(1, False), (0.0, 3.5)),  # 15 ms of the optimizer's 50, at 1.3×
        (clipping(60, None), (0.0, 14.8)),  # all but one of 60 calls
        (clipping(1, None), None),
        (clipping(2, True), None),  # two optimizers
        (clipping(60, None, elapsed_ms=0.99), None),  # under a twentieth of the step
    ],
)
def test_clipping_tensor_by_tensor(
    kinds: tuple[Kind, ...], saved: tuple[float, float] | None
) -> None:
    found = result("TD705", *kinds)
    assert saved is None if found is None else saved_ms(finding("TD705", *kinds), 100) == saved


def test_clipping_in_one_call_is_measured_where_it_is_one_already() -> None:
    looped, one = (finding("TD705", *clipping(*how)) for how in ((60, None), (1, False)))
    assert (looped.fix.intervention, one.fix.intervention) == (None, "optimizer.clip_foreach")


def growth(graphs: float = 0.0, per_step: float = 0.0, **more: Any) -> MemoryGrowth:
    kept = Kept(at=at(52), tensors=1.0, bytes=per_step, graphs=graphs)
    return MemoryGrowth(kept=(kept,), bytes_per_step=per_step, since_steps=3, **more)


@pytest.mark.parametrize(
    ("grown", "fires"),
    [
        (growth(graphs=1.0, per_step=4.0), True),
        (growth(graphs=0.0, per_step=float(1 << 20)), True),
        (growth(graphs=0.0, per_step=float(1 << 20) - 1), False),
        (MemoryGrowth(kept=(), bytes_per_step=0.0, since_steps=3), False),
        (
            MemoryGrowth(
                kept=(), bytes_per_step=0.0, since_steps=3,
                graphs=(GrowingGraph(at=at(60), nodes=5.0),),
            ),
            True,
        ),
    ],
)  # fmt: skip
def test_graphs_count_whatever_their_size_and_data_from_a_mebibyte_on(
    grown: MemoryGrowth, fires: bool
) -> None:
    assert isinstance(result("TD805", grown, ON_CPU), Finding) is fires


def test_the_steps_until_memory_is_full_are_told_where_it_is_known() -> None:
    grown = growth(graphs=1.0, per_step=10.0 * MB, device_bytes_per_step=20.0 * MB)
    spare = device_holds(60 * GB)
    assert "is full after 1000 steps" in finding("TD805", grown, spare, ON_DEVICE).summary
    assert "fills" not in finding("TD805", grown, ON_DEVICE).summary
    little = growth(graphs=1.0, per_step=4.0)
    assert "fills" not in finding("TD805", little, spare, ON_DEVICE).summary


def twice(used_gb: int, inside_ms: float | None = 20.0) -> tuple[Kind, ...]:
    inside = None if inside_ms is None else inside_ms * MS
    row = CallRow(at=at(1), calls=1.0, own_ns=100.0 * MS, total_ns=100.0 * MS)
    return (
        budget(forward=20, backward=30),
        Recomputations(at=at(44), reentrant=True, calls=4.0, forward_ns=inside),
        Calls(steps=2, rows=(row,)),
        system(rss_bytes=used_gb * GB, ram_available_bytes=(32 - used_gb) * GB),
        ON_CPU,
    )


def test_recomputing_is_a_share_of_the_profiled_step() -> None:
    assert saved_ms(finding("TD807", *twice(16)), 50) == (5.0, 10.0)
    assert result("TD807", *twice(17)) is None
    assert isinstance(result("TD807", *twice(16, inside_ms=None)), Abstained)


def test_recomputing_on_a_device_is_named_and_not_priced_by_the_hosts_time() -> None:
    """cProfile sees how long the host takes to issue the blocks, not how long they compute."""
    on_device = (budget(device=True, compute=90, launch=10), device_holds(16 * GB), ON_DEVICE)
    found = finding("TD807", *twice(16)[:-2], *on_device)
    assert found.advisory
    assert found.location is not None


RANKS = environment(world_size=4)


@pytest.mark.parametrize(
    ("searching", "unused", "expected"),
    [(True, 0, Finding), (True, 1, type(None)), (True, None, Abstained), (False, 0, type(None))],
)
def test_unused_parameters(searching: bool, unused: int | None, expected: type) -> None:
    seen = ddp_settings(find_unused_parameters=searching, unused_parameters=unused)
    assert isinstance(result("TD904", seen, RANKS), expected)


@pytest.mark.parametrize(
    ("backwards", "synced", "expected"),
    [(4.0, 4.0, Finding), (4.0, 1.0, type(None)), (1.0, 1.0, type(None)), (None, None, Abstained)],
)
def test_micro_batches(backwards: float | None, synced: float | None, expected: type) -> None:
    seen = ddp_settings(backwards=backwards, synced=synced)
    step = budget(device=True, compute=80, comm=20)
    assert isinstance(result("TD905", step, seen, RANKS), expected)


@pytest.mark.parametrize("code", ["TD904", "TD905"])
def test_one_process_needs_no_ddp(code: str) -> None:
    step = budget(forward=10)
    assert result(code, step, ON_CPU) is None
    assert isinstance(result(code, step, RANKS), Abstained)
