"""What rules say of a device depends on what that device can, and on what was done already."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import Device, DevicePart, DeviceParts, Kernels, Transfers
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import MatrixOps
from tdiag.evidence.training import Layers
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.attention_time import FUSED_HIGH_FRAC, FUSED_LOW_FRAC, gain_on_device, written_out
from tdiag.rules.catalogue import find
from tdiag.rules.device_waits import busy_scale, idle_scale
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    copy,
    device_time,
    environment,
    family,
    host_op,
    host_ops,
    kernels,
    matrix_op,
    op_line,
    ops,
    optimizers,
    traced,
)

Dims = tuple[tuple[int, ...], ...]


def finding(code: str, evidence: Evidence) -> Finding:
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding), found
    return found


def on(capability: tuple[int, int] | None) -> Device:
    return Device(kind="cuda", name="a GPU", capability=capability)


@pytest.mark.parametrize(
    ("capability", "said", "unsaid"),
    [
        ((7, 0), "torch.float16", "bfloat16)"),  # V100
        ((7, 5), "GradScaler", "bfloat16)"),  # T4
        ((8, 0), "torch.bfloat16", "GradScaler"),  # A100
        ((9, 0), "torch.bfloat16", "GradScaler"),  # H100
        (None, "torch.bfloat16", "scaler.step"),
    ],
)
def test_lower_precision_is_one_that_the_matrix_units_know(
    capability: tuple[int, int] | None, said: str, unsaid: str
) -> None:
    fix = finding("TD601", find("TD601").fires().add(on(capability))).fix
    assert said in fix.code + fix.text
    assert unsaid not in fix.code
    wanted = f"torch.autocast={said.removeprefix('torch.')}" if "float" in said else None
    assert not capability or wanted is None or fix.intervention == wanted


def test_tf32_is_not_advised_where_it_does_not_exist() -> None:
    text = finding("TD601", find("TD601").fires().add(on((7, 0)))).fix.text
    assert "matmul_precision" not in text


H100 = Roof(
    flops_per_s={"float32": 500e12, "bfloat16": 1000e12},
    bytes_per_s=((1 << 62, 3e12),),
    source="data sheet",
)


def product(
    name: str, dims: Dims, flops: float, device_ns: float, dtype: str = "float32"
) -> OpWork:
    return OpWork(
        name=name, dims=dims, dtype=dtype, count=1.0, flops=flops, moved=0.0, host_ns=0.0,
        device_ns=device_ns,
    )  # fmt: skip


def test_float32_products_become_as_fast_as_the_matrix_units_can() -> None:
    """36 ms of products that bfloat16 computes in 2 ms at best, TF32 in 4; at half its rate in
    8."""
    slow = family("gemm", 40, float32_ns=36 * MS, tensor_core_ns=2.0 * MS)
    heavy = product("aten::mm", ((8, 8), (8, 8)), 2e12, 36.0 * MS)
    step: Budget = budget(device=True, compute=50)
    evidence = Evidence().add(step, kernels(slow), device_time(50), on((9, 0)), H100)
    found = finding("TD601", evidence.add(Work(ops=(heavy,), calls=1.0)))
    assert found.at_best_ns == pytest.approx(34 * MS)
    assert found.recoverable_ns == pytest.approx((28 + 34) / 2 * MS)
    assert "TF32 at 50%" in found.why_gain
    volta = replace(H100, flops_per_s={"float32": 15e12, "float16": 125e12})
    older = finding("TD601", evidence.add(volta, on((7, 0))))
    assert older.at_best_ns == pytest.approx((36 - 16) * MS)
    assert "float16 at 50%" in older.why_gain


def test_without_matrix_units_nothing_is_advised() -> None:
    assert run_rule(find("TD601"), find("TD601").fires().add(on((6, 0)))) is None


@pytest.mark.parametrize(
    ("name", "torch", "said", "unsaid"),
    [
        ("conv", "2.13.0", "torch.backends.cudnn.conv.fp32_precision", "matmul_precision"),
        ("conv", "2.8.0", "torch.backends.cudnn.allow_tf32", "matmul_precision"),
        ("gemm", "2.13.0", "torch.set_float32_matmul_precision('high')", "cudnn"),
    ],
)
def test_tf32_is_switched_on_where_the_kernels_come_from(
    name: str, torch: str, said: str, unsaid: str
) -> None:
    slow = family(name, 40, float32_ns=36 * MS, tensor_core_ns=2.0 * MS)
    evidence = find("TD601").fires().add(kernels(slow), on((8, 0)), environment(torch=torch))
    text = finding("TD601", evidence).fix.text
    assert said in text
    assert unsaid not in text


def test_unsuitable_sizes_win_what_suitable_ones_reach() -> None:
    """9 ms that take 4.1 at the data sheet's rate: at best 5, and at half the rate 8.2."""
    rule = find("TD609")
    (op,) = [x for x in rule.fires().get(MatrixOps).ops if x.dims[1][1] == 50257]  # type: ignore[union-attr]
    logits = product(op.name, op.dims, 4.1e12, 9.0 * MS, "bfloat16")
    work = Work(ops=(logits,), calls=1.0)
    evidence = rule.fires().add(H100, work, kernels(family("gemm", 15)))
    found = finding("TD609", evidence)
    assert found.at_best_ns == pytest.approx(4 * MS)
    assert found.recoverable_ns == pytest.approx((4 + 0.8) / 2 * MS)
    assert "50%" in found.why_gain
    reached = replace(work, ops=(replace(logits, flops=8e12),))
    assert run_rule(rule, evidence.add(reached)) is None


