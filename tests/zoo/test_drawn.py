"""The drawn cases of ``benchmarks/accuracy.py --drawn``: the same for a seed, whole, and marked."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_a_seed_gives_the_same_cases_however_many_are_drawn() -> None:
    from planted.drawn import draw

    cases = draw(5, 64)
    assert draw(5, 64) == cases
    assert draw(5, 20) == cases[:20]
    assert [c.name[2:] for c in draw(6, 64)] != [c.name[2:] for c in cases]
    assert sum(case.healthy for case in cases) == 64 // 8
    assert any(case.twin for case in cases)
    assert sum(len(case.wastes) == 2 for case in cases) == 64 // 4


def test_every_cause_compiles_in_a_style_and_its_twin_differs() -> None:
    from planted.drawn import CAUSES, NEW, STYLES, Drawn, draw, fits

    assert len(NEW) >= 25
    cases = [case for case in draw(9, 60) if not case.twin]
    for number, (name, waste) in enumerate(CAUSES.items()):
        assert waste.amounts in {tuple(sorted(waste.amounts)), tuple(sorted(waste.amounts))[::-1]}
        fitting = [style for style in STYLES if fits(waste, style)]
        style = fitting[number % len(fitting)]
        cases.append(Drawn(name, (waste,), waste.amounts[:1], style, "small", "attention"))
    assert {case.style for case in cases} == set(STYLES)
    for case in cases:
        slow, fixed = case.files(), case.files(range(len(case.wastes)))
        assert (slow != fixed) is bool(case.wastes), case.name
        for files in (slow, fixed):
            for path, text in files.items():
                assert "$" not in text.replace("\\$", ""), (case.name, path)
                if path.endswith(".py"):
                    compile(text, path, "exec")


def test_lines_of_a_cause_exist_and_are_its_own() -> None:
    from planted.drawn import draw

    for case in draw(7, 120):
        texts = {Path(path).name: text.splitlines() for path, text in case.files().items()}
        marked = set()
        for k, waste in enumerate(case.wastes):
            own = case.right(k)
            assert bool(own) >= any("# HERE" in text for text in waste.slow.values()), case.name
            assert not {line for line in own & marked if "# HERE" in texts[line[0]][line[1] - 1]}
            for file, line in own:
                assert "# HERE" in texts[file][line - 1] or "# FIX" in texts[file][line - 1]
            marked |= own
        assert marked == case.right()


def test_of_two_causes_each_can_be_fixed_alone() -> None:
    from planted.drawn import draw

    mixes = [case for case in draw(8, 120) if len(case.wastes) == 2]
    assert mixes
    for case in mixes:
        sides = [case.files(fixed) for fixed in ((), {0}, {1}, {0, 1})]
        assert all(a != b for i, a in enumerate(sides) for b in sides[:i]), case.name


def test_the_class_expected_of_two_causes_is_that_of_the_one_that_saves_more() -> None:
    from planted import judging
    from planted.around_wastes import SLEEPS
    from planted.drawn import Drawn
    from planted.objective_wastes import TRIPLETS

    case = Drawn("x", (SLEEPS, TRIPLETS), (5, 6), "plain", "small", "layers")
    assert judging.expected(case, {"gains": [2.0, 1.2]}) == {"overhead"}
    assert judging.expected(case, {"gains": [1.2, 2.0]}) == {"python_loss"}
    assert judging.expected(case, {"gains": [2.0, 1.9]}) == {"overhead", "python_loss"}


def test_a_finding_counts_for_the_cause_at_whose_line_it_points() -> None:
    from planted import judging
    from planted.around_wastes import SLEEPS
    from planted.drawn import Drawn
    from planted.objective_wastes import TRIPLETS

    case = Drawn("x", (SLEEPS, TRIPLETS), (5, 6), "plain", "small", "layers")
    (file, line), *_ = sorted(case.right(1))
    finding = {
        "code": "TD501",
        "advisory": False,
        "recoverable_ns": 9,
        "location": {"file": f"/somewhere/{file}", "line": line},
        "speedup": {"low": 1.5, "high": 3.0},
    }
    verdict = {"class": "python_loss", "confidence": 0.9, "summary": ""}
    row = judging.judge(case, {"findings": [finding], "verdict": verdict, "step": None})
    assert row["findings"][0]["of"] == row["findings"][0]["fix"] == [1]
    right = judging.outcome(case, row | {"gain": 4.0, "gains": [1.3, 2.0]})
    assert right["class"] and right["line"] and right["range"] and not right["both in three"]
    assert right["width"] == 2.0
    assert right["work in three"]
    wrong = judging.outcome(case, row | {"gain": 4.0, "gains": [1.3, 3.5]})
    assert wrong["range"] is False
    weak = judging.outcome(case, row | {"gain": 1.1, "gains": [1.0, 1.1]})
    assert all(value is None for value in weak.values())


def test_a_healthy_case_alarms_by_class_or_by_a_promise() -> None:
    from planted import judging
    from planted.drawn import Drawn

    case = Drawn("x", (), (), "plain", "large", "attention")
    row = {"class": "compute", "findings": [{"speedup": [1.0, 1.08]}]}
    assert judging.outcome(case, row)["alarm"] is False
    assert judging.outcome(case, row | {"class": "cpu"})["alarm"] is True
    assert judging.outcome(case, row | {"findings": [{"speedup": [1.02, 1.3]}]})["alarm"] is True
