"""docs/accuracy.md is what the recorded results and the rules of today make of it."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import accuracy_page  # noqa: E402

PAIR = {"name": "a", "predicted": [1.0, 4.0], "measured": 2.0, "span": [1.9, 2.1], "load": 1.0}
TRIAL = {"name": "p --change", "answer": "faster", "speedup": 1.1, "low": 1.05, "high": 1.2,
         "seconds": 20.0, "load": 4.0}  # fmt: skip


def test_the_page_and_the_picture_are_of_today() -> None:
    again = "python benchmarks/accuracy_page.py"
    docs = accuracy_page.DOCS
    assert (docs / "accuracy.md").read_text() == accuracy_page.page(), again
    drawn = accuracy_page.scatter(accuracy_page.rows_of("accuracy.jsonl"))
    assert (docs / "accuracy.svg").read_text() == drawn, again


def test_predictions_are_held_against_what_was_measured() -> None:
    drawn = {"range": True, "width": 2.0, "off": 1.5}
    none = {"range": None, "width": None, "off": None}
    text = "\n".join(accuracy_page.of_predictions([PAIR, {**PAIR, "measured": 8.0}], [drawn, none]))
    assert "| range holds the gain | 1 of 2 | 2 of 3 | 80 % |" in text
    assert "median | 4.00 | 4.00 | ≤ 2.5 |" in text
    assert "median | 2.00× | 1.50× |" in text, "exact, off by four, and off by half"
    assert "1 predicted too little, 0 too much" in text


def test_drawn_cases_count_by_the_seed_that_drew_them() -> None:
    """Of seed 6: a table read row by row, whose fix TD210 gives, and a healthy training."""
    frame, healthy = "6-002-frame_lookup-plain-attention-medium", "6-038-healthy-stream-layers-huge"
    found = {"code": "TD210", "at": ["train.py", 1], "of": [0], "fix": [0], "speedup": [1.0, 4.0]}
    judged = {"class": "cpu", "findings": [found], "gain": 2.0, "gains": [2.0], "kind": "DATA"}
    alarm = {"class": "compute", "findings": [found]}
    rows = [{"name": frame, **judged}, {"name": healthy, **alarm}, {"name": "7-000", **judged}]
    assert accuracy_page.of_drawn(rows)[2:-1] == [
        "| 6 | 2 | 1 of 1 (100%) | 1 of 1 (100%) | 1 of 1 (100%) | 4.00 | 1.00× | 1 of 1 (100%) |"
    ]


def test_a_trial_of_nothing_that_claims_something_is_named() -> None:
    quiet = {**TRIAL, "answer": "no effect", "speedup": 0.99}
    lines = accuracy_page.of_nothing([TRIAL, quiet, {"name": "p --change", "failed": "no"}])
    assert "| all | 2 | 1 | 1 | 0 | -1.0% to +10.0% | 20 |" in lines
    assert "Claimed by `p --change`: faster, 1.10 [1.05, 1.20]." in lines
    assert "above 1.5 in 2 of 2: other programs, or the measurement before it" in lines[-1]


def test_a_trial_is_held_against_the_fix_by_hand() -> None:
    row = {**TRIAL, "name": "a", "change": "c", "speedup": 2.3, "low": 1.8, "high": 2.9, "why": "",
           "measured": 2.0, "span": [1.9, 2.1]}  # fmt: skip
    none = {**row, "speedup": None, "answer": "not applied", "why": "no DataLoader was made"}
    last = accuracy_page.of_twins([row, {**row, "speedup": 2.1}, none], [PAIR])[-1]
    assert "Within 10 % of the fix by hand: 1 of 2" in last
    assert "As far as the intervals tell: 2. Off by 1.10×" in last
    assert "Not applied, and not counted: 1." in last
