"""How training is set up: rates, batches, modes, precision, gradients, and how a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.compiling import Compiles
from tdiag.evidence.feeding import Inputs, InputTensor
from tdiag.evidence.machine import Startup
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import (
    Gradients,
    Layers,
    Modules,
    Optimizers,
    Scheduler,
    Schedulers,
)
from tdiag.model.compiled import Recompiled
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    GB,
    MS,
    at,
    budget,
    device_holds,
    environment,
    flags,
    loaders,
    module,
    optimizers,
    phases,
    stack,
    stacks,
)


def judge(code: str, *kinds: Kind) -> str:
    """``fires``, ``clear`` or ``abstains``."""
    found = run_rule(find(code), Evidence().add(*kinds))
    return {Finding: "fires", Abstained: "abstains"}.get(type(found), "clear")


def fix(code: str, *kinds: Kind) -> str:
    found = run_rule(find(code), Evidence().add(*kinds))
    assert isinstance(found, Finding), found
    assert found.advisory
    return f"{found.fix.code}{found.fix.text}"


def rated(name: str, changed: bool | None, looks: int = 3) -> Optimizers:
    (plain,) = optimizers(name).optimizers
    return Optimizers(optimizers=(replace(plain, lr_changed=changed, rates=(0.01,) * looks),))


NONE = Schedulers(schedulers=())


@pytest.mark.parametrize(
    ("rates", "schedulers", "expected"),
    [
        (rated("SGD", False), NONE, "fires"),
        (rated("SGD", True), NONE, "clear"),
        (rated("Adafactor", False), NONE, "clear"),  # finds its own
        (rated("SGD", None, 1), NONE, "abstains"),
        (
            rated("SGD", False),
            Schedulers(schedulers=(Scheduler(name="StepLR", created_at=None, steps=0),)),
            "clear",
        ),
    ],
)
def test_a_schedule_is_missed_only_where_nothing_changes(
    rates: Optimizers, schedulers: Schedulers, expected: str
) -> None:
    assert judge("TD001", rates, schedulers) == expected


def test_the_schedule_is_as_long_as_the_epochs_are() -> None:
    text = fix("TD001", rated("SGD", False), NONE, loaders(dataset_len=1000, batch_size=64))
    assert "total_steps=epochs * 16" in text


@pytest.mark.parametrize(
    ("samples", "world", "drop_last", "expected"),
    [
        (1024 + 32, 1, False, "fires"),
        (1024 + 33, 1, False, "clear"),  # more than half a batch
        (1024, 1, False, "clear"),
        (1024 + 32, 1, True, "clear"),
        (1024 + 32, 1, None, "abstains"),
        (2 * (1024 + 32), 2, False, "fires"),  # each rank has half of the samples
        (40, 1, False, "clear"),  # a single batch is no rest
    ],
)
def test_a_short_last_batch(
    samples: int, world: int, drop_last: bool | None, expected: str
) -> None:
    loader = loaders(
        dataset_len=samples, sampler_len=samples // world, batch_size=64, drop_last=drop_last
    )
    assert judge("TD004", loader) == expected


def test_a_batch_size_that_divides_is_offered_where_one_is_near() -> None:
    loader = loaders(dataset_len=1100, batch_size=52, drop_last=False)
    assert "batch_size=50, which divides 1100" in fix("TD004", loader)
    far = loaders(dataset_len=1031, batch_size=100, drop_last=False)  # a prime number
    assert "divides" not in fix("TD004", far, environment())


@pytest.mark.parametrize(
    ("evaluating", "training", "expected"),
    [
        (0.05, 0.0, "fires"), (0.04, 0.04, "clear"), (None, 0.5, "fires"), (0.0, None, "clear"),
        (None, None, "abstains"),
    ],
)  # fmt: skip
def test_modes(evaluating: float | None, training: float | None, expected: str) -> None:
    seen = replace(
        phases(forward=10), eval_train_mode_frac=evaluating, train_eval_mode_frac=training
    )
    assert judge("TD005", seen, Modules(modules=(module("Net"),))) == expected


def test_modes_do_not_matter_to_layers_that_know_none() -> None:
    seen = replace(phases(forward=10), eval_train_mode_frac=1.0)
    layers = Layers(
        classes={"Linear": 3}, mode_dependent=(), dtypes={}, conv_bytes=0, channels_last_bytes=0,
        bias_before_norm=(), out_of_place=(),
    )  # fmt: skip
    modules = Modules(modules=(module("Net"),))
    assert judge("TD005", seen, modules, layers) == "clear"
    dropping = replace(layers, mode_dependent=("Dropout",))
    found = run_rule(find("TD005"), Evidence().add(seen, modules, dropping))
    assert isinstance(found, Finding) and "results of Dropout are wrong" in found.summary


@pytest.mark.parametrize(("unused", "expected"), [(1000, "clear"), (999, "fires"), (0, "fires")])
def test_a_teacher_is_in_evaluation_mode_on_purpose(unused: int, expected: str) -> None:
    """Distillation whose teacher records gradients: no optimizer uses any of them."""
    seen = replace(phases(forward=10), eval_train_mode_frac=0.0, train_eval_mode_frac=0.8)
    teacher = module("Teacher", unused_gradients=unused)
    assert judge("TD005", seen, Modules(modules=(module("Net"), teacher))) == expected


def test_both_wrong_modes_are_named_with_the_model() -> None:
    seen = replace(phases(forward=10), eval_train_mode_frac=1.0, train_eval_mode_frac=0.4)
    small, large = module("Head", 5, parameters=10), module("Net", 20, parameters=9999)
    text = fix("TD005", seen, Modules(modules=(small, large)))
    assert "model.eval() before" in text and "model.train() before" in text
    assert text.endswith("(Net at train.py:20).")


@pytest.mark.parametrize(
    ("dtype", "scaler", "expected"),
    [
        ("torch.float16", False, "fires"), ("torch.float16", True, "clear"),
        ("torch.float16", None, "abstains"), ("torch.bfloat16", False, "clear"),
        ("", None, "clear"),
    ],
)  # fmt: skip
def test_float16_wants_a_scaler(dtype: str, scaler: bool | None, expected: str) -> None:
    assert judge("TD006", flags(autocast_dtype=dtype, grad_scaler=scaler), optimizers("SGD")) == (
        expected
    )


def full(used_gb: int, batch: int = 4, passes: float = 1.0, devices: int = 1) -> tuple[Kind, ...]:
    return (
        loaders(batch_size=batch),
        phases({"backward": passes}, backward=60),
        device_holds(used_gb * GB),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=devices),
    )


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (full(72), "fires"),
        (full(71), "clear"),
        (full(72, batch=32), "clear"),
        (full(72, passes=8.0), "clear"),  # accumulates already: 8 × 4
        (full(72, devices=2), "fires"),  # the rank's own is known
        (full(0, devices=0), "clear"),  # no device
    ],
)
def test_a_batch_that_memory_keeps_small(kinds: tuple[Kind, ...], expected: str) -> None:
    assert judge("TD007", *kinds) == expected


def test_accumulation_is_written_out_with_the_rate() -> None:
    text = fix("TD007", *full(78, batch=4, passes=2.0), optimizers("SGD", lr=0.02))
    assert "targets) / 8).backward()" in text
    assert "from 0.02 up to 0.08" in text  # from 8 samples a step to 32


@pytest.mark.parametrize(
    ("norms", "broken", "more", "expected"),
    [
        ((1.0, 1.0, 10.0), 0, {}, "fires"),
        ((1.0, 1.0, 9.9), 0, {}, "clear"),
        ((1.0, 50.0), 0, {}, "abstains"),
        ((), 1, {}, "fires"),
        ((1.0, 1.0, 1.0), 1, {"grad_scaler": True}, "clear"),  # in search of a scale
    ],
)
def test_gradients(
    norms: tuple[float, ...], broken: int, more: dict[str, Any], expected: str
) -> None:
    seen = Gradients(norms=norms, not_finite=broken, clipped=False)
    assert judge("TD008", seen, flags(**more)) == expected


def test_clipped_gradients_are_as_long_as_they_should_be() -> None:
    assert judge("TD008", Gradients(norms=(1.0, 1.0, 99.0), not_finite=0, clipped=True)) == "clear"


@pytest.mark.parametrize(
    ("run_ms", "expected"), [(4000, "fires"), (4001, "clear"), (None, "abstains")]
)
def test_a_start_dominates_from_half_of_the_run_on(run_ms: int | None, expected: str) -> None:
    run_ns = None if run_ms is None else run_ms * MS
    parts = {"import torch": 1500 * MS, "first step": 500 * MS}
    assert judge("TD212", Startup(parts_ns=parts, run_ns=run_ns)) == expected


def start(set_up_s: float, *lines: StackLine, run_s: float | None = None) -> Startup:
    parts = {"import torch": 2000 * MS, "set-up": int(set_up_s * 1e9), "first step": 100 * MS}
    run_ns = None if run_s is None else int(run_s * 1e9)
    return Startup(parts_ns=parts, run_ns=run_ns, stacks=stacks(lines))


def test_one_line_that_start_up_waits_for_is_told_whatever_the_run_lasts() -> None:
    most, less = stack(34, 0.6, leaf="index (words.py)"), stack(34, 0.4)
    assert judge("TD212", start(12, most)) == "fires"
    assert judge("TD212", start(12, most, run_s=600)) == "fires"
    assert judge("TD212", start(9, most)) == "abstains"
    assert judge("TD212", start(9, most, run_s=600)) == "clear"
    assert judge("TD212", start(12, less)) == "abstains"
    found = run_rule(find("TD212"), Evidence().add(start(12, most)))
    assert isinstance(found, Finding)
    assert found.location == most.at and "train.py:34 (index (words.py))" in found.summary
    assert "store what it computes" in found.fix.text


def test_an_import_is_not_stored(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport everything\n")
    line = replace(stack(2, 0.9), at=Place(file=str(script), line=2, function="<module>"))
    assert "importtime" in fix("TD212", start(20, line))


def test_a_compiled_first_step_is_cached_not_warmed() -> None:
    once = Startup(parts_ns={"import torch": 2 * MS, "first step": 30 * MS}, run_ns=40 * MS)
    assert "TORCHINDUCTOR_CACHE_DIR" in fix("TD212", once, flags(compiled=True))
    assert "TORCHINDUCTOR_CACHE_DIR" not in fix("TD212", once, flags())


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        ((0.45, 0.41), (0.27, 0.27), "fires"),  # pixels of 0 to 1: all of one sign
        ((0.26, 0.1), (0.27, 0.27), "clear"),
        ((0.0, 0.0), (1.0, 10.1), "fires"),
        ((0.0, 0.0), (1.0, 10.0), "clear"),
        ((0.0, 0.0), (1.0, 0.09), "fires"),
        ((3.0, 0.0), (0.0, 1.0), "clear"),  # a channel that never changes
    ],
)
def test_inputs_are_measured_as_the_model_takes_them(
    mean: tuple[float, ...], std: tuple[float, ...], expected: str
) -> None:
    assert judge("TD003", inputs_of(mean, std)) == expected


def inputs_of(mean: tuple[float, ...], std: tuple[float, ...]) -> Inputs:
    """The largest of two; the other is a mask."""
    images = InputTensor(
        name="0", module="Net", module_at=at(10), dtype="float32", shape=(8, 2, 9, 9),
        channel_mean=mean, channel_std=std, minimum=-1.0, maximum=1.0,
    )  # fmt: skip
    mask = replace(images, name="1", shape=(8, 9), channel_mean=(0.9,), channel_std=(0.3,))
    return Inputs(tensors=(mask, images))


def compiled(per_step: float, ns: float, limit: bool = False) -> Compiles:
    return Compiles(
        frames=9, recompiles=8, total_ns=9 * MS, clean_recompiles=per_step, clean_ns=ns,
        reasons=(), limit_hit=limit,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("compiles", "expected"),
    [
        (compiled(0.05, 9.0 * MS), "fires"), (compiled(0.0, 0.0), "clear"),
        (compiled(0.0, 0.0, limit=True), "fires"),  # an advisory: nothing is compiled any more
        (compiled(0.05, 1.9 * MS), "clear"),  # under what a trial could confirm
    ],
)  # fmt: skip
def test_compiling_again_costs_what_it_took_in_the_clean_steps(
    compiles: Compiles, expected: str
) -> None:
    assert judge("TD708", budget(forward=60, backward=40), compiles) == expected


@pytest.mark.parametrize(
    ("guard", "advice"),
    [
        ("tensor 'x' size mismatch at index 1. expected 40, actual 41", "mark_dynamic"),
        ("x.size()[1] == 40", "mark_dynamic"),
        ("rate == 0.1", "as a tensor"),
        ("type_id(self.scheduler)", "as a tensor"),
    ],
)
def test_what_to_do_against_compiling_again_follows_from_the_guard(guard: str, advice: str) -> None:
    failed = Recompiled(at=at(33, "forward"), reason=guard, times=7)
    again = replace(compiled(0.05, 9.0 * MS), reasons=(failed,))
    found = run_rule(find("TD708"), Evidence().add(budget(forward=60, backward=40), again))
    assert isinstance(found, Finding)
    assert advice in found.fix.text and guard in found.fix.text
