"""Evaluation, checkpoints, logging: unmeasured, measured zero, and dear."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.device import Syncs
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules, Saver, Savers
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import (
    MS,
    at,
    budget,
    device_time,
    environment,
    family,
    flags,
    host_op,
    host_ops,
    kernels,
    loaders,
    module,
    op_line,
    ops,
    phases,
    stack,
    stacks,
    sync,
    system,
    traced,
)


def result(code: str, evidence: Evidence) -> Finding | Abstained | None:
    return run_rule(find(code), evidence)


@pytest.mark.parametrize(
    ("frac", "outcome"), [(None, Abstained), (0.0, type(None)), (1.0, Finding)]
)
def test_evaluation_is_judged_only_when_recording_was_measured(
    frac: float | None, outcome: type
) -> None:
    evidence = Evidence().add(
        budget(forward=10, evaluation=20), replace(phases(evaluation=20), eval_grad_frac=frac)
    )
    assert type(result("TD801", evidence)) is outcome


@pytest.mark.parametrize("code", ["TD801", "TD802"])
def test_an_evaluation_is_named_by_its_loader_else_by_the_line_that_calls_the_model(
    code: str,
) -> None:
    evaluating = replace(phases(evaluation=20), eval_grad_frac=1.0, eval_batches_per_step=1.0)
    evidence = Evidence().add(budget(forward=10, evaluation=20), evaluating)
    called = module("Net", line=20, evaluated_at=at(60, "evaluate"))
    loss = module("Loss", parameters=0, evaluated_at=at(61, "evaluate"))
    evidence.add(Modules(modules=(loss, called)))
    by_line = result(code, evidence)
    assert isinstance(by_line, Finding) and by_line.location
    assert by_line.location.line == 60
    assert "train.py:60" in by_line.fix.text and "DataLoader" not in by_line.fix.text
    by_loader = result(code, evidence.add(loaders(role="eval", created_at=at(47))))
    assert isinstance(by_loader, Finding) and by_loader.location
    assert by_loader.location.line == 47
    assert "over the DataLoader at train.py:47" in by_loader.fix.text


METRIC = replace(stack(70, 0.4, function="metric"), evaluating=0.4)


@pytest.mark.parametrize(
    ("line", "called", "named"),
    [
        (METRIC, 33, 70),  # a framework's evaluation
        (replace(METRIC, at=at(70, "evaluate"), evaluating=0.0), 60, 70),  # the script's own
        (replace(METRIC, evaluating=0.0), 60, 47),  # not in the evaluation
        (replace(METRIC, self_frac=0.1, own_frac=0.1, evaluating=0.1), 33, 47),  # not half of it
        (replace(METRIC, own_frac=0.0), 33, 47),  # it calls the model
    ],
)
def test_an_evaluation_is_named_by_its_work_beside_the_model_if_that_is_most(
    line: StackLine, called: int, named: int
) -> None:
    evaluating = replace(phases(evaluation=20), eval_grad_frac=0.0, eval_batches_per_step=1.0)
    model = stack(33, 0.2, "linear (nn/functional.py)", function="main")
    model = replace(model, own_frac=0.0, evaluating=0.2 * (line.evaluating > 0))
    evidence = Evidence().add(budget(forward=10, evaluation=20), evaluating, stacks((line, model)))
    place = at(called, {33: "main", 60: "evaluate"}[called])
    evidence.add(Modules(modules=(module("Net", evaluated_at=place),)))
    evidence.add(ops(op_line(33, "forward", 9, at=at(33, "main"))))
    found = result("TD802", evidence.add(loaders(role="eval", created_at=at(47))))
    assert isinstance(found, Finding) and found.location
    assert found.location.line == named
    assert ("cheaper" in found.fix.text) == (named == 70)
    assert "over the DataLoader at train.py:47" in found.fix.text


@pytest.mark.parametrize("base", ["nn.Module", "L.LightningModule", ""])
def test_what_a_model_does_in_a_method_of_its_own_is_the_model(base: str, tmp_path: Path) -> None:
    """Called without torch's module call, so that no line says it is the model."""
    script = tmp_path / "model.py"
    script.write_text(f"class Scorer({base}):\n    def score_all(self, x):\n        pass\n")
    line = replace(stack(3, 0.4), at=at(3, "Scorer.score_all", str(script)), evaluating=0.4)
    evaluating = replace(phases(evaluation=20), eval_grad_frac=0.0, eval_batches_per_step=9.0)
    evidence = Evidence().add(budget(forward=10, evaluation=20), evaluating, stacks((line,)))
    found = result("TD802", evidence)
    assert isinstance(found, Finding)
    assert ("is not the model" in found.summary) is (base != "nn.Module")


