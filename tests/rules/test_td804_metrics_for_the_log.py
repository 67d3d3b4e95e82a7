"""Metrics that only the log gets: within the step, several calls deep, and growing with the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.costs import weigh
from tdiag.diagnose.engine import run_rule, run_rules
from tdiag.diagnose.verdict import judge
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, environment, op_line, ops, phases, stack, stacks
from tdiag.rules.log_lines import written_in_forward

SOURCE = """\
def hit_rate(users, catalogue):
    return (users @ catalogue).topk(20)

def training_step(self, batch):
    loss = self.model(batch)
    recall = hit_rate(batch, self.catalogue)
    self.log("recall", recall)
    return loss

def run(self):
    for batch in self.loader:
        self.optimizer.step()
        self.report(self.meter.summary())

def report(self, values):
    print(values)

def summary(self):
    return auc(self.scores)
"""


class Script:
    """SOURCE, its samples and its torch calls. ``frames``: name, line, caller's number, share."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "train.py"
        self.file.write_text(SOURCE)

    def evidence(
        self, parts: dict[str, float], frames: list[tuple[str, int, int, float]], *calls: OpLine
    ) -> Evidence:
        file = str(self.file)
        tree = tuple(
            CallFrame(name=name, file=file, line=line, parent=parent, frac=share, user=True)
            for name, line, parent, share in frames
        )
        leaves = [x for number, x in enumerate(frames) if number not in {y[2] for y in frames}]
        sampled = (
            replace(stack(0, share), at=at(line, name, file)) for name, line, _, share in leaves
        )
        made = {"other": "after_step"}
        return Evidence().add(
            budget(**parts), phases(**{made.get(k, k): v for k, v in parts.items()}),
            environment(), stacks(tuple(sampled)), CallTrees(training=tree, workers=()),
            ops(*(replace(x, at=replace(x.at, file=file)) for x in calls)),
        )  # fmt: skip


def clean(step: Budget) -> Steps:
    each = step.step_ns
    return Steps(
        durations_ns=(each,) * 100, mean_ns=each, median_ns=each, p90_ns=each, count=100,
        boundary="optimizer", total_steps_seen=100,
    )  # fmt: skip


