"""Fixes in a framework's own terms."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tdiag.diagnose import diagnose, engine
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.frameworks import FRAMEWORKS, Framework, in_its_terms
from tdiag.model.diagnosis import Finding, Fix
from tdiag.model.place import Place
from tdiag.probe.frameworks import PACKAGES, driver
from tdiag.rules.catalogue import all_rules, example, find
from tdiag.rules.examples import budget, stack, stacks

CALL = re.compile(r"\b([A-Za-z_.]+)\(([^()]*)")
ARGUMENT = re.compile(r"(\w+)=")


def test_a_probe_recognises_each_framework() -> None:
    assert {framework.package for framework in FRAMEWORKS} == set(PACKAGES)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.package)
def test_every_setting_belongs_to_a_rule_and_gets_its_number(framework: Framework) -> None:
    assert framework.fixes.keys() <= {rule.code for rule in all_rules()}
    for code in framework.fixes:
        plain = example(find(code)).fix
        fix = in_its_terms(plain, code, framework.package)
        assert fix.text.startswith(f"{framework.name}: ")
        assert fix.text.endswith(f"In plain torch: {plain.text}")
        assert "{" not in fix.text.removesuffix(plain.text), fix.text
        assert "=…" not in fix.text, fix.text


def test_a_loop_of_the_users_own_keeps_the_fix() -> None:
    plain = example(find("TD201")).fix
    assert in_its_terms(plain, "TD201", "") is plain
    assert in_its_terms(plain, "TD501", "transformers") is plain


def test_a_finding_of_a_run_speaks_as_its_framework_does() -> None:
    rule = find("TD201")
    evidence = rule.fires()
    environment = Environment(
        torch="2.13.0", python="3.11", device="cpu", device_count=0, tdiag="0.1.0", command=(),
        script="fit.py", hostname="", platform="", framework=("transformers", "5.23.0"),
    )  # fmt: skip
    found = run_rule(rule, evidence.add(environment))
    assert isinstance(found, Finding)
    assert "TrainingArguments(dataloader_num_workers=3)" in found.fix.text


@pytest.mark.parametrize(
    ("code", "by_itself", "through_it", "setting"),
    [
        ("TD803", "torch.save(state, path)", "trainer.fit(module, loader)", "ModelCheckpoint("),
        ("TD804", "log.write(text)", "trainer.fit(module, loader)", "log_every_n_steps="),
        ("TD804", "log.write(text)", "trainer.fit(module, loader)", "refresh_rate=50"),
    ],
)
def test_what_the_users_code_does_by_itself_is_no_setting_of_the_frameworks(
    tmp_path: Path, code: str, by_itself: str, through_it: str, setting: str
) -> None:
    """A callback that writes every step is not quieter with ``log_every_n_steps``."""
    script = tmp_path / "fit.py"
    script.write_text(f"{by_itself}\n{through_it}\n")
    environment = Environment(
        torch="2.13.0", python="3.11", device="cpu", device_count=0, tdiag="0.1.0", command=(),
        script="fit.py", hostname="", platform="", framework=("lightning", "2.6.6"),
    )  # fmt: skip
    rule = find(code)
    evidence = rule.fires().add(environment)
    stacks = evidence.get(Stacks)
    assert stacks is not None
    fixes = []
    for line in (1, 2):
        at = Place(file=str(script), line=line)
        lines = tuple(msgspec.structs.replace(x, at=at) for x in stacks.training)
        found = run_rule(rule, evidence.add(msgspec.structs.replace(stacks, training=lines)))
        assert isinstance(found, Finding)
        fixes.append(found.fix.text)
    assert setting not in fixes[0] and setting in fixes[1]


@pytest.mark.parametrize(
    ("action", "intervention", "number"),
    [
        ("Raise num_workers to 3", "num_workers=4", "4"),
        ("Save every 1,500 steps or more", None, "1500"),
        ("Clip the gradient norm at 0.5", None, "0.5"),
        ("Read it once", "loader.cache", "3"),
    ],
)
def test_the_number_is_the_interventions_or_the_actions_or_the_texts(
    action: str, intervention: str | None, number: str
) -> None:
    fix = Fix("Read 8 files, or use DataLoader(num_workers=3).", "safe", intervention, action)
    assert f"workers={number})" in in_its_terms(fix, "TD201", "transformers").text


def called_from(*names: str) -> Any:
    """``driver()`` called through functions of modules of these names, the outermost first."""
    innermost: Callable[[], Any] = driver
    for name in reversed(names):
        module = types.ModuleType(name)
        exec("def call(inner): return inner()", module.__dict__)
        innermost = (lambda call, inner: lambda: call(inner))(module.call, innermost)
    return innermost()


def test_the_driver_is_the_package_on_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("transformers")
    fake.__version__ = "9.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", fake)
    assert driver() is None
    assert called_from("transformers.trainer", "accelerate.optimizer") == ("transformers", "9.9")
    assert called_from("lightningish.loop") is None


def named(package: str) -> list[tuple[str, str]]:
    """(callable, argument) of every setting that the fixes of a framework name."""
    (framework,) = [f for f in FRAMEWORKS if f.package == package]
    return [
        (call.split(".")[-1], argument)
        for text in framework.fixes.values()
        for call, inside in CALL.findall(text)
        for argument in ARGUMENT.findall(inside)
    ]


@pytest.mark.training
@pytest.mark.parametrize("package", ["transformers", "lightning", "accelerate"])
def test_the_installed_framework_has_every_setting(package: str) -> None:
    pytest.importorskip(package)
    for name, argument in named(package):
        if name in ("Adam", "AdamW", "DataLoader"):
            continue
        taken = inspect.signature(callables(package)[name]).parameters
        assert argument in taken, (name, argument)


def callables(package: str) -> dict[str, Any]:
    if package == "transformers":
        from transformers import Trainer, TrainingArguments

        return {"Trainer": Trainer, "TrainingArguments": TrainingArguments}
    if package == "accelerate":
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs

        return {
            "Accelerator": Accelerator,
            "DataLoaderConfiguration": DataLoaderConfiguration,
            "DistributedDataParallelKwargs": DistributedDataParallelKwargs,
        }
    from lightning.pytorch import Trainer as LightningTrainer
    from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
    from torch.nn.parallel import DistributedDataParallel

    # Lightning's DDPStrategy passes its keywords on to torch's DistributedDataParallel.
    return {
        "Trainer": LightningTrainer,
        "ModelCheckpoint": ModelCheckpoint,
        "TQDMProgressBar": TQDMProgressBar,
        "DDPStrategy": DistributedDataParallel,
    }


def of_lightning(**changes: Any) -> Evidence:
    environment = Environment(
        torch="2.13.0", python="3.11", device="cpu", device_count=0, tdiag="0.1.0", command=(),
        script="fit.py", hostname="", platform="", framework=("lightning", "2.6.6"),
    )  # fmt: skip
    step = budget(forward=10, loss=8, backward=20, other=9)
    line = msgspec.structs.replace(stack(70, 0.9), library="lightning", **changes)
    return Evidence().add(step, environment, stacks((line,)))


@pytest.mark.parametrize(
    ("logging", "settings", "inside"),
    [
        ((("the progress bar", 0.2),), ("TQDMProgressBar(refresh_rate=50)",), "the progress bar"),
        ((("the logger", 0.2),), ("Trainer(log_every_n_steps=50)",), "the logger"),
        ((("self.log", 0.2),), ("self.global_step % 50",), "self.log"),
        (
            (("the logger", 0.2), ("the progress bar", 0.06), ("self.log", 0.01)),
            ("Trainer(log_every_n_steps=50)", "TQDMProgressBar(refresh_rate=50)"),
            "the logger",
        ),
        ((("", 0.2),), ("log_every_n_steps=50", "refresh_rate=50"), ""),
    ],
)
def test_logs_that_a_framework_writes_get_the_setting_of_their_part(
    logging: tuple[tuple[str, float], ...], settings: tuple[str, ...], inside: str
) -> None:
    """All of them stand at the line that called ``Trainer.fit``, with most of the step's work."""
    found = run_rule(find("TD804"), of_lightning(logging=logging))
    assert isinstance(found, Finding)
    assert found.location is not None and found.location.line == 70
    share = round(100 * sum(frac for _, frac in logging))
    assert found.summary.startswith(f"Logging takes {share}%")
    assert found.summary.endswith(f"train.py:70 in {inside}." if inside else "train.py:70.")
    spelled = found.fix.text.partition(" In plain torch: ")[0]
    every = ("TQDMProgressBar(", "log_every_n_steps", "self.global_step")
    assert all(setting in spelled for setting in settings)
    assert sum(word in spelled for word in every) == len(settings)


