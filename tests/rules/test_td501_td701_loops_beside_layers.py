"""Small calls in a loop beside a few large ones, both in the model's forward."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Place
from tdiag.rules.examples import MS, at, budget, call_tree, loaders, module, op_line, ops, phases

from .test_td4xx_to_td7xx_loss_and_overhead import DISPATCH, finding, loop, result, training


def large_layers(ms: float) -> OpLine:
    return op_line(10, "forward", 3, grad_calls=3.0, elapsed_ns=ms * MS, names={"linear": 3.0})


def in_forward(*lines: OpLine, forward: float, backward: float) -> Evidence:
    times = {"forward": forward, "backward": backward}
    return Evidence().add(budget(**times, other=1), phases(**times), DISPATCH, ops(*lines))


def test_a_few_large_calls_beside_a_loop_of_small_ones_are_no_overhead() -> None:
    """On average 8 µs a call, but 3 of them take half of forward's 4 ms and all of backward's."""
    loop_line = op_line(20, "forward", 900, elapsed_ns=2 * MS, in_loop=True, names={"mul": 900.0})
    mixed = in_forward(large_layers(2), loop_line, forward=4, backward=3.6)
    found = finding("TD701", mixed)
    assert found.at_best_ns == pytest.approx(2 * MS, rel=0.01)
    assert found.summary.startswith("A Python loop in forward takes 2.00 ms per step")
    told = {measure.name: measure.value for measure in found.evidence}
    assert told["torch calls in the loop"] == 900
    assert told["the loop and its backward"] == pytest.approx(2 * MS)


def test_a_loop_of_small_calls_is_found_beside_layers_that_do_any_amount_of_work() -> None:
    """The layers' 60 ms used to hide the loop: on average 67 µs a call."""
    loop_line = op_line(20, "forward", 900, elapsed_ns=4 * MS, in_loop=True, names={"mul": 900.0})
    found = finding("TD701", in_forward(large_layers(20), loop_line, forward=24, backward=40))
    assert found.location == loop_line.at
    assert found.at_best_ns == pytest.approx(4 * MS, rel=0.01)


def test_the_backward_of_a_loop_may_take_four_times_its_share() -> None:
    """Node by node: 80 % of the forward, and at most 16 ÷ 17 of backward."""
    nodes = op_line(17, "forward", 960, grad_calls=960.0, elapsed_ns=8 * MS, in_loop=True,
                    names={"mean": 240.0}, at=at(17, "forward"))  # fmt: skip
    found = finding("TD701", in_forward(nodes, large_layers(2), forward=10, backward=8))
    assert found.at_best_ns == pytest.approx((8 + 8 * 16 / 17) * MS, rel=0.001)


def attending(needs_ms: float) -> Evidence:
    """Attention position by position, 12 times the fixed cost of its calls: 64 products of 16 rows
    with keys, whose shapes need ``needs_ms`` with their backward."""
    line = op_line(26, "forward", 640, grad_calls=640.0, elapsed_ns=18 * MS, in_loop=True,
                   names={"matmul": 128.0, "softmax": 64.0}, at=at(26, "forward"))  # fmt: skip
    product = OpWork(name="aten::bmm", dims=((64, 1, 16), (64, 16, 32)), dtype="float32",
                     count=128.0, flops=needs_ms / 3 * 1e6, moved=4.0, host_ns=18 * MS,
                     device_ns=None, at=line.at)  # fmt: skip
    evidence = in_forward(line, forward=18, backward=36)
    roof = Roof(flops_per_s={"float32": 1e9}, bytes_per_s=(), source="measured")
    back = replace(product, flops=2 * product.flops, backward=True)
    return evidence.add(roof, Work(ops=(product, back), calls=1900.0))


def test_a_loop_whose_shapes_need_little_of_its_time_is_found_by_the_roofline() -> None:
    found = finding("TD701", attending(needs_ms=3))
    assert found.location is not None
    assert found.location.line == 26
    assert found.at_best_ns == pytest.approx(54 * MS, rel=0.01)