@pytest.mark.parametrize(("size", "said"), [(1, True), (8, True), (64, False), (None, False)])
def test_an_evaluation_in_smaller_batches_than_the_training_can_have_larger_ones(
    size: int | None, said: bool
) -> None:
    evaluating = replace(phases(evaluation=20), eval_grad_frac=0.0, eval_batches_per_step=9.0)
    (train,) = loaders(batch_size=64).loaders
    own = replace(train, id=1, role="eval", batch_size=size, created_at=at(47))
    evidence = Evidence().add(budget(forward=10, evaluation=20), evaluating)
    found = result("TD802", evidence.add(Loaders(loaders=(train, own))))
    assert isinstance(found, Finding)
    words = f"Or in batches of 64 instead of {size} at train.py:47."
    assert (words in found.fix.text) is said


def test_a_run_that_never_evaluates_is_clear_not_unknown() -> None:
    assert result("TD801", Evidence().add(budget(forward=10), phases(forward=10))) is None


def test_checkpoint_interval_is_computed_from_this_run() -> None:
    """120 ms each against a step of 24 ms: one in 500 steps costs one percent."""
    found = find("TD803").fires()
    diagnosis = result("TD803", found)
    assert isinstance(diagnosis, Finding)
    assert "every 500 steps" in diagnosis.fix.text
    assert "once in 10 steps" in diagnosis.summary


def test_the_function_that_saves_is_named_and_is_the_place_where_no_sample_fell() -> None:
    saver = Saver(name="torch.distributed.checkpoint.save", at=at(77))
    evidence = find("TD803").fires().add(Savers(savers=(saver,)), stacks())
    found = result("TD803", evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 77
    assert found.summary.startswith("Saving (torch.distributed.checkpoint.save) takes")
    assert "async_save" in found.fix.text and "async_save" in found.fix.code
    already = Saver(name="torch.distributed.checkpoint.async_save", at=at(77))
    again = result("TD803", evidence.add(Savers(savers=(already,))))
    assert isinstance(again, Finding)
    assert "Or call" not in again.fix.text and not again.fix.code


def test_print_is_found_by_the_text_of_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("loss.backward()\nprint(loss)\n")
    lines = tuple(
        replace(stack(0, share), at=at(line, file=str(script)))
        for line, share in ((1, 0.6), (2, 0.3))
    )
    found = result("TD804", Evidence().add(budget(backward=10, other=5), stacks(lines)))
    assert isinstance(found, Finding)
    assert found.location is not None and found.location.line == 2
    assert found.at_best_ns < 15 * MS / 3


@pytest.mark.parametrize(
    "text",
    ["os.fsync(file.fileno())", "self.db.commit()", "rows.writerow(r)", "frame.to_csv(path)"],
)
def test_a_built_in_function_that_writes_is_known_by_the_lines_text(
    text: str, tmp_path: Path
) -> None:
    script = tmp_path / "log.py"
    script.write_text(f"{text}\n")
    lines = (replace(stack(1, 0.5), at=at(1, "write", str(script))),)
    found = result("TD804", Evidence().add(budget(forward=10, other=10), stacks(lines)))
    assert isinstance(found, Finding)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    ("text", "leaf", "waits"),
    [
        ("print(loss.item())", "main (me/train.py)", True),
        ("print(loss)", "_str_intern (torch/_tensor_str.py)", True),
        ("bar.set_postfix(loss=loss.item())", "refresh (tqdm/std.py)", False),
    ],
)
def test_on_a_device_reading_a_value_waits_for_the_work_before_it(
    text: str, leaf: str, waits: bool, device: bool, tmp_path: Path
) -> None:
    """70 % of the samples of a step in which the device computes: the line costs next to nothing.
    Written below ``optimizer.step()`` it is no work after the step either."""
    script = tmp_path / "train.py"
    script.write_text(f"model(x)\noptimizer.step()\n{text}\n")
    here = [at(number, "main", str(script)) for number in (1, 2, 3)]
    line = replace(stack(3, 0.7, leaf), at=here[2], own_frac=0.7 if "me/" in leaf else 0.0)
    counted = ops(
        op_line(1, "forward", 9, at=here[0]), op_line(2, "optimizer", 9, at=here[1]),
        op_line(3, "unattributed", 1, at=here[2], conversions={"item": 1.0}),
    )  # fmt: skip
    step = budget(device=device, other=30, **{"compute" if device else "backward": 70})
    evidence = Evidence().add(step, stacks((line,)), counted)
    found = result("TD804", evidence)
    assert (found is None) is (waits and device)
    if isinstance(found, Finding) and device:
        assert found.speedup is not None and found.speedup.low == 1, "the device may be at work"
    script.write_text("model(x)\noptimizer.step()\ntotal += loss.item()\n")
    linecache.checkcache(str(script))
    if waits:
        assert (result("TD713", evidence) is None) is device