def test_convolutions_of_ever_new_shapes_are_not_told_to_tune() -> None:
    """Five traced steps, each with images of another size."""
    sizes = ((64, 3, side, side) for side in (192, 208, 224, 240, 256))
    varying = tuple(
        matrix_op("aten::cudnn_convolution", size, (64, 3, 7, 7), count=0.2) for size in sizes
    )
    evidence = find("TD602").fires().add(MatrixOps(ops=varying))
    assert run_rule(find("TD602"), evidence) is None


def test_one_traced_step_tells_nothing_about_repeating() -> None:
    once: TracedSteps = replace(traced(50), durations_ns=(50,), count=1)
    assert isinstance(run_rule(find("TD602"), find("TD602").fires().add(once)), Abstained)


@pytest.mark.parametrize(("converted", "fires"), [(0, True), (40, True), (90, False)])
def test_a_converted_model_is_not_told_to_convert(converted: int, fires: bool) -> None:
    layers = Layers(
        classes={}, mode_dependent=(), dtypes={}, conv_bytes=100, channels_last_bytes=converted,
        bias_before_norm=(), out_of_place=(),
    )  # fmt: skip
    found = run_rule(find("TD603"), find("TD603").fires().add(layers))
    assert isinstance(found, Finding) is fires


def test_elementwise_kernels_without_a_neighbour_have_nothing_to_fuse_with() -> None:
    fires = find("TD604").fires()
    seen = fires.get(Kernels)
    assert seen is not None and seen.chains is not None
    lone = replace(seen.chains, longest_ns=seen.chains.device_ns)
    assert run_rule(find("TD604"), fires.add(replace(seen, chains=lone))) is None


def test_a_fused_optimizer_saves_kernel_time_too() -> None:
    """The host keeps up, so the device never idles; a third of its time goes to Adam."""
    evidence = Evidence().add(
        budget(device=True, compute=60), device_time(60), optimizers("Adam", fused=None),
        environment(device="NVIDIA A100", device_count=1), kernels(family("optimizer", 20)),
    )  # fmt: skip
    found = finding("TD702", evidence)
    assert found.components == ("compute",)
    assert found.at_best_ns == pytest.approx(20 * MS * 11 / 18, rel=0.01)
    assert run_rule(find("TD702"), evidence.add(kernels(family("gemm", 20)))) is None


def test_an_empty_tensor_that_is_moved_was_made_on_the_host() -> None:
    line = op_line(23, "forward", 24, names={"zeros": 12.0, "cuda": 12.0})
    small = copy(count=13.0, bytes=9600.0, device_ns=0.1 * MS, exposed_ns=1.2 * MS)
    evidence = Evidence().add(
        budget(device=True, compute=8, h2d=1.2, launch=1.5), Transfers(copies=(small,)),
        ops(line), device_time(10.7),
    )  # fmt: skip
    found = finding("TD303", evidence)
    assert found.location is not None
    assert found.location.line == 23
    there = op_line(23, "forward", 24, names={"zeros": 12.0, "mul": 12.0})
    assert run_rule(find("TD303"), evidence.add(ops(there))) is None