def test_a_loop_whose_calls_work_is_none_of_little_calls() -> None:
    assert result("TD701", attending(needs_ms=30)) is None


def test_the_work_of_another_method_of_that_name_is_not_the_loops(tmp_path: Path) -> None:
    """Each class of the file has a ``forward``; a trace names where each begins."""
    script = tmp_path / "model.py"
    script.write_text(
        "class Body:\n    def forward(self, x):\n        return x @ self.w\n"
        "class Readout:\n    @traced\n    def forward(self, x):\n"
        "        for g in range(64):\n            pool(x[g])\n"
    )
    evidence = attending(needs_ms=30)
    counted, work = evidence.get(Ops), evidence.get(Work)
    assert counted is not None and work is not None

    def moved(line: int) -> Evidence:
        """The work is in a ``forward`` that begins at this line."""
        there = at(line, "forward", str(script))
        loop = replace(counted.lines[0], at=at(8, "forward", str(script)))
        return evidence.add(
            replace(counted, lines=(loop, *counted.lines[1:])),
            replace(work, ops=tuple(replace(op, at=there) for op in work.ops)),
        )

    assert result("TD701", moved(5)) is None
    # What the loop itself needs is unknown then, and so is whether its calls do little.
    assert result("TD701", moved(2)) is None
    mine = replace(work.ops[0], at=at(5, "forward", str(script)), flops=1e6)
    both = moved(2).get(Work)
    assert both is not None
    assert result("TD701", evidence.add(replace(both, ops=(*both.ops, mine)))) is not None


def test_tensors_made_one_by_one_are_no_small_calls_of_the_model() -> None:
    """As an agent takes a batch from its memory, between two calls of its model."""
    made = op_line(20, "forward", 512, elapsed_ns=3 * MS, in_loop=True, names={"tensor": 512.0})
    evidence = in_forward(replace(made, constructions=512.0), forward=3, backward=1)
    assert result("TD701", in_forward(made, forward=3, backward=1)) is not None
    assert result("TD701", evidence) is None
    assert result("TD207", evidence) is not None


def test_a_loss_inside_the_models_forward_has_all_lines_of_its_loop() -> None:
    """As models that return their loss do it. The lines that read no value belong to the loop."""
    looping = {"in_loop": True, "at": at(37, "loss_of")}
    asks = op_line(37, "forward", 128, conversions={"bool": 128.0}, elapsed_ns=1 * MS, **looping)
    picks = replace(asks, at=replace(asks.at, line=35), calls=384.0, conversions={})
    picks = replace(picks, grad_calls=1.0)
    layers = replace(large_layers(2), in_loop=True, calls=9.0, grad_calls=9.0)
    elsewhere = replace(picks, at=at(60, "pool"), calls=200.0)
    evidence = in_forward(layers, asks, picks, elsewhere, forward=5, backward=3.6)
    found = finding("TD501", evidence)
    assert found.at_best_ns == pytest.approx(2 * MS, rel=0.01)
    assert result("TD701", in_forward(layers, asks, picks, forward=5, backward=3.6)) is None


@pytest.mark.parametrize(
    ("name", "names", "of_loss"),
    [
        ("critic_loss", {"cross_entropy": 300.0}, True),
        ("Trainer.nll", {"cross_entropy": 300.0}, True),
        ("draw", {"cross_entropy": 300.0}, False),
        ("training_loss", {"linear": 300.0}, False),  # a library's layers, called from there
    ],
)
def test_a_loss_that_is_computed_before_another_models_forward_is_a_loss(
    name: str, names: dict[str, float], of_loss: bool
) -> None:
    """As a GAN computes the critic's: after it the generator's output goes through the critic."""
    draws = op_line(36, "forward", 300, grad_calls=300.0, elapsed_ns=2 * MS, in_loop=True,
                    names=names, at=at(36, name))  # fmt: skip
    evidence = in_forward(large_layers(2), draws, forward=4, backward=4)
    evidence.add(Modules(modules=(module("Net", 10),)))
    assert (result("TD501", evidence) is not None) is of_loss
    if of_loss:
        assert finding("TD501", evidence).at_best_ns == pytest.approx(4 * MS, rel=0.01)
        assert result("TD701", evidence) is None