def test_samples_without_logs_are_no_logging() -> None:
    assert run_rule(find("TD804"), of_lightning()) is None


@pytest.mark.parametrize("code", ["TD501", "TD720"])
def test_torch_calls_of_a_line_that_logs_are_no_work_of_the_models(code: str) -> None:
    """``self.log`` updates a metric for each value: dozens of calls, some on constants alone."""
    rule = find(code)
    evidence = rule.fires()
    ops = evidence.get(Ops)
    assert ops is not None
    looping = [x for x in ops.lines if x.in_loop or x.constant_ns]
    lines = [
        StackLine(at=x.at, self_frac=0.3, leaf="", logging=(("self.log", 0.2),)) for x in looping
    ]
    found = run_rule(rule, evidence.add(stacks(tuple(lines))))
    assert isinstance(run_rule(rule, rule.fires()), Finding)
    assert not isinstance(found, Finding)


def test_a_framework_that_breaks_costs_no_finding_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: Any) -> Fix:
        raise KeyError("renamed")

    monkeypatch.setattr(engine, "in_its_terms", breaks)
    evidence = of_lightning(logging=(("the logger", 0.2),))
    found = diagnose(evidence)
    (logs,) = [x for x in found.findings if x.code == "TD804"]
    assert logs.fix.text.startswith("Log at train.py:70 every 50 steps")
    (note,) = [note for note in found.notes if note.code == "framework"]
    assert "lightning" in note.text and "KeyError: 'renamed'" in note.text
