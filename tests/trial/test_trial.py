"""Trials from candidate to report. What time is compared, the product itself measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tdiag.cli.trial import in_copy, patched_script
from tdiag.duel.duel import Duel
from tdiag.duel.estimate import Estimate, Ratios
from tdiag.duel.group import Pace, Taken
from tdiag.duel.side import ProgramFailed
from tdiag.errors import UsageError
from tdiag.launch.target import Target
from tdiag.model.trials import Trials, Tried
from tdiag.report import render
from tdiag.report.of_trials import document
from tdiag.report.page import Page
from tdiag.rules.catalogue import all_rules, example
from tdiag.trial import candidate, measure
from tdiag.trial.measure import TrialOptions, answer_of, judged, try_all
from tdiag.trial.said import compared

SCRIPT = """
import sys, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def metric(value):
    time.sleep(0.03)
    return value
for step in range(100000):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric(loss.item())
"""

# An optimizer imports what takes longer than torch itself.
BY_HAND = SCRIPT.replace("torch.optim.SGD(model.parameters(), lr=0.01)", "model").replace(
    "optimizer.step()", "model.weight.data -= 0.01 * model.weight.grad"
)


def options(folder: Path, code: str = SCRIPT) -> TrialOptions:
    """Few and short turns: what is planted is larger than any noise."""
    script = folder / "train.py"
    script.write_text(code)
    return TrialOptions(
        command=[sys.executable, str(script)], cwd=folder, folder=folder / "trial",
        time_budget_s=1.0, pace=Pace(turns=3), looks_at=(3,),
    )  # fmt: skip


@pytest.mark.slow
def test_what_a_function_costs_is_measured_by_freezing_it(tmp_path: Path) -> None:
    given = options(tmp_path)
    outcome = try_all([candidate.freeze(f"{tmp_path}/train.py:metric")], given)
    (one,) = outcome.tried
    # 30 ms of sleep beside some 0.3 ms of step, which others may stretch.
    assert one.answer == "faster" and one.low > 1.5, one
    assert one.ceiling and one.losses == "" and one.groups == 3
    assert "returns earlier results" in one.did[0]
    assert "costs" in render("terminal", document(outcome), Page(100, False))


@pytest.mark.training
def test_what_has_nothing_to_change_is_told_after_one_pair(tmp_path: Path) -> None:
    given = options(tmp_path, BY_HAND)
    (one,) = try_all([candidate.parse("torch.anomaly=off")], given).tried
    assert one.answer == "not applied"
    assert one.why == "the script does not switch on anomaly detection"
    assert not (given.folder / "1" / "group-2").exists()


@pytest.mark.training
def test_a_change_that_crashes_is_a_result_and_a_script_that_crashes_is_none(
    tmp_path: Path,
) -> None:
    """The optimizer's state is complex, which has no fused form."""
    code = SCRIPT.replace("torch.nn.Linear(8, 1)", "torch.nn.Linear(8, 1).to(torch.complex64)")
    code = code.replace("randn(4, 8)", "randn(4, 8).cfloat()").replace(".square()", ".abs()")
    (one,) = try_all([candidate.parse("optimizer.fused")], options(tmp_path, code)).tried
    assert one.answer == "failed" and "Error" in one.why, one
    with pytest.raises(ProgramFailed, match=r"without: exit code 1"):
        try_all([candidate.parse("optimizer.fused")], options(tmp_path / "..", "1 / 0"))


def test_what_cannot_be_tried_is_told_at_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("class A:\n    def one(self): pass\n")
    for text, told in (
        ("loader.workers=1", "no change 'loader.workers'"),
        ("loader.num_workers=many", "takes a whole number"),
        ("torch.anomaly=on=1", "takes no value"),
    ):
        with pytest.raises(UsageError, match=told):
            candidate.parse(text)
    with pytest.raises(UsageError, match=r"has no function A\.two") as caught:
        candidate.freeze(f"{script}:A.two")
    assert caught.value.hint == "it has A.one"
    with pytest.raises(UsageError, match="has no values"):
        candidate.sweep("loader.num_workers")