POOLS = """\
class Pooler(Module):
    def forward(self, hidden, spans):
        return stack([hidden[b:e].mean(0) for b, e in spans.tolist()])

class Net(Module):
    def forward(self, x, spans):
        h = self.encoder(x)
        m = self.pool(h, spans)
        return self.query(m)
"""


@pytest.mark.parametrize(
    ("before", "after", "of_model"),
    [
        ("", "", True),
        ("return self.query(m)", "return m", False),  # it may be a loss
        ("h = self.encoder(x)\n", "m = self.pool(x, spans)\n", False),  # layers come before
        ("def forward(self, x", "def evaluate(self, x", False),  # one training step of several
    ],
)
def test_a_loop_over_values_before_further_layers_is_the_models(
    tmp_path: Path, before: str, after: str, of_model: bool
) -> None:
    """Spans of the text, whose ends are read of a tensor."""
    source = POOLS.replace(before, after)
    called, layer = 8, 9 if "query" in source else 7
    if "self.pool(x" in source:
        called, layer = 7, 6
    script = tmp_path / "model.py"
    script.write_text(source)
    here = partial(at, file=str(script))
    pools = op_line(3, "forward", 576, grad_calls=576.0, elapsed_ns=2 * MS, in_loop=True,
                    conversions={"tolist": 16.0}, names={"mean": 288.0},
                    at=here(3, "forward"))  # fmt: skip
    layers = replace(large_layers(2), at=here(layer, "forward"))
    tree = call_tree(("main", 30, 1.0), ("forward", called, 0.5), ("forward", 3, 0.5))
    frames = tuple(replace(x, file=str(script)) for x in tree.training)
    evidence = in_forward(layers, pools, forward=4, backward=4)
    evidence.add(replace(tree, training=frames))
    assert (result("TD501", evidence) is None) is of_model
    assert (result("TD701", evidence) is not None) is of_model


def test_a_mask_that_is_filled_entry_by_entry_in_forward_is_no_loss() -> None:
    """It reads lengths and records no gradient: nothing of a loss is computed there."""
    reads = op_line(26, "forward", 32, in_loop=True, names={"__index__": 16.0},
                    conversions={"int": 16.0}, at=at(26, "forward"),
                    elapsed_ns=0.1 * MS)  # fmt: skip
    fills = op_line(27, "forward", 480, in_loop=True, names={"__setitem__": 480.0},
                    at=at(27, "forward"), elapsed_ns=1.9 * MS)  # fmt: skip
    evidence = in_forward(large_layers(2), reads, fills, forward=4, backward=3)
    assert result("TD501", evidence) is None
    assert finding("TD701", evidence).location == fills.at


LAYERED = """\
def forward(self, x):
    for layer in self.layers:
        x = relu(layer(x))
        x = x * float(x.isfinite().all())
    return x
"""


def test_a_loop_over_layers_that_reads_values_is_no_loop_over_values(tmp_path: Path) -> None:
    """No tensor expression replaces it; the reading has rules of its own."""
    script = tmp_path / "model.py"
    script.write_text(LAYERED)
    here = partial(Place, file=str(script), function="forward")
    reads = op_line(4, "forward", 128, grad_calls=32.0, in_loop=True, conversions={"float": 32.0},
                    at=here(line=4), elapsed_ns=1 * MS)  # fmt: skip
    evidence = in_forward(reads, forward=6, backward=5)
    assert result("TD501", evidence) is not None
    calls = op_line(3, "forward", 64, grad_calls=64.0, in_loop=True, at=here(line=3),
                    names={"linear": 32.0, "relu": 32.0}, elapsed_ns=3 * MS)  # fmt: skip
    assert result("TD501", in_forward(reads, calls, forward=6, backward=5)) is None