@pytest.mark.parametrize("phase", ["data_wait", "checkpoint"])
def test_writing_that_belongs_to_loading_or_saving_is_not_logging(phase: str) -> None:
    lines = (stack(70, 0.3, "dump (json/__init__.py)", phase),)
    assert result("TD804", Evidence().add(budget(forward=10, other=9), stacks(lines))) is None


def test_a_handful_of_samples_is_no_evidence() -> None:
    few = replace(stacks((stack(70, 0.3, "refresh (tqdm/std.py)"),)), samples=40)
    assert isinstance(result("TD804", Evidence().add(budget(forward=10), few)), Abstained)


def test_collating_is_compared_with_copying_the_batch() -> None:
    step = budget(data_wait=100, forward=20)
    slow = {"load_ns": 50e6, "load_cpu_ns": 50e6, "collate_ns": 50e6, "collate_cpu_ns": 50e6}
    small = Evidence().add(step, loaders(batch_bytes=1e6, **slow), system())
    assert isinstance(result("TD206", small), Finding)
    large = Evidence().add(step, loaders(batch_bytes=100e6, **slow), system())
    assert result("TD206", large) is None


def test_a_slow_collate_is_named_by_its_line_that_was_sampled_most() -> None:
    evidence = find("TD206").fires()
    elsewhere = replace(stack(12, 0.6, phase="data_wait"), at=at(12, "__getitem__"))
    hot = replace(stack(36, 0.3, phase="data_wait"), at=at(36, "pad_tokens"))
    for sampled, line in (((elsewhere, hot), 36), ((elsewhere,), 30), ((), 30)):
        found = result("TD206", evidence.add(stacks(sampled)))
        assert isinstance(found, Finding) and found.location
        assert found.location.line == line


def test_tensors_from_lists_in_workers_are_found_by_the_text_of_the_sampled_line(
    tmp_path: Path,
) -> None:
    script = tmp_path / "data.py"
    script.write_text("x = torch.tensor(row)\ny = torch.from_numpy(row)\n")
    step = budget(data_wait=30, forward=5)
    for line, fires in ((1, True), (2, False)):
        workers = (replace(stack(0, 0.7), at=at(line, file=str(script))),)
        evidence = Evidence().add(
            step, loaders(num_workers=2), system(), ops(), stacks(workers=workers)
        )
        assert isinstance(result("TD207", evidence), Finding) is fires


def test_the_gain_of_arrays_holds_what_was_counted_and_what_was_sampled() -> None:
    line = op_line(18, "prepare", 64, constructions=64.0, elapsed_ns=12 * MS, in_loop=True)
    step = Evidence().add(budget(prepare=30, other=10), ops(line))
    counted, sampled = result("TD207", step), result("TD207", step.add(stacks((stack(18, 0.7),))))
    assert isinstance(counted, Finding) and isinstance(sampled, Finding)
    for found, most_ms in ((counted, 12), (sampled, 28)):
        assert found.speedup is not None and found.speedup.low == round(40 / (40 - 0.85 * 12), 3)
        assert found.at_best_ns == pytest.approx(most_ms * MS, abs=0.1 * MS)