def test_what_the_host_needs_to_fill_a_tensor_goes_with_it() -> None:
    """Eight of eight copies block 10 ms, and 30 ms go to filling them on the host."""
    line = op_line(19, "forward", 24, names={"zeros": 8.0, "cuda": 8.0})
    sent = copy(count=8.0, device_ns=10 * MS, exposed_ns=10 * MS, host_blocked_ns=10 * MS)
    filled = replace(host_op("aten::fill_", 9, 31 * MS), on_host_ns=30 * MS)
    cleared = host_op("aten::zero_", 9, 5 * MS)  # on the device
    evidence = Evidence().add(
        budget(device=True, compute=5, h2d=10, launch=35), Transfers(copies=(sent,)),
        device_time(50), ops(line), host_ops(filled, cleared),
    )  # fmt: skip
    found = finding("TD303", evidence)
    assert found.at_best_ns == pytest.approx(40 * MS)
    assert found.recoverable_ns == pytest.approx((35 + 40) / 2 * MS)


def test_written_out_attention_has_a_gain_where_launches_have_ops() -> None:
    evidence = find("TD608").fires()
    step: Budget = budget(device=True, compute=150)
    evidence.add(step, device_time(150))
    assert finding("TD608", evidence).advisory
    softmax = DevicePart(name="aten::_softmax", count=6.0, device_ns=30.0 * MS)
    other = DevicePart(name="aten::addmm", count=6.0, device_ns=60.0 * MS)
    evidence.add(DeviceParts(kernels=(), ops=(softmax, other), modules=(), functions=()))
    found = finding("TD608", evidence)
    assert found.at_best_ns == pytest.approx(20 * MS)
    assert found.location is not None


def test_written_out_attention_is_priced_by_all_that_touches_the_scores() -> None:
    """Scores of 4 × 8 × 64 × 64; 6 × 10⁹ operations take 6 µs at the roof, fused 7."""
    scores, heads = (4, 8, 64, 64), (4, 8, 64, 32)
    folded = ((32, 64, 32), (32, 32, 64))
    ops_ = (
        product("aten::bmm", folded, 3e9, 20_000.0, "bfloat16"),
        product("aten::bmm", ((32, 64, 64), (32, 64, 32)), 3e9, 20_000.0, "bfloat16"),
        product("aten::_softmax", (scores,), 0.0, 40_000.0),
        product("aten::div", (scores,), 0.0, 30_000.0, "bfloat16"),
        product("aten::copy_", (heads, heads), 0.0, 10_000.0, "bfloat16"),
        product("aten::gelu", ((4, 64, 512),), 0.0, 99_000.0, "bfloat16"),
    )
    work = Work(ops=ops_, calls=6.0)
    low, high = gain_ends(work)
    fused = 7_000.0
    assert low == pytest.approx(110_000 - fused / FUSED_LOW_FRAC)
    assert high == pytest.approx(120_000 - fused / FUSED_HIGH_FRAC)
    wide = tuple(replace(op, dtype="float32") for op in ops_)
    assert gain_ends(Work(ops=wide, calls=6.0)) == (0.0, pytest.approx(80_000))


def test_torchs_slow_attention_computes_half_precision_in_float32() -> None:
    """Its products are float32, of operands that it scaled: the fused kernel takes them as they
    were given."""
    scores, heads = (32, 64, 64), (32, 64, 32)
    ops_ = (
        product("aten::bmm", (heads, (32, 32, 64)), 3e9, 90_000.0),
        product("aten::bmm", (scores, heads), 3e9, 90_000.0),
        product("aten::_softmax", (scores,), 0.0, 40_000.0),
        product("aten::mul", (heads,), 0.0, 5_000.0),
        product("aten::copy_", (heads, heads), 0.0, 5_000.0),
        product("aten::gelu", ((4, 64, 512),), 0.0, 99_000.0),
    )
    gain = gain_on_device(0.0, Work(ops=ops_, calls=6.0), H100, 1.0, "bfloat16")
    fused = 7_000.0
    assert gain.low_ns == pytest.approx(220_000 - fused / FUSED_LOW_FRAC)
    assert gain.high_ns == pytest.approx(230_000 - fused / FUSED_HIGH_FRAC)