def test_a_metric_within_the_training_step_is_logging_where_it_is_set(tmp_path: Path) -> None:
    frames = [
        ("run", 12, -1, 1.0), ("training_step", 5, 0, 0.25), ("training_step", 6, 0, 0.75),
        ("hit_rate", 2, 2, 0.75),
    ]  # fmt: skip
    evidence = Script(tmp_path).evidence(
        {"forward": 90, "backward": 8, "optimizer": 2}, frames,
        op_line(2, "forward", 3, at=at(2, "hit_rate"), elapsed_ns=70 * MS),
        op_line(5, "forward", 9, at=at(5, "training_step"), elapsed_ns=20 * MS, grad_calls=9.0),
        op_line(12, "optimizer", 3, at=at(12, "run"), elapsed_ns=2 * MS),
    )  # fmt: skip
    found = run_rule(find("TD804"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 6
    assert "most of it at train.py:2" in found.summary
    assert found.summary.endswith("for what is written at train.py:6.")
    step = budget(forward=90, backward=8, optimizer=2)
    evidence.add(clean(step))
    findings = run_rules(evidence)[0]
    verdict = judge(evidence, step, findings)
    assert verdict.cls == "logging" and verdict.share > 0.6
    # Another rule's finding about that line, such as its slope, is logging, too.
    other = replace(found, cls="overhead", location=at(6, "training_step", found.location.file))
    assert weigh(evidence, step, findings).class_of(other) == "overhead"
    other = replace(other, location=at(2, "hit_rate", found.location.file))
    assert weigh(evidence, step, findings).class_of(other) == "logging"


@pytest.mark.parametrize(("scale", "share"), [(1.0, 0.3), (2.0, 0.6), (3.0, 0.9)])
def test_a_summary_for_a_report_grows_with_the_run(
    tmp_path: Path, scale: float, share: float
) -> None:
    """It was sampled early; in the clean steps the work after the step takes ``scale`` as long."""
    frames = [("run", 12, -1, 0.7), ("run", 13, -1, 0.3), ("summary", 19, 1, 0.3)]
    evidence = Script(tmp_path).evidence(
        {"forward": 5, "backward": 4, "optimizer": 1, "other": 90}, frames,
        op_line(11, "forward", 9, at=at(11, "run")), op_line(12, "optimizer", 3, at=at(12, "run")),
    )  # fmt: skip
    wall = phases(forward=5, backward=4, optimizer=1, after_step=90)
    evidence.add(replace(wall, around_scale=scale))
    found = run_rule(find("TD804"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 13
    assert f"takes {share:.0%} of the training thread's time" in found.summary
    assert run_rule(find("TD713"), evidence) is None


TRAINS = """\
def main(trainer):
    result = trainer.train()
    print(result.loss)

def epoch(engine, batches):
    for batch in batches:
        loss = engine.train_batch(batch)
        print(loss)
"""


@pytest.mark.parametrize(
    "frames",
    [
        [("main", 2, -1, 1.0)],
        [("epoch", 7, -1, 1.0)],
    ],
    ids=["a library's loop", "a library's step"],
)
def test_what_trains_is_not_made_for_what_is_written_of_it(
    tmp_path: Path, frames: list[tuple[str, int, int, float]]
) -> None:
    script = Script(tmp_path)
    script.file.write_text(TRAINS)
    ((name, line, *_),) = frames
    evidence = script.evidence(
        {"forward": 60, "backward": 8, "optimizer": 2, "other": 30}, frames,
        op_line(line, "forward", 9, at=at(line, name), elapsed_ns=60 * MS, grad_calls=9.0),
        op_line(line, "optimizer", 3, at=at(line, name), elapsed_ns=2 * MS),
    )  # fmt: skip
    assert run_rule(find("TD804"), evidence) is None
    # Without counted calls it is unknown which line trains.
    seen = evidence.get(Stacks)
    assert seen is not None
    forward = replace(seen, training=tuple(replace(x, phase="forward") for x in seen.training))
    assert written_in_forward(forward, None, evidence.get(CallTrees)) == []


DERIVES = """\
def training_step(self, batch):
    losses = self.losses(batch)
    self.log_dict(self.similarity(losses))
    return sum(losses)

def similarity(self, losses):
    flat = {}
    for name, loss in losses.items():
        flat[name] = torch.autograd.grad(loss, self.shared, retain_graph=True)
    return {name: value.norm() for name, value in flat.items()}
"""


@pytest.mark.parametrize(
    ("written", "fires"),
    [
        ("self.log_dict(self.similarity(losses))", True),
        ("losses += self.similarity(losses).values()", False),  # a penalty
    ],
)
def test_gradients_that_are_only_logged_do_not_train(
    tmp_path: Path, written: str, fires: bool
) -> None:
    frames = [
        ("fit", 1, -1, 1.0), ("training_step", 3, 0, 0.6), ("similarity", 9, 1, 0.6),
        ("training_step", 2, 0, 0.1), ("backward", 2, 0, 0.3),
    ]  # fmt: skip
    parts = {"forward": 10, "backward": 90}
    script = Script(tmp_path)
    script.file.write_text(DERIVES.replace("self.log_dict(self.similarity(losses))", written))
    evidence = script.evidence(
        parts, frames,
        op_line(2, "forward", 9, at=at(2, "training_step"), elapsed_ns=9 * MS, grad_calls=9.0),
        op_line(9, "backward", 3, at=at(9, "similarity"), elapsed_ns=60 * MS),
    )  # fmt: skip
    found = run_rule(find("TD804"), evidence)
    assert isinstance(found, Finding) is fires
    if isinstance(found, Finding):
        assert found.location and found.location.line == 3
        assert found.speedup and found.speedup.high > 2  # 60 of 100 ms
        step = budget(**parts)
        verdict = judge(evidence.add(clean(step)), step, run_rules(evidence)[0])
        assert verdict.cls == "logging"


NORMS = """\
def step(self, loss):
    loss.backward()
    rows = [self.describe(p) for p in self.parameters]
    if self.number % 50 == 0:
        self.writer.writerows(rows)
    self.optimizer.step()

def describe(self, p):
    return [p.grad.svdvals()[0].item()]
"""


@pytest.mark.parametrize(
    ("before", "after", "fires"),
    [
        ("", "", True),
        ("p.grad.svdvals()", "p.grad.clamp_(-1, 1)", False),  # it changes the gradients
        ("writer.writerows(rows)", "optimizer.scale(rows)", False),
    ],
)
def test_what_is_logged_of_the_gradients_is_no_part_of_the_update(
    tmp_path: Path, before: str, after: str, fires: bool
) -> None:
    frames = [
        ("step", 2, -1, 0.4), ("step", 6, -1, 0.1), ("step", 3, -1, 0.5), ("describe", 9, 2, 0.5),
    ]  # fmt: skip
    parts = {"forward": 10, "backward": 30, "optimizer": 60}
    script = Script(tmp_path)
    script.file.write_text(NORMS.replace(before, after))
    name = "clamp_" if "clamp_" in after else "svdvals"
    calls = [
        op_line(2, "backward", 3, at=at(2, "step"), elapsed_ns=30 * MS),
        op_line(9, "optimizer", 9, at=at(9, "describe"), elapsed_ns=50 * MS, names={name: 9.0}),
        op_line(6, "optimizer", 3, at=at(6, "step"), elapsed_ns=9 * MS),
    ]
    evidence = script.evidence(parts, frames, *calls)
    found = run_rule(find("TD804"), evidence)
    assert isinstance(found, Finding) is fires
    if isinstance(found, Finding):
        assert found.location and found.location.line == 3
        step = budget(**parts)
        verdict = judge(evidence.add(clean(step)), step, run_rules(evidence)[0])
        assert verdict.cls == "logging" and verdict.share > 0.4


HISTOGRAMS = """\
def step(self, loss):
    loss.backward()
    self.record()
    self.optimizer.step()

def record(self):
    row = {}
    for name, p in self.parameters:
        values = p.grad.numpy()
        row[name], _ = np.histogram(values)
    self.file.write(json.dumps(row))
"""


@pytest.mark.parametrize(
    ("before", "after", "fires"),
    [
        ("", "", True),
        ("self.file.write(json.dumps(row))", "self.spread = row", False),
        ("values = p.grad.numpy()", "p.grad.clamp_(-1, 1)", False),
    ],
)
def test_a_function_that_only_writes_is_no_part_of_the_update(
    tmp_path: Path, before: str, after: str, fires: bool
) -> None:
    """Most of it makes no torch call."""
    frames = [
        ("step", 2, -1, 0.4), ("step", 4, -1, 0.1), ("step", 3, -1, 0.5), ("record", 9, 2, 0.05),
        ("record", 10, 2, 0.45),
    ]  # fmt: skip
    script = Script(tmp_path)
    script.file.write_text(HISTOGRAMS.replace(before, after))
    name = "clamp_" if "clamp_" in after else "numpy"
    calls = [
        op_line(2, "backward", 3, at=at(2, "step"), elapsed_ns=30 * MS),
        op_line(9, "optimizer", 9, at=at(9, "record"), elapsed_ns=5 * MS, names={name: 9.0}),
        op_line(4, "optimizer", 3, at=at(4, "step"), elapsed_ns=9 * MS),
    ]
    parts = {"forward": 10, "backward": 30, "optimizer": 60}
    found = run_rule(find("TD804"), script.evidence(parts, frames, *calls))
    assert isinstance(found, Finding) is fires
    if isinstance(found, Finding):
        assert found.location and found.location.line == 10


def test_what_also_learns_is_not_made_for_what_is_written_of_it(tmp_path: Path) -> None:
    """One line of a library computes gradients and updates; most of its time is the update's."""
    script = Script(tmp_path)
    script.file.write_text(TRAINS)
    evidence = script.evidence(
        {"forward": 10, "backward": 20, "optimizer": 70}, [("epoch", 7, -1, 1.0)],
        op_line(7, "backward", 9, at=at(7, "epoch"), elapsed_ns=20 * MS),
        op_line(7, "optimizer", 3, at=at(7, "epoch"), elapsed_ns=70 * MS),
    )  # fmt: skip
    assert run_rule(find("TD804"), evidence) is None


@pytest.mark.parametrize(("recorded", "logs"), [(0.0, True), (40.0, False)])
def test_a_library_of_metrics_in_each_step(tmp_path: Path, recorded: float, logs: bool) -> None:
    """`scores(logits, labels)` of torchmetrics: its modules' calls pass for forwards. One that
    records gradients may be the loss."""
    frames = [("fit", 40, -1, 0.7), ("fit", 41, -1, 0.3)]
    evidence = Script(tmp_path).evidence(
        {"forward": 50, "backward": 40, "optimizer": 10}, frames,
        op_line(40, "forward", 9, at=at(40, "fit"), elapsed_ns=20 * MS, grad_calls=9.0),
        op_line(41, "forward", 500, at=at(41, "fit"), elapsed_ns=30 * MS, grad_calls=recorded),
    )  # fmt: skip
    trees = evidence.get(CallTrees)
    assert trees is not None
    library = "/venv/lib/python3.11/site-packages/torchmetrics/collections.py"
    inside = CallFrame(name="forward", file=library, line=0, parent=1, frac=0.3, user=False)
    evidence.add(CallTrees(training=(*trees.training, inside), workers=()))
    found = run_rule(find("TD804"), evidence)
    assert isinstance(found, Finding) is logs
    if isinstance(found, Finding):
        assert found.location is not None and found.location.line == 41
        assert "takes 30% of the training thread's time" in found.summary
