"""A run directory is read whatever became of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.errors import RunError
from tdiag.evidence.device import SyncLines
from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Environment, System
from tdiag.evidence.steps import Phases, Steps
from tdiag.evidence.torch_ops import Calls, Dispatch, Ops
from tdiag.evidence.training import Modules, Optimizers

from .making import CRITERION, MS, Run, loader, plain


def steps_of(folder: Path) -> Steps:
    found = load_run(folder).get(Steps)
    assert found is not None
    return found


def test_step_time_is_the_mean_of_the_clean_steps(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        plain(run)
        run.gap(40 if number % 10 == 0 else 0)

    found = steps_of(Run(tmp_path).steps(30, step).write())
    assert found.count == 30
    assert (found.mean_ns, found.median_ns) == (34 * MS, 30 * MS)
    assert found.boundary == "optimizer"


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    folder = Run(tmp_path).steps(30, plain).write(torn='{"kind":"steps","i":30,"s":')
    assert steps_of(folder).count == 30


def test_unknown_kinds_and_fields_are_ignored(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add("hologram", depth=3)
    run.add("torch", version="2.13.0", devices=[], intra_op=2, spin="up")
    evidence = load_run(run.steps(30, plain).write())
    environment = evidence.get(Environment)
    assert environment is not None
    assert environment.torch == "2.13.0"


def test_damaged_lines_are_counted_in_a_note(tmp_path: Path) -> None:
    folder = Run(tmp_path).steps(30, plain).write(torn='{"kind":"st\n{"kind":"gap"}\n')
    evidence = load_run(folder)
    assert "1 line of the event file could not be read" in [note.text for note in evidence.notes]
    torn = load_run(Run(tmp_path).steps(30, plain).write(torn='{"kind":"st\n{"kind":"steps","i'))
    assert "2 lines of the event file could not be read" in [note.text for note in torn.notes]


def test_an_event_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = Run(tmp_path).steps(30, plain).write()
    (folder / "events" / "7.jsonl").mkdir()
    evidence = load_run(folder)
    assert evidence.get(Steps) is not None
    assert "1 line of the event file could not be read" in [note.text for note in evidence.notes]


def test_a_record_that_breaks_off_is_captured_in_part(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    cut = load_run(run.write())
    assert str(cut.capture["baseline"]).startswith("partial: ")
    run.add("finish", t=run.now, why="exit")
    assert str(load_run(run.write()).capture["baseline"]) == "captured"


def test_how_a_program_failed_is_why_nothing_was_measured_and_is_said_once(tmp_path: Path) -> None:
    told = "the program ended with exit code 3 before the first training step"
    evidence = load_run(Run(tmp_path).write(exit_code=3, notes=[told, "another"]))
    diagnosis = diagnose(evidence)
    assert diagnosis.verdict.summary == told and told not in [note.text for note in diagnosis.notes]
    assert (
        "another" in [note.text for note in diagnosis.notes]
        and diagnosis.environment["exit_code"] == 3
    )
    failures = {str(found) for found in evidence.capture.values() if found.state == "failed"}
    assert failures == {f"failed: {told}"}
    assert {rule.missing for rule in diagnosis.abstained} == {told}


def test_steps_before_a_stronger_boundary_are_void(tmp_path: Path) -> None:
    """An evaluation before training: its batches looked like steps until an optimizer stepped."""
    run = Run(tmp_path, boundary="batch")
    run.steps(20, lambda run, _: run.batch(90))
    run.add("boundary", t=run.now, source="optimizer")
    run.number = 0
    assert steps_of(run.steps(25, plain).write()).total_steps_seen == 25


def test_a_run_that_never_trained_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.lines = [line for line in run.lines if line["kind"] != "boundary"]
    evidence = load_run(run.write())
    assert evidence.missing[Steps].startswith("no training step was seen")
    assert diagnose(evidence).verdict.cls == "unknown"


def test_a_run_of_one_step_does_not_say_that_nothing_trained(tmp_path: Path) -> None:
    """Lightning's own bug_report_model.py trains one batch."""
    assert (
        load_run(Run(tmp_path).write()).missing[Steps].startswith("only one training step was seen")
    )


