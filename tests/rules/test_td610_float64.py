"""Models in float64: told by the bytes of their parameters, priced where their calls do work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.roofline import WITHOUT_TF32, OpWork, Roof, Work
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.evidence.training import Layers, Modules, Setting, Settings
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, device_time, loaders, module, op_line, ops, phases
from tdiag.rules.td610_float64_by_accident import fires

RULE = find("TD610")


def finding(evidence: Evidence) -> Finding:
    found = run_rule(RULE, evidence)
    assert isinstance(found, Finding), found
    return found


@pytest.mark.parametrize(("parameter_bytes", "wide"), [(8000, True), (7996, False), (4000, False)])
def test_every_parameter_must_take_eight_bytes(parameter_bytes: int, wide: bool) -> None:
    net = module("Net", parameters=1000, parameter_bytes=parameter_bytes)
    found = run_rule(RULE, fires().add(Modules(modules=(net,))))
    assert isinstance(found, Finding) is wide


def test_a_loss_without_parameters_says_nothing_of_the_type() -> None:
    loss = module("Loss", parameters=0, parameter_bytes=0, is_loss=True)
    assert run_rule(RULE, fires().add(Modules(modules=(loss,)))) is None


def test_complex_numbers_are_as_wide_and_no_accident() -> None:
    assert run_rule(RULE, fires().add(loaders(batch_dtypes={"complex64": 1e6}))) is None


@pytest.mark.parametrize(("dtype", "wide"), [("float64", True), ("complex64", False)])
def test_the_parameters_own_type_decides_where_it_is_known(dtype: str, wide: bool) -> None:
    layers = Layers(
        classes={}, mode_dependent=(), dtypes={dtype: 8000}, conv_bytes=0, channels_last_bytes=0,
        bias_before_norm=None, out_of_place=None,
    )  # fmt: skip
    assert isinstance(run_rule(RULE, fires().add(layers)), Finding) is wide


@pytest.mark.parametrize(("calls", "priced"), [(1451, True), (1453, False)])
def test_calls_that_do_no_work_win_nothing_and_are_not_priced(calls: int, priced: bool) -> None:
    """61 ms of forward and backward ÷ 7 µs ÷ 6 = 1452 calls that would fill it with fixed cost."""
    assert round(61e6 / 7000 / 6) == 1452
    line = op_line(20, "forward", calls, grad_calls=float(calls))
    evidence = fires().add(ops(line))
    evidence.add(budget(forward=21, backward=40))
    evidence.add(phases(forward=21, backward=40))
    assert finding(evidence).advisory is not priced


@pytest.mark.parametrize("kind", [Ops, Dispatch])
def test_without_counted_calls_it_has_no_low_end(kind: type) -> None:
    evidence = fires()
    del evidence.facts[kind]
    found = finding(evidence)
    assert found.speedup is not None and found.speedup.low == 1.0 < found.speedup.high


def test_a_device_is_priced_by_its_own_compute_time() -> None:
    evidence = fires().add(budget(device=True, compute=60, launch=40), device_time(100))
    found = finding(evidence)
    assert found.components == ("compute",)
    assert found.speedup is not None and found.speedup.low == 1.0


@pytest.mark.parametrize(
    "text",
    [
        '"""Uses float64."""\n# float64\nmodel = Net().double()\n',
        'x = load()\n\ny = x.astype("float64")\n',
        "def f():\n    pass\ntorch.set_default_dtype(torch.float64)\n",
    ],
)
def test_the_line_that_asks_for_float64_is_named(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    evidence = fires()
    loader = evidence.get(Loaders)
    assert loader is not None
    made = replace(loader.loaders[0], created_at=at(2, file=str(script)))
    found = finding(evidence.add(Loaders(loaders=(made,))))
    assert found.location is not None and found.location.line == 3


@pytest.mark.parametrize(("wide_ms", "found"), [(30.0, True), (1.0, False)])
def test_a_buffer_of_float64_widens_a_part_of_the_model(wide_ms: float, found: bool) -> None:
    """`torch.from_numpy(np.hanning(n))` as a buffer: parameters and batches stay float32."""
    net = module("Net", parameters=1000, parameter_bytes=4000)
    product = OpWork(name="aten::mm", dims=((128, 384), (384, 384)), dtype="float32", count=4.0,
                     flops=1e6, moved=1e6, host_ns=30 * MS, device_ns=None, at=at(12))  # fmt: skip
    wide = replace(product, dtype="float64", host_ns=wide_ms * MS, at=at(24, "forward"))
    work = Work(ops=(product, wide), calls=60.0)
    result = run_rule(RULE, fires().add(Modules(modules=(net,)), work))
    assert isinstance(result, Finding) is found
    if isinstance(result, Finding):
        assert result.location is not None and result.location.line == 24
        assert result.at_best_ns == pytest.approx(65 / 2 * (1 - 1 / 3.9) * MS, rel=0.01)


def test_a_device_is_as_much_faster_as_its_data_sheet_says() -> None:
    """67 TFLOP/s of float64 and 495 of float32 on an H100; without a sheet at most 64 times."""
    on_device = fires().add(budget(device=True, compute=74), device_time(74))
    assert finding(on_device).at_best_ns == pytest.approx(74 * MS * (1 - 1 / 64))
    roof = Roof(
        flops_per_s={"float32": 496e12, "float64": 62e12}, bytes_per_s=((1 << 62, 3e12),),
        source="data sheet",
    )  # fmt: skip
    found = finding(on_device.add(roof))
    assert found.at_best_ns == pytest.approx(74 * MS * (1 - 1 / 8))
    assert "8 times as fast, by the data sheet" in found.why_gain


@pytest.mark.parametrize(
    ("set_to", "op", "times"),
    [
        (None, "aten::mm", 2),  # 67 against 67 TFLOP/s, but half the bytes
        (("float32_matmul_precision", "high"), "aten::mm", 8),
        (("cuda.matmul.allow_tf32", True), "aten::mm", 8),
        (("float32_matmul_precision", "highest"), "aten::mm", 2),
        (None, "aten::cudnn_convolution", 8),  # uses TF32 unless it is forbidden
        (("cudnn.allow_tf32", False), "aten::cudnn_convolution", 2),
    ],
)
def test_products_of_float32_use_tf32_only_where_it_is_allowed(
    set_to: tuple[str, Any] | None, op: str, times: float
) -> None:
    roof = Roof(
        flops_per_s={"float32": 496e12, "float64": 62e12, WITHOUT_TF32: 62e12},
        bytes_per_s=((1 << 62, 3e12),), source="data sheet",
    )  # fmt: skip
    made = OpWork(name=op, dims=((8, 8), (8, 8)), dtype="float64", count=1.0, flops=1e6, moved=1e6,
                  host_ns=MS, device_ns=MS)  # fmt: skip
    evidence = fires().add(budget(device=True, compute=74), device_time(74), roof)
    evidence.add(Work(ops=(made,), calls=1.0))
    if set_to is not None:
        setting = Setting(name=set_to[0], value=set_to[1], at=at(3), per_step=0.0)
        evidence.add(Settings(settings=(setting,)))
    assert finding(evidence).at_best_ns == pytest.approx(74 * MS * (1 - 1 / times))


@pytest.mark.parametrize(
    ("name", "share", "said"),
    [
        ("aten::linalg_cholesky_ex", 0.1, False),
        ("aten::_linalg_eigh", 0.1, False),
        ("aten::linalg_inv_ex", 0.01, True),  # of a camera, once a step
        ("aten::_weight_norm_interface", 0.5, True),
        ("aten::mm", 0.9, True),
    ],
)
def test_matrices_are_decomposed_in_float64_for_a_reason(
    name: str, share: float, said: bool
) -> None:
    work = Work(
        ops=tuple(
            OpWork(name=op, dims=((60, 60),), dtype="float64", count=1.0, flops=0.0, moved=1e5,
                   host_ns=part * 60 * MS, device_ns=None, at=at(20))
            for op, part in ((name, share), ("aten::mul", 1 - share))
        ),
        calls=2.0,
    )  # fmt: skip
    found = run_rule(RULE, fires().add(work))
    assert isinstance(found, Finding) is said
    alone = run_rule(RULE, fires().add(work, Modules(modules=())))
    assert isinstance(alone, Finding) is said
    assert not isinstance(alone, Finding) or "narrower" not in alone.summary  # there is no model