def test_a_sweep_and_several_together() -> None:
    assert [c.label for c in candidate.sweep("torch.num_threads=1,2")] == [
        "torch.num_threads=1",
        "torch.num_threads=2",
    ]
    both = candidate.parse("loader.cache+loader.num_workers=0")
    assert both.changes == (("loader.cache", ""), ("loader.num_workers", "0"))
    best = candidate.together([*candidate.sweep("torch.num_threads=1,2"), both])
    assert best.label == "torch.num_threads=1 + loader.cache + loader.num_workers=0"
    labels = [c.label for c in candidate.ceilings()]
    assert labels[0] == "ceiling.data" and not any("freeze" in label for label in labels)
    rare = {"checkpoint", "communication", "copies", "evaluation", "gc"}
    assert {label.removeprefix("ceiling.") for label in labels[-5:]} == rare


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_every_fix_that_can_be_switched_on_names_a_known_change(rule: object) -> None:
    proposed = example(rule).fix.intervention  # type: ignore[arg-type]
    if proposed is not None:
        assert not candidate.parse(proposed).ceiling


def ratios(typical: tuple[float, float, float], mean: tuple[float, float, float]) -> Ratios:
    return Ratios(Estimate(*typical, 0.5, 3), Estimate(*mean, 0.5, 3))


@pytest.mark.parametrize(
    ("typical", "mean", "answer"),
    [
        ((0.5, 0.4, 0.6), (0.5, 0.1, 2.0), "faster"),
        ((0.9, 0.7, 1.1), (0.9, 0.1, 2.0), "unclear"),
        ((1.0, 0.9, 1.1), (0.5, 0.4, 0.6), "faster"),
        ((1.0, 0.98, 1.02), (0.5, 0.4, 0.6), "faster"),  # an evaluation in every 100th step
        ((1.0, 0.98, 1.02), (0.9, 0.5, 1.5), "no effect"),
        ((1.3, 1.2, 1.4), (1.3, 0.5, 1.5), "slower"),
        ((0.98, 0.975, 0.985), (1.0, 0.5, 1.5), "no effect"),  # 2 %: worth no edit
    ],
)
def test_an_effect_is_claimed_by_its_whole_interval(
    typical: tuple[float, float, float], mean: tuple[float, float, float], answer: str
) -> None:
    assert answer_of(judged(ratios(typical, mean), 0.03), 0.03) == answer


@pytest.mark.parametrize(
    ("typical", "mean", "ratio"),
    [
        ((0.03, 0.028, 0.031), (0.14, 0.10, 0.20), 0.14),  # batches of workers come in bursts
        ((0.15, 0.06, 0.37), (0.23, 0.22, 0.25), 0.23),  # whose median is noisy, too
        ((0.5, 0.4, 0.6), (0.7, 0.55, 0.9), 0.7),
        ((0.5, 0.4, 0.6), (0.54, 0.45, 0.9), 0.5),  # alike
        ((0.25, 0.18, 0.35), (0.21, 0.14, 0.32), 0.21),  # collections in some steps
        ((0.03, 0.02, 0.09), (0.3, 0.08, 1.1), 0.03),  # a mean that a few steps make unclear
        ((0.5, 0.4, 0.6), (1.0, 0.98, 1.02), 1.0),  # and the whole training is as slow as before
    ],
)
def test_the_gain_is_of_the_mean_step_where_that_surely_differs(
    typical: tuple[float, float, float], mean: tuple[float, float, float], ratio: float
) -> None:
    assert judged(ratios(typical, mean), 0.03).ratio == ratio


