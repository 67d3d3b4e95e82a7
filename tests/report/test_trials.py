"""Trials in a run's report: every format has them, and the finding says what was measured."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from tdiag.diagnose.proven import proven
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.place import Place
from tdiag.model.trials import Applied, Edit, Patch, Trials, Tried
from tdiag.report import FORMATS
from tdiag.report.load import TRIALS, load_trials
from tdiag.report.summary import best

from .building import render
from .samples import CPU_BOUND
from .test_json import SCHEMA

NAME = "loader.num_workers=3"


def tried(change: str = NAME, **fields: Any) -> Tried:
    given = {"change": change, "ceiling": False, "safety": "same numbers", "answer": "faster",
             "speedup": 1.85, "low": 1.8, "high": 1.9, "without_ns": 50e6, "with_ns": 27e6,
             "groups": 3}  # fmt: skip
    return Tried(**{**given, **fields})


def known(*trials: Tried, **fields: Any) -> Diagnosis:
    first, *rest = CPU_BOUND.findings
    first = replace(first, fix=replace(first.fix, intervention=NAME))
    of = replace(CPU_BOUND, findings=(first, *rest))
    return proven(of, Trials(command="python train.py", tried=trials, **fields))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_says_what_was_measured(format: str) -> None:
    text = render(format, known(tried()))
    assert "1.85" in text
    if format in ("terminal", "html", "markdown"):
        assert "Measured by trials" in text and "1.85× faster, measured" in text
        assert "predicted 1.6–2.4× faster" not in text


def test_a_second_line_of_a_trial_is_no_point_of_its_own_in_markdown() -> None:
    text = render("markdown", known(tried(did=("DataLoader at train.py:41: 0 → 3",))))
    assert "- loader.num\\_workers=3: DataLoader at train.py:41: 0 → 3\n  same numbers\n" in text


DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1,2 +1,2 @@
-x = DataLoader(d)
+x = DataLoader(d, num_workers=3)
 `tick`\r
"""
PATCH = Patch(
    diff=DIFF, root="/home/ada", file="/home/ada/my fix.patch", made=(NAME,),
    by_hand=("torch.compile: train.py:3: no",), measured=tried("my fix.patch"),
    edits=(Edit("/home/ada/train.py", 1, 1, "x = DataLoader(d, num_workers=3)\n"),
           Edit("/home/ada/train.py", 9, 0, "y = 1\n")),
)  # fmt: skip


@pytest.mark.parametrize("format", ["terminal", "html", "markdown"])
def test_a_patch_is_shown_as_it_is_with_how_to_apply_it(format: str) -> None:
    text = render(format, known(tried(), patch=PATCH))
    assert "git apply 'my fix.patch'" in text.replace("&#39;", "'")
    for line in ("+x = DataLoader(d, num_workers=3)", " `tick`", "@@ -1,2 +1,2 @@"):
        assert line in text
    assert "measured as patched" in text and "Not in the patch: torch.compile" in text
    none = render(format, known(tried(), patch=Patch(why="as patched: no effect")))
    assert "No patch: as patched: no effect" in none and "git apply" not in none


def test_sarif_has_the_patch_as_the_fix_of_the_first_finding_in_it() -> None:
    log = json.loads(render("sarif", known(tried(), patch=PATCH)))
    fixed = [result for result in log["runs"][0]["results"] if "fixes" in result]
    ((fix,),) = [result["fixes"] for result in fixed]
    (file,) = fix["artifactChanges"]
    assert file["artifactLocation"]["uri"].endswith("/home/ada/train.py")
    first, second = file["replacements"]
    assert first["deletedRegion"] == {"startLine": 1, "endLine": 1}
    assert first["insertedContent"]["text"] == "x = DataLoader(d, num_workers=3)"
    region = {"startLine": 9, "startColumn": 1, "endLine": 9, "endColumn": 1}
    assert second == {"deletedRegion": region, "insertedContent": {"text": "y = 1\n"}}
    other = json.loads(render("sarif", known(tried(), patch=replace(PATCH, made=("a",)))))
    assert "fixes" not in json.dumps(other)


@pytest.mark.parametrize("width", [80, 120])
def test_the_section_fits_and_ends_with_what_was_not_tried(width: int) -> None:
    part = tried("ceiling.data", ceiling=True)
    text = render("terminal", known(tried(), part, untried=("torch.compile",),
                                    notes=("nothing else",)), width=width)  # fmt: skip
    assert max(map(len, text.splitlines())) <= width
    shown = text.split("Measured by trials")[1]
    for said in ("left out", "22.2 ms", "not tried because the time was up: torch.compile",
                 "nothing else"):  # fmt: skip
        assert said in shown


def test_the_best_fix_is_one_that_won_and_a_fix_without_effect_says_so() -> None:
    found = known(tried(answer="no effect", speedup=1.0, low=0.99, high=1.01))
    fix = next(f for f in found.findings if f.measured)
    assert fix.wins is None and best(found) is not fix
    text = " ".join(render("terminal", found).split())
    assert "no effect, measured" in text and "predicted: 1.6–2.4×" in text


def test_what_was_measured_together_takes_the_place_of_the_sum() -> None:
    """Two that were measured together say more than predictions added up."""
    both = known(tried(), together=tried(f"{NAME} + torch.compile", speedup=2.5, low=2.4, high=2.6))
    text = render("terminal", both, width=120)
    assert f"{NAME} + torch.compile: together 2.50× [2.40, 2.60] faster, measured." in text


def test_it_follows_the_published_schema() -> None:
    both = known(
        tried(speedup=1.92, low=1.9, high=1.95),
        tried("torch.compile", answer="not applied", speedup=0.0, low=0.0, high=0.0),
        together=tried("a + b", applied=(Applied("a", None), Applied("b", Place("/x.py", 3)))),
        patch=PATCH,
    )
    written = json.loads(render("json", both))
    jsonschema.validate(written, SCHEMA)
    assert written["findings"][0]["measured"]["speedup"] == 1.92
    assert written["verdict"]["proven"] is True
    for name, struct in (("tried", Tried), ("trials", Trials), ("patch", Patch)):
        fields = {f.encode_name for f in msgspec.structs.fields(struct)}
        assert set(SCHEMA["$defs"][name]["properties"]) == fields


def test_they_are_read_back_from_the_run(tmp_path: Any) -> None:
    assert load_trials(tmp_path) is None
    trials = Trials(command="python train.py", tried=(tried(),))
    (tmp_path / TRIALS).write_bytes(msgspec.json.encode(trials))
    assert load_trials(tmp_path) == trials
