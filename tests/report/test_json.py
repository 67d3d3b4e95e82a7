"""diagnosis.json: its published schema holds for what is written, and it can be read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from tdiag import report
from tdiag.errors import RunError, UsageError
from tdiag.model import comparison, compiled, notes, place, timeline, watched
from tdiag.model import diagnosis as model
from tdiag.model.diagnosis import Diagnosis, VerdictClass
from tdiag.report import FORMATS
from tdiag.report.load import load_diagnosis

from .building import render
from .samples import CPU_BOUND, CRASH, HEALTHY, HOSTILE, SAMPLES

SCHEMA = json.loads(Path(report.__file__).with_name("diagnosis.schema.json").read_text())
FINDING = SCHEMA["$defs"]["finding"]["properties"]
PARTS: list[tuple[type[msgspec.Struct], dict[str, Any]]] = [
    (model.Diagnosis, SCHEMA),
    (model.Verdict, SCHEMA["properties"]["verdict"]),
    (model.StepTime, SCHEMA["properties"]["step"]["anyOf"][0]),
    (model.Component, SCHEMA["properties"]["budget"]["items"]),
    (timeline.Timeline, SCHEMA["properties"]["timeline"]["anyOf"][0]),
    (timeline.Lane, SCHEMA["$defs"]["lane"]),
    (model.Top, SCHEMA["properties"]["top"]["items"]),
    (model.Part, SCHEMA["properties"]["top"]["items"]["properties"]["parts"]["items"]),
    (model.Abstained, SCHEMA["properties"]["abstained"]["items"]),
    (model.Finding, SCHEMA["$defs"]["finding"]),
    (place.Place, SCHEMA["$defs"]["place"]),
    (model.RankStep, SCHEMA["properties"]["ranks"]["items"]),
    (notes.Note, SCHEMA["properties"]["notes"]["items"]),
    (notes.Captured, SCHEMA["properties"]["capture"]["additionalProperties"]),
    (model.Measure, FINDING["evidence"]["items"]),
    (model.Speedup, SCHEMA["$defs"]["speedup"]),
    (model.Fix, FINDING["fix"]),
    (watched.Watched, SCHEMA["$defs"]["watched"]),
    (compiled.CompileReport, SCHEMA["$defs"]["compiled"]),
    (compiled.CompiledFunction, SCHEMA["$defs"]["compiled_function"]),
    (compiled.GraphBreak, SCHEMA["$defs"]["graph_break"]),
    (compiled.Recompiled, SCHEMA["$defs"]["recompiled"]),
    (watched.Activity, SCHEMA["$defs"]["activity"]),
    (watched.Fetching, SCHEMA["$defs"]["fetching"]),
    (watched.WatchedRank, SCHEMA["$defs"]["watched_rank"]),
]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_follows_the_published_schema(name: str) -> None:
    checker = jsonschema.Draft202012Validator(SCHEMA)
    written = json.loads(render("json", SAMPLES[name]))
    if name == "hostile":  # its codes and captures are no tdiag's; everything else must hold
        written |= {"abstained": [], "capture": {}, "timeline": None}
    checker.check_schema(SCHEMA)
    checker.validate(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": None},
        {"budget": [{"component": "loss", "ns": 1.5}]},
        {"schema_version": 1},
        {"capture": {"trace": "maybe"}},
        {"findings": [{"code": "TD101"}]},
    ],
)
def test_the_schema_refuses_what_is_wrong(wrong: dict[str, Any]) -> None:
    written = json.loads(render("json", CPU_BOUND)) | wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, SCHEMA)


@pytest.mark.parametrize(("struct", "part"), PARTS)
def test_the_schema_describes_every_field_of_the_model_and_no_other(
    struct: type[msgspec.Struct], part: dict[str, Any]
) -> None:
    fields = {f.encode_name: f.required for f in msgspec.structs.fields(struct)}
    assert set(part["properties"]) == set(fields)
    assert {name for name, required in fields.items() if required} <= set(part["required"])


def test_the_schemas_vocabulary_is_the_models() -> None:
    assert SCHEMA["$defs"]["class"]["enum"] == list(get_args(VerdictClass))
    assert FINDING["fix"]["properties"]["safety"]["enum"] == list(get_args(model.Safety))
    origins = SCHEMA["properties"]["top"]["items"]["properties"]["of"]["enum"]
    assert origins == list(get_args(model.Origin))
    assert SCHEMA["properties"]["schema_version"]["const"] == model.SCHEMA_VERSION


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"hostile"}))
def test_a_diagnosis_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    file = tmp_path / "diagnosis.json"
    file.write_text(render("json", SAMPLES[name]), encoding="utf-8")
    assert load_diagnosis(file) == load_diagnosis(tmp_path) == SAMPLES[name]


def test_the_same_diagnosis_gives_the_same_bytes_whatever_order_its_mappings_were_made_in() -> None:
    turned = dict(reversed(CPU_BOUND.perturbation.items()))
    other = msgspec.structs.replace(CPU_BOUND, perturbation=turned)
    assert render("json", other) == render("json", CPU_BOUND)


def test_names_that_are_no_utf8_and_paths_can_be_written() -> None:
    odd = msgspec.structs.replace(HEALTHY, environment={"cwd": Path("/x"), "script": "a\udcff.py"})
    assert json.loads(render("json", odd))["environment"] == {"cwd": "/x", "script": "a\\udcff.py"}
    assert json.loads(render("json", HOSTILE))["notes"][0]["text"].startswith("[red]wipe\x1b[2J")


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "diagnosis.json"
    file.write_text('{"schema_version": 99, "verdict": "something else"}')
    with pytest.raises(RunError, match="schema version 99; this tdiag reads up to 2") as caught:
        load_diagnosis(file)
    assert "pip install --upgrade tdiag" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a diagnosis"),
        (b"\xff\x00 binary", "is not a diagnosis"),
        (b"[1, 2]", "is not a diagnosis"),
        (b'{"traceEvents": []}', "is not a diagnosis"),
        (b'{"schema_version": "1"}', "is not a diagnosis"),
        (b'{"schema_version": 1}', "is a broken diagnosis: .*verdict"),
        (b'{"schema_version": 2}', "is a broken diagnosis: .*verdict"),
        (b'{"schema_version": 1, "capture": []}', "is a broken diagnosis"),
        (render("json", CRASH).encode()[:-40], "is not a diagnosis"),
    ],
)
def test_a_broken_file_is_refused_with_what_to_do(
    content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "diagnosis.json"
    file.write_bytes(content)
    with pytest.raises(RunError, match=message) as caught:
        load_diagnosis(file)
    assert str(file) in caught.value.message
    assert "tdiag run" in caught.value.hint


def test_no_diagnosis_at_all_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no diagnosis at .*diagnosis\.json"):
        load_diagnosis(tmp_path)


def test_an_unknown_format_names_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no report format 'pdf'") as caught:
        render("pdf", CPU_BOUND)
    assert all(name in caught.value.hint for name in FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_quiet_line_is_one_harmless_line(name: str) -> None:
    line = render("line", SAMPLES[name])
    assert line.count("\n") == 1 and line.endswith("\n")
    assert line[:-1].isprintable()


def test_the_quiet_line_says_class_share_step_and_best_fix() -> None:
    assert render("line", CPU_BOUND, base_dir=Path("/home/ada/project")) == (
        "Preprocessing-bound: 62% of the step (50.2 ms); best fix 1.6–2.4× faster at train.py:41\n"
    )


def test_a_diagnosis_of_an_older_tdiag_without_the_newer_fields_is_read(tmp_path: Path) -> None:
    written = json.loads(render("json", CPU_BOUND))
    for finding in written["findings"]:
        del finding["components"]
    written["something_new"] = 1  # and one that a later minor version added
    file = tmp_path / "diagnosis.json"
    file.write_text(json.dumps(written))
    assert isinstance(load_diagnosis(file), Diagnosis)


def test_version_1_with_its_captures_and_notes_as_texts_is_read(tmp_path: Path) -> None:
    written = json.loads(render("json", CPU_BOUND)) | {
        "schema_version": 1,
        "capture": {"trace": "captured", "ops": "failed: a reason", "calls": "not requested",
                    "baseline": "captured in part: the record breaks off"},
        "notes": ["other programs kept 60% of the machine's cores busy: alone", "another"],
    }  # fmt: skip
    del written["ranks"]
    file = tmp_path / "diagnosis.json"
    file.write_text(json.dumps(written))
    found = load_diagnosis(file)
    assert found.capture == {
        "trace": notes.Captured("captured"), "ops": notes.Captured("failed", "a reason"),
        "calls": notes.Captured("not requested"),
        "baseline": notes.Captured("partial", "the record breaks off"),
    }  # fmt: skip
    assert [(note.code, note.severity) for note in found.notes] == [
        ("crowded-machine", "warning"), ("note", "info"),
    ]  # fmt: skip
    jsonschema.validate(json.loads(render("json", found)), SCHEMA)


def test_the_schema_of_a_comparison_has_every_field_of_the_model() -> None:
    schema = json.loads(Path(report.__file__).with_name("comparison.schema.json").read_text())
    for struct, part in (
        (comparison.Comparison, schema),
        (comparison.ChangeTable, schema["properties"]["tables"]["items"]),
        (comparison.Difference, schema["$defs"]["change"]),
    ):
        assert part["required"] == list(struct.__struct_encode_fields__)
        assert list(part["properties"]) == part["required"]
    assert schema["$defs"]["class"] == SCHEMA["$defs"]["class"]
    assert schema["properties"]["schema_version"]["const"] == comparison.COMPARISON_VERSION