HEAD = """\
def forward(self, x):
    h = x.mm(self.weight)
    assert not h.isnan().any()
    return h.exp()
"""


@pytest.mark.parametrize(("name", "layer"), [("forward", True), ("loss_of", False)])
def test_a_layer_that_checks_its_values_is_no_loss(tmp_path: Path, name: str, layer: bool) -> None:
    """Eight heads, called in a loop elsewhere: each asserts that its numbers are finite."""
    script = tmp_path / "layers.py"
    script.write_text(HEAD.replace("forward", name))
    here = partial(Place, file=str(script), function=name)
    multiplies = op_line(2, "forward", 32, grad_calls=32.0, in_loop=True, names={"mm": 32.0},
                         at=here(line=2), elapsed_ns=0.4 * MS)  # fmt: skip
    asks = op_line(3, "forward", 64, in_loop=True, conversions={"bool": 32.0},
                   names={"isnan": 32.0, "any": 32.0}, at=here(line=3),
                   elapsed_ns=0.6 * MS)  # fmt: skip
    evidence = in_forward(multiplies, asks, forward=6, backward=5)
    assert (result("TD501", evidence) is None) == layer


@pytest.mark.parametrize(("often", "blamed"), [(5.0, False), (7.0, False), (8.0, True)])
def test_a_library_function_of_many_different_calls_is_no_loop(often: float, blamed: bool) -> None:
    """``Categorical(logits=…).log_prob(actions)``: 33 calls, none more than five times."""
    names = {"size": often, "dim": 4.0, "__eq__": 2.0, "_is_all_true": 2.0, "__bool__": 2.0}
    checks = loop(28, 33, names=names, conversions={"bool": 2.0})
    assert (result("TD501", training(checks, loss_ms=2)) is not None) == blamed


@pytest.mark.parametrize(
    ("caller", "calls", "hook"),
    [
        ("torch/nn/modules/module.py", "torch/functional.py", True),
        ("torch/nn/modules/module.py", "torch/nn/modules/module.py", False),  # a patched forward
        ("me/model.py", "torch/functional.py", False),
    ],
)
def test_statistics_that_a_hook_reads_are_no_loss(caller: str, calls: str, hook: bool) -> None:
    """Lines of forward that loop and read values may be a loss, unless torch calls their function
    beside the module's own forward."""
    reads = op_line(26, "forward", 64, grad_calls=32.0, elapsed_ns=2 * MS, in_loop=True,
                    at=at(26, "note"), conversions={"item": 32.0})  # fmt: skip
    evidence = in_forward(large_layers(2), reads, forward=5, backward=3)
    frames = (
        CallFrame(name="Module._call_impl.<locals>.inner", file=f"/lib/{caller}", line=0,
                  parent=-1, frac=1.0, user=False),
        CallFrame(name="note", file=reads.at.file, line=26, parent=0, frac=0.3, user=True),
        CallFrame(name="called", file=f"/lib/{calls}", line=0, parent=1, frac=0.2, user=False),
    )  # fmt: skip
    evidence.add(CallTrees(training=frames, workers=()))
    codes = {code for code in ("TD501", "TD701", "TD711") if result(code, evidence) is not None}
    assert codes == ({"TD711"} if hook else {"TD501"})
    if hook:
        found = finding("TD711", evidence)
        assert found.location == reads.at
        assert found.fix.text.startswith("The hook at train.py:26 reads values in every step.")


def layers(
    needs_ms: float, calls: float = 300.0, sort_ms: float = 0.0, forward: float = 7
) -> Evidence:
    """Layers that take over six times the fixed cost of their calls. Their work needs ``needs_ms``;
    a call that sorts takes ``sort_ms`` of the traced step."""
    line = op_line(26, "forward", calls, grad_calls=calls, elapsed_ns=forward * MS,
                   names={"linear": calls})  # fmt: skip
    product = OpWork(name="aten::mm", dims=((8, 16), (16, 16)), dtype="float32",
                     count=3 * calls, flops=needs_ms * 1e6, moved=0.0, host_ns=forward * MS,
                     device_ns=None)  # fmt: skip
    sort = replace(product, name="aten::sort", count=1.0, flops=0.0, host_ns=sort_ms * MS)
    roof = Roof(flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e10),), source="measured")
    work = Work(ops=(product, sort) if sort_ms else (product,), calls=4 * calls)
    return in_forward(line, forward=forward, backward=2 * forward).add(roof, work)