def test_an_empty_run_directory_still_gives_a_diagnosis(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    diagnosis = diagnose(load_run(tmp_path))
    assert diagnosis.verdict.cls == "unknown"
    assert diagnosis.step is None
    assert diagnosis.budget == ()


def test_a_crash_at_step_three_is_judged_by_what_there_is(tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader(run)
    run.open("warmup")
    for _ in range(3):
        plain(run)
        run.end()
    evidence = load_run(run.write(notes=["crashed after 3 training steps"]))
    found = evidence.get(Steps)
    assert found is not None
    assert found.count == 2  # the first pays for what is made once
    assert "the run ended while warming up: judged by its steps 2 to 3" in [
        note.text for note in evidence.notes
    ]
    assert "crashed after 3 training steps" in [note.text for note in evidence.notes]
    assert str(evidence.capture["trace"]) == "failed: the run ended before it"


def test_warming_up_with_workers_says_nothing_about_waiting(tmp_path: Path) -> None:
    """Their queue was filled before the first step: any loader would look quick."""
    run = Run(tmp_path)
    loader(run, num_workers=2)
    run.open("warmup")
    for _ in range(8):
        plain(run)
        run.end()
    evidence = load_run(run.write())
    assert evidence.get(Steps) is None
    assert evidence.get(Phases) is None
    assert evidence.missing[Steps] == (
        "the run ended after 9 training steps (8 measured), before a clean one could be measured"
    )


def test_the_second_pass_is_preferred_once_it_is_long_enough(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.steps(5, lambda run, _: run.batch(50))
    run.open("baseline", 2)
    for _ in range(20):
        plain(run)
        run.end()
    assert steps_of(run.write()).count == 20


def test_two_short_passes_are_taken_together(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(5, plain)
    run.open("baseline", 2)
    for _ in range(4):
        plain(run)
        run.end()
    evidence = load_run(run.write())
    found = evidence.get(Steps)
    assert found is not None
    assert found.count == 9
    assert "only 9 clean steps: read shares with care" in [note.text for note in evidence.notes]


def test_settling_and_profiled_steps_are_not_clean(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    for window in ("settle", "sample", "done"):
        run.open(window)
        for _ in range(5):
            run.gap(100)
            plain(run)
            run.end()
    evidence = load_run(run.write())
    found = evidence.get(Steps)
    assert found is not None
    assert (found.count, found.total_steps_seen) == (30, 45)
    assert evidence.perturbation == {"sample": pytest.approx(100 * MS / found.median_ns)}


def test_what_tdiag_does_between_two_steps_is_in_none(tmp_path: Path) -> None:
    def step(run: Run, number: int) -> None:
        run.pause(500)
        plain(run)

    assert steps_of(Run(tmp_path).steps(30, step).write()).mean_ns < 40 * MS


def test_rank_zero_speaks_for_many_ranks(tmp_path: Path) -> None:
    other = Run(tmp_path, pid=200)
    other.lines[0]["rank"] = 1
    other.steps(60, plain).write()
    folder = Run(tmp_path, pid=300).steps(30, plain).write()
    assert steps_of(folder).count == 30
    assert "this report is about rank 0; 1 more process trained" in [
        note.text for note in load_run(folder).notes
    ]


def test_counts_are_per_step_and_of_the_longer_window(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    line = {
        "at": ["/u/train.py", 7, "loss"], "phase": "loss", "calls": 60, "grad_calls": 20,
        "conversions": {"item": 10}, "constructions": 2, "elapsed": 4000, "in_loop": True,
    }  # fmt: skip
    for number, steps in ((1, 1), (2, 2)):
        syncs = [[["/u/train.py", 8, "loss"], 6]]
        run.add("ops", steps=steps, lines=[line], syncs=syncs, **{"pass": number})
        rows = [["/u/train.py", 7, "loss", 4, 100, 900], ["", 0, "<built-in>", 2, 500, 500]]
        run.add("calls", steps=steps, rows=rows, **{"pass": number})
    run.add("dispatch", op_ns=1500.5, grad_op_ns=6000)
    evidence = load_run(run.write())
    ops, calls, syncs = evidence.get(Ops), evidence.get(Calls), evidence.get(SyncLines)
    assert ops is not None and calls is not None and syncs is not None
    only = ops.lines[0]
    assert (only.calls, only.grad_calls, only.conversions) == (30, 10, {"item": 5})
    assert (round(only.elapsed_ns), only.at.line) == (2000, 7)
    assert [row.own_ns for row in calls.rows] == [250, 50]
    assert syncs.lines[0].per_step == 3
    assert evidence.get(Dispatch) == Dispatch(op_ns=1500.5, grad_op_ns=6000)


def test_modules_and_optimizers(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(2):  # written again when another optimizer takes the lead
        run.add("optimizer", id=0, name="Adam", tensors=8, config={"lr": 0.1, "betas": [0.9, 1]})
    evidence = load_run(run.steps(30, plain).write())
    modules, optimizers = evidence.get(Modules), evidence.get(Optimizers)
    assert modules is not None and optimizers is not None
    called = {m.name: (m.calls_per_step, m.is_loss) for m in modules.modules}
    assert called["Model"] == (1, False)
    assert called["CrossEntropyLoss"] == (1, True)
    assert called["Teacher"] == (0, False)
    assert [o.config for o in optimizers.optimizers] == [{"lr": 0.1, "betas": "[0.9, 1]"}]


def test_a_loss_module_without_torchs_base_class_is_known_by_its_place(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.lines[1 + CRITERION] |= {"name": "MyLoss", "loss": False}
    modules = load_run(run.steps(30, plain).write()).get(Modules)
    assert modules is not None
    assert [m.is_loss for m in modules.modules][:2] == [False, True]


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    run.add("window", t=run.now, name="ops", state="skipped", why="compiled graphs are alive")
    run.add("finish", t=run.now, why="exit")
    (tmp_path / "config.json").write_text(json.dumps({"windows": ["baseline", "ops", "trace"]}))
    evidence = load_run(run.write())
    assert str(evidence.capture["baseline"]) == "captured"
    assert str(evidence.capture["calls"]) == "not requested"
    assert str(evidence.capture["ops"]) == "failed: compiled graphs are alive"
    assert evidence.missing[Ops] == "torch calls were not counted: compiled graphs are alive"
    assert evidence.missing[System] == "the machine was not sampled"
    assert all(evidence.missing[kind] for kind in evidence.missing)
    assert not set(evidence.missing) & set(evidence.facts)


def test_faults_of_the_probe_are_reported(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    run.add("failure", where="TraceCapture.end", what="OSError: disk full")
    run.add("sampler", source="in-process", why="refused: ptrace_scope is 2")
    notes = [note.text for note in load_run(run.write()).notes]
    assert "tdiag's probe failed in TraceCapture.end: OSError: disk full" in notes
    assert any("in-process" in note and "ptrace_scope is 2" in note for note in notes)


def test_a_newer_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="newer tdiag"):
        load_run(Run(tmp_path).write(schema=2))


def test_what_is_no_run_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match="is not a run directory"):
        load_run(tmp_path)