@pytest.mark.parametrize(
    ("without", "with_it", "told"),
    [
        ([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2, "losses identical over 2 steps"),
        ([[1.0, 2.0]] * 2, [[1.0, 2.00002]] * 2, "losses equal within 1e-05 over 2 steps"),
        ([[1.0, 2.0]] * 2, [[1.0, 3.0]] * 2, "losses differ by 33.3% over 2 steps"),
        ([[1.0, 2.0]] * 2, [[1.0, float("nan")]] * 2, "losses become NaN or infinite"),
        ([[1.0], [2.0]], [[4.0], [4.0]],
         "losses differ by 75.0% over 1 step, those of the untouched script from run to run by"
         " 50.0%"),
        ([[2.0, 2.0, 1e-6]] * 2, [[2.0, 2.0, 2e-3]] * 2,
         "losses equal within 1e-03 over 3 steps"),  # near zero by chance
        ([[]], [[]], ""),
    ],
)  # fmt: skip
def test_losses_are_compared_step_by_step(
    without: list[list[float]], with_it: list[list[float]], told: str, tmp_path: Path
) -> None:
    sides = []
    for name, runs in (("without", without), ("with", with_it)):
        sides.append([_written(tmp_path / f"{name}{i}", losses) for i, losses in enumerate(runs)])
    assert compared(*sides).text == told


def _written(run_dir: Path, losses: list[float]) -> Path:
    (run_dir / "events").mkdir(parents=True)
    record = {"kind": "trial", "change": "", "state": "losses", "values": [repr(x) for x in losses]}
    (run_dir / "events" / "1.jsonl").write_text(json.dumps(record) + "\n")
    return run_dir


def test_a_change_that_breaks_the_training_has_won_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as fast, and the losses become NaN."""
    ends = {"without": [1.0, 2.0], "with": [1.0, float("nan")]}
    runs = {name: _written(tmp_path / name, losses) for name, losses in ends.items()}
    before, now = (
        Taken(runs[name], typical_ns=[ns], mean_ns=[ns])
        for name, ns in (("without", 2e6), ("with", 1e6))
    )
    half = (0.5, 0.4, 0.6)
    found = Duel(ratios(half, half), ((before, now),))
    monkeypatch.setattr(measure, "duel", lambda *args, **kwargs: found)
    one = measure.try_one(candidate.parse("torch.compile"), options(tmp_path), "1", 0.0)
    assert (one.answer, one.why) == ("failed", "losses become NaN or infinite")


def tried(change: str, **fields: object) -> Tried:
    return Tried(**{"change": change, "ceiling": False, "safety": "same numbers",
                    "answer": "faster", "speedup": 2.0, "low": 1.9, "high": 2.1,
                    "without_ns": 4e6, "with_ns": 2e6, "groups": 3, **fields})  # type: ignore[arg-type]  # fmt: skip


def test_the_report_leads_with_what_won_most() -> None:
    outcome = Trials(
        command="python train.py",
        tried=(
            tried("torch.compile", extra_start_ns=4e9, losses="losses identical over 32 steps"),
            tried("loader.pin_memory", answer="not applied", speedup=0.0, why="no device"),
            tried("ceiling.data", ceiling=True),
            tried("ceiling.gc", ceiling=True, answer="unclear", speedup=1.0, low=0.8, high=1.2),
        ),
        together=tried("torch.compile + torch.num_threads=2", speedup=3.0, low=2.8, high=3.1),
        untried=("loader.cache",),
    )
    for width in (80, 120):
        text = render("terminal", document(outcome), Page(width, False))
        assert "3.00× [2.80, 3.10] with 2 changes, measured" in text
        assert max(map(len, text.splitlines())) <= width
    for part in ("1.00× [0.80, 1.20] without it", "not applied", "no device",
                 "losses identical",
                 "pays after 2,000 steps",
                 "[1.89ms, 2.10ms]", "because the time was up: loader.cache"):  # fmt: skip
        assert part.replace(" ", "") in text.replace(" ", ""), part
    assert json.loads(render("json", document(outcome), Page(100, False)))["tried"][0]["low"] == 1.9


THREE = [candidate.parse(f"torch.num_threads={n}") for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("budget_s", "begun"),
    [
        (30.0, 1),
        (119.0, 1),
        (121.0, 2),
        (159.0, 2),
        (161.0, 3),
    ],  # a trial takes 40 s, as they do together
)
def test_no_trial_is_begun_that_leaves_no_time_for_what_won_together(
    budget_s: float, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, names = [0.0], []

    def try_one(one: candidate.Candidate, given: TrialOptions, name: str, until_s: float) -> Tried:
        now[0] += 40.0
        names.append(name)
        return tried(one.label, answer="faster" if name == "1" else "no effect")

    monkeypatch.setattr(measure, "monotonic", lambda: now[0])
    monkeypatch.setattr(measure, "try_one", try_one)
    given = replace(options(tmp_path), time_budget_s=budget_s)
    found = try_all(THREE, given)
    assert len(found.tried) == begun and len(found.untried) == 3 - begun


ALONE = {"1": 2.0, "2": 1.5, "3": 1.2}
A, B, C = "torch.anomaly=off", "torch.num_threads=1", "optimizer.foreach"


@pytest.mark.parametrize(
    ("of_all", "of_two", "shown", "dropped"),
    [
        (3.0, 0.0, f"{A} + {B} + {C}", ()),
        (1.95, 0.0, f"{A} + {B} + {C}", ()),  # as far as is known, no less than the best alone
        (1.7, 2.4, f"{A} + {B}", (C,)),
        (0.0, 2.4, f"{A} + {B}", (C,)),
        (1.7, 1.6, None, (C, B)),
    ],
)
def test_of_those_that_win_less_together_the_last_is_dropped(
    of_all: float, of_two: float, shown: str | None, dropped: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A speedup of 0 is a crash."""

    def try_one(one: candidate.Candidate, given: TrialOptions, name: str, until_s: float) -> Tried:
        speedup = ALONE.get(name) or {3: of_all, 2: of_two}[len(one.changes)]
        if not speedup:
            return tried(one.label, answer="failed", why="RuntimeError: no")
        return tried(one.label, answer="faster", speedup=speedup, low=speedup - 0.1,
                     high=speedup + 0.1, groups=3)  # fmt: skip

    monkeypatch.setattr(measure, "try_one", try_one)
    given = replace(options(tmp_path), time_budget_s=100.0)
    found = try_all([candidate.parse(text) for text in (A, B, C)], given)
    assert (found.together and found.together.change) == shown
    said = [note for note in found.notes if "dropped" in note]
    assert [note.rpartition("dropped ")[2] for note in said] == list(dropped)
    assert of_all or "RuntimeError: no" in said[0]


def test_one_candidate_has_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = []

    def try_one(one: candidate.Candidate, given: TrialOptions, name: str, until_s: float) -> Tried:
        until.append(until_s)
        return tried(one.label)

    monkeypatch.setattr(measure, "monotonic", lambda: 0.0)
    monkeypatch.setattr(measure, "try_one", try_one)
    try_all([candidate.parse(B)], replace(options(tmp_path), time_budget_s=60.0))
    assert until == [60.0]


def test_a_script_that_fails_later_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_one(one: candidate.Candidate, given: TrialOptions, name: str, until_s: float) -> Tried:
        if name == "2":
            raise ProgramFailed("without", 1, "no space left")
        return tried(one.label)

    monkeypatch.setattr(measure, "try_one", try_one)
    found = try_all(THREE, options(tmp_path))
    assert [one.change for one in found.tried] == ["torch.num_threads=1"]
    assert "stopped at torch.num_threads=2: the script itself failed" in found.notes[0]


@pytest.mark.slow
def test_a_patch_is_measured_in_a_copy_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes out 30 ms of sleep and leaves the training as it is."""
    given = options(tmp_path, "import torch\ntorch.manual_seed(0)\n" + SCRIPT)
    (tmp_path / "fix.patch").write_text(
        "--- a/train.py\n+++ b/train.py\n@@ -7,3 +7,3 @@\n def metric(value):\n"
        "-    time.sleep(0.03)\n+    time.sleep(0)\n     return value\n"
    )
    monkeypatch.chdir(tmp_path)
    target = Target("script", "train.py")
    with patched_script(Path("fix.patch"), target, sys.executable) as one:
        (found,) = try_all([one], given).tried
    assert (found.change, found.answer) == ("fix.patch", "faster") and found.low > 1.5, found
    assert found.safety == "changes train.py" and "losses identical" in found.losses
    assert "sleep(0.03)" in (tmp_path / "train.py").read_text()


@pytest.mark.slow
def test_in_a_copy_what_the_script_writes_is_gone_with_it(tmp_path: Path) -> None:
    code = SCRIPT + "    open('last.txt', 'w').write(str(step))\n"
    given = options(tmp_path, code)
    with in_copy(given) as there:
        frozen = candidate.freeze(f"{tmp_path}/train.py:metric")
        ((_, text),) = there.changes(frozen)
        assert text == f"{there.cwd}/train.py:metric", "the function of the file that runs"
        assert there.changes(candidate.parse("torch.num_threads=2"))[0][1] == "2"
        found = try_all([frozen], there)
    assert found.tried[0].answer == "faster"
    assert found.notes[-1].endswith("during the trials: last.txt")
    assert not (tmp_path / "last.txt").exists()