@pytest.mark.parametrize("taken", [True, False])
def test_a_bare_trace_shows_attention_by_its_shapes(taken: bool) -> None:
    """A softmax whose result no product takes weights nothing (a contrastive loss)."""
    scores = (4, 8, 64, 64)
    values = ((32, 64, 64 if taken else 32), (32, 64 if taken else 32, 32))
    ops_ = (
        product("aten::bmm", ((32, 64, 32), (32, 32, 64)), 3e9, 20_000.0, "bfloat16"),
        replace(product("aten::_softmax", (scores,), 0.0, 40_000.0), count=6.0, at=at(20)),
        product("aten::bmm", values, 3e9, 20_000.0, "bfloat16"),
    )
    found = written_out(Work(ops=ops_, calls=3.0))
    assert (found and (found.per_step, found.at)) == ((6.0, at(20)) if taken else None)


def gain_ends(work: Work) -> tuple[float, float]:
    gain = gain_on_device(0.0, work, H100, 1.0)
    return gain.low_ns, gain.high_ns


def test_selecting_by_value_costs_its_kernels_too() -> None:
    """2 ms find, gather and scatter; without them only the waits count."""
    waits = finding("TD402", find("TD402").fires())
    kinds = ("aten::nonzero", "aten::masked_scatter_", "aten::mm")
    parts = tuple(DevicePart(name=name, count=3.0, device_ns=1.0 * MS) for name in kinds)
    both = find("TD402").fires().add(DeviceParts(kernels=(), ops=parts, modules=(), functions=()))
    found = finding("TD402", both)
    scale = 25 / 26  # clean step ÷ traced step
    assert found.at_best_ns - waits.at_best_ns == pytest.approx(2 * MS * scale, rel=0.01)
    assert "compute" in found.components


def test_rows_of_each_group_that_a_loop_selects_can_be_sorted_once() -> None:
    evidence = find("TD402").fires()
    line = op_line(55, "loss", 3, conversions={"nonzero": 3.0}, in_loop=True)
    assert "argsort" in finding("TD402", evidence.add(ops(line))).fix.code
    assert "argsort" not in finding("TD402", find("TD402").fires()).fix.code


def test_the_loop_that_launches_most_of_forward_is_named() -> None:
    loop = op_line(20, "forward", 240, in_loop=True, names={"linear": 240.0})
    few = op_line(30, "forward", 24)
    step = budget(device=True, compute=10, launch=90)
    waiting = Evidence().add(step, device_time(100, launch_starved_ns=90 * MS))
    assert finding("TD701", waiting).location is None
    found = finding("TD701", waiting.add(ops(loop, few)))
    assert found.location is not None
    assert found.location.line == 20


def test_a_profiled_host_changes_nothing_of_the_devices_time() -> None:
    """40 ms on the device, in a clean step of 50 and in a traced one of 80."""
    traced_step = device_time(80, components_ns={"compute": 40 * MS, "launch": 40 * MS})
    clean = budget(device=True, compute=40, launch=10)
    assert busy_scale(clean, traced_step) == 1
    assert idle_scale(clean, traced_step) == 0.25
    # As in a trace of the clean step's own length that was busy for longer by chance.
    assert busy_scale(budget(device=True, compute=36), traced_step) == 0.9
    assert busy_scale(budget(device=True, compute=30), device_time(40)) == 0.75


def test_operations_on_a_whole_vocabulary_take_on_the_device_what_the_trace_shows() -> None:
    """12 ms of 20, in a clean step of 30 and in a traced one of 60."""
    evidence = find("TD222").fires()
    work = evidence.get(Work)
    assert work is not None
    scored = tuple(replace(op, device_ns=12 * MS) for op in work.ops)
    traced_step = device_time(60, components_ns={"compute": 20 * MS, "launch": 40 * MS})
    clean = budget(device=True, compute=20, launch=10)
    found = finding("TD222", evidence.add(clean, replace(work, ops=scored), traced_step))
    assert "take 12.0 ms per step" in found.summary