@pytest.mark.parametrize("needs", [1, 4])
def test_short_calls_that_do_little_work_are_small(needs: int) -> None:
    found = finding("TD701", layers(needs_ms=needs))
    assert "300 torch calls: 70.0 µs per call" in found.summary
    assert f"the work of the whole step needs {needs}.00 ms at best" in found.summary


@pytest.mark.parametrize(
    "evidence",
    [
        layers(needs_ms=5),  # of 21 ms
        layers(needs_ms=1, calls=200),  # 105 µs each: long
        layers(needs_ms=0.5, sort_ms=5),
    ],
    ids=["work", "long calls", "a sort"],
)
def test_they_are_not_if_they_may_work(evidence: Evidence) -> None:
    assert result("TD701", evidence) is None


@pytest.mark.parametrize(
    ("batches", "needs_ms", "fires"),
    [(16, 4, True), (16, 9, True), (16, 15, False), (1, 9, False)],
)
def test_micro_batches_that_reach_little_of_the_machine_become_one(
    batches: float, needs_ms: float, fires: bool
) -> None:
    """A language model on one sequence at a time: 70 µs a call and its backward, beyond fixed
    costs; its work needs 9 of 36 ms."""
    layers = op_line(26, "forward", 512, grad_calls=512.0, elapsed_ns=12 * MS,
                     names={"linear": 512.0}, turns=batches)  # fmt: skip
    counts = {"data_wait": batches, "forward": batches, "backward": batches, "optimizer": 1.0}
    product = OpWork(name="aten::mm", dims=((48, 128), (128, 128)), dtype="float32", count=512.0,
                     flops=needs_ms * 1e6, moved=4.0, host_ns=36 * MS, device_ns=None)  # fmt: skip
    evidence = in_forward(layers, forward=12, backward=24).add(
        phases(counts, forward=12, backward=24), loaders(batch_size=1),
        Dispatch(op_ns=1500, grad_op_ns=7000),
        Roof(flops_per_s={"float32": 1e9}, bytes_per_s=(), source="measured"),
        Work(ops=(product,), calls=1900.0),
    )  # fmt: skip
    found = result("TD701", evidence)
    assert (found is not None) is fires
    if fires:
        assert isinstance(found, Finding)
        assert "accumulates 16 batches of 1" in found.fix.text
        assert found.at_best_ns == pytest.approx(min(36 - needs_ms, 36 * 15 / 16) * MS)
        poorly = max(36 * 15 / 16 - 5 * needs_ms, 512 * 7e-3 * 15 / 16)
        assert found.speedup is not None
        assert found.speedup.low == pytest.approx(37 / (37 - poorly), abs=0.001)


@pytest.mark.parametrize(("series", "begins"), [(1.0, "Compile"), (20.0, "Replace")])
def test_the_arithmetic_between_the_calls_of_a_chained_model(series: float, begins: str) -> None:
    """The stages of a solver: each needs the rates of the one before. Their loop is elsewhere."""
    rates = op_line(
        40, "forward", 60, grad_calls=60.0, elapsed_ns=30 * MS, turns=60.0, repeated=60.0,
        names={"linear": 60.0}, series=series, looped_at=at(61, "rk4"), at=at(40, "rates"),
    )  # fmt: skip
    stage = op_line(63, "forward", 900, elapsed_ns=4 * MS, in_loop=True, names={"mul": 900.0},
                    at=at(63, "rk4"))  # fmt: skip
    found = finding("TD701", in_forward(rates, stage, forward=34, backward=40))
    assert found.location == stage.at and found.fix.action.startswith(begins)