def test_lists_that_the_fetch_makes_of_arrays_go_as_well(tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text("x = torch.tensor(rows)\nrow = table[i].tolist()\nrow = table[i]\n")
    line = op_line(
        1, "data_wait", 1, constructions=1.0, elapsed_ns=12 * MS, at=at(1, file=str(script))
    )
    sampled = (replace(stack(0, 0.3, "", "data_wait"), at=at(n, file=str(script))) for n in (1, 2))
    step = Evidence().add(budget(data_wait_cpu=30, forward=10), ops(line), stacks(tuple(sampled)))
    found = result("TD207", step)
    assert isinstance(found, Finding) and found.speedup is not None
    assert found.at_best_ns == pytest.approx(24 * MS, rel=0.01)  # both lines' samples
    assert found.speedup.low == round(40 / (40 - 0.85 * 12), 3)


def test_a_line_that_mostly_does_other_things_is_not_blamed_for_construction() -> None:
    line = op_line(18, "forward", 20, constructions=1.0, elapsed_ns=8 * MS)
    assert result("TD207", Evidence().add(budget(forward=20), ops(line))) is None


def test_one_large_list_beside_a_slice_of_it_is_told_by_time() -> None:
    """``torch.tensor(table)[:16]``: one call of two, and nearly all of the time."""
    changes: dict[str, Any] = {"constructions": 1.0, "elapsed_ns": 12 * MS}
    step = budget(data_wait_cpu=2, forward=20, backward=5)
    line = op_line(36, "forward", 2, constructed_ns=11.9 * MS, **changes)
    found = result("TD207", Evidence().add(step, ops(line)))
    assert isinstance(found, Finding) and found.components == ("forward",)
    cheap = op_line(36, "forward", 2, constructed_ns=0.1 * MS, **changes)
    assert result("TD207", Evidence().add(step, ops(cheap))) is None


def test_the_profilers_own_synchronisation_is_not_blamed_on_the_loop() -> None:
    evidence = find("TD403").fires()
    evidence.add(replace(traced(26), found_by="span"))
    diagnosis = result("TD403", evidence)
    assert isinstance(diagnosis, Abstained)
    assert "by the profiler" in diagnosis.missing


def test_calls_inside_an_op_are_not_counted_twice() -> None:
    """The trace lists `aten::item` and the runtime call inside it: one wait, one idle gap."""
    step = budget(device=True, compute=20, sync=6)
    inside = sync(name="cudaStreamSynchronize", at=None, idle_after_ns=4.0 * MS)
    both = Evidence().add(step, Syncs(syncs=(sync(), inside)), device_time(26))
    once = Evidence().add(step, Syncs(syncs=(inside,)), device_time(26))
    found = [result("TD401", evidence) for evidence in (both, once)]
    assert found[0] == found[1]
    assert isinstance(found[0], Finding)


def test_idle_time_that_belongs_to_the_loader_is_not_called_launch_bound() -> None:
    """All idle kernels start as soon as launched; but the host was waiting for data."""
    starved = replace(device_time(50), launch_starved_ns=30.0 * MS)
    waiting = Evidence().add(budget(device=True, compute=20, data_wait=30), starved)
    assert result("TD701", waiting) is None
    issuing = Evidence().add(budget(device=True, compute=20, launch=30), starved)
    found = result("TD701", issuing)
    assert isinstance(found, Finding)
    waited = replace(device_time(50), launch_starved_ns=718.0 * MS)
    mostly_other = Evidence().add(budget(device=True, compute=20, data_wait=700, launch=55), waited)
    found = result("TD701", mostly_other)
    assert isinstance(found, Finding) and "55.0 ms" in found.summary
    assert found.evidence[0].value == 55 * MS  # not the 718 ms that mostly belong to the loader


def test_an_optimizer_that_takes_little_is_left_alone() -> None:
    evidence = find("TD702").fires()
    assert isinstance(result("TD702", evidence), Finding)
    assert result("TD702", evidence.add(budget(forward=60, backward=90, optimizer=12))) is None


def test_torch_without_a_fused_form_on_the_cpu_is_not_told_to_use_it() -> None:
    evidence = find("TD702").fires().add(environment(torch="2.3.1"))
    assert result("TD702", evidence) is None


def test_zeroing_for_other_reasons_is_not_zeroing_of_gradients() -> None:
    """The backward of an index zeroes its result: hundreds of calls, for sixty tensors."""
    many = host_ops(host_op("aten::zero_", 500, 9 * MS))
    assert result("TD703", find("TD703").fires().add(many)) is None
    # As many as there are tensors, but zero_grad() was seen and filled nothing.
    alike = host_ops(host_op("aten::zero_", 60, 3 * MS))
    assert isinstance(result("TD703", find("TD703").fires().add(alike)), Finding)
    none = replace(alike, zeroing=host_op("zero_grad", 0, 0))
    assert result("TD703", find("TD703").fires().add(none)) is None
    # Seen inside zero_grad(), they are what they are whatever others there are.
    theirs = replace(many, zeroing=host_op("zero_grad", 60, 3 * MS))
    assert isinstance(result("TD703", find("TD703").fires().add(theirs)), Finding)


def test_matrix_units_that_were_never_seen_promise_nothing() -> None:
    unseen = kernels(family("gemm", 40, float32_ns=40.0 * MS, tensor_core_ns=0.0))
    diagnosis = result("TD601", find("TD601").fires().add(unseen))
    assert isinstance(diagnosis, Finding)
    assert diagnosis.speedup is not None and diagnosis.speedup.low == 1.0


def test_autocast_that_is_on_is_not_advised_again() -> None:
    evidence = find("TD601").fires().add(flags(autocast_dtype="torch.bfloat16"))
    assert result("TD601", evidence) is None
