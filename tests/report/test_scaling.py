"""The report of one job with several numbers of ranks, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from rich.cells import cell_len

from tdiag import report
from tdiag.model import scaling
from tdiag.model.diagnosis import Component, RankStep
from tdiag.model.scaling import Loss, ScaledRun, Scaling
from tdiag.report import FORMATS, render
from tdiag.report.of_scaling import ROWS, document
from tdiag.report.page import Page

from .building import render as draw
from .samples import CPU_BOUND
from .special_samples import HOSTILE_NAME

MS = 1_000_000
SCHEMA = json.loads(Path(report.__file__).with_name("scaling.schema.json").read_text())
ONE = ScaledRun(
    ranks=1, run="/u/.tdiag/scaling/x/ranks-1", step_ns=20 * MS, samples=32.0, load="same",
    relative=1.0, efficiency=1.0, ideal_ns=20 * MS, threads=2, verdict="80% computes",
)  # fmt: skip
TWO = ScaledRun(
    ranks=2, run="/u/.tdiag/scaling/x/ranks-2", step_ns=40 * MS, samples=32.0, load="same",
    relative=1.0, efficiency=0.5, ideal_ns=20 * MS, threads=1, verdict="Rank 1 is late",
    loss=(Loss("communication", 9 * MS), Loss("waiting", 3 * MS), Loss("input", -1 * MS),
          Loss("computing", 9 * MS), Loss("unattributed", 0)),
)  # fmt: skip


def found(*runs: ScaledRun, **fields: Any) -> Scaling:
    about = {"tdiag": "0.1.0", "command": ("torchrun", "train.py"), "cores": 2.0, "device": "cpu"}
    return Scaling(runs=runs or (ONE, TWO), **{**about, **fields})


def text(one: Scaling, width: int = 120) -> str:
    return " ".join(render("terminal", document(one), Page(width)).replace("▌", "").split())


def test_it_says_how_far_from_perfect_and_what_takes_it() -> None:
    said = text(found())
    assert "50% of perfect scaling with 2 ranks" in said
    assert "2.00 times would be perfect (weak scaling: the same number of samples per rank)" in said
    assert (
        "With perfect scaling the step of 40.0 ms would be 20.0 ms (50%) shorter: 9.00 ms exposed"
        " communication, 9.00 ms computing, 3.00 ms waiting for late ranks."
    ) in said
    assert "Each rank computes with 1 thread; with 1 rank each had 2" in said
    assert "input -1.00 -2.5%" in said
    assert "total 20.00 50.0%" in said
    assert "ranks-2 Rank 1 is late" in said


def test_cores_that_ranks_share_are_named() -> None:
    two = msgspec.structs.replace(TWO, threads=2)
    assert "2 ranks with 2 threads each share 2 cores" in text(found(ONE, two))
    assert "share 2 cores" not in text(found(ONE, two, device="NVIDIA H200"))


def test_a_loss_that_chance_explains_has_no_cause() -> None:
    near = msgspec.structs.replace(
        TWO, step_ns=22 * MS, efficiency=20 / 22, loss=(Loss("computing", 2 * MS),)
    )
    said = text(found(ONE, near))
    assert "which is within the difference between two runs of one program" in said
    assert "Computing:" not in said and "✓ 91% of perfect" in said


def test_what_is_not_known_is_said() -> None:
    bare = ScaledRun(ranks=2, run="x/ranks-2", step_ns=40 * MS)
    assert "no DataLoader shows how many samples a step has" in text(found(ONE, bare))
    failed = ScaledRun(ranks=2, run="x/ranks-2", why="the program ended with exit code 1")
    said = text(found(ONE, failed))
    assert "? Scaling unknown" in said
    assert "with 2 ranks: the program ended with exit code 1" in said


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_line_fits(width: int) -> None:
    runs = [msgspec.structs.replace(TWO, ranks=n, verdict=HOSTILE_NAME) for n in (2, 4, 8)]
    shown = render("terminal", document(found(ONE, *runs)), Page(width))
    assert all(cell_len(line) <= width for line in shown.splitlines())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_renders_it(name: str) -> None:
    for one in (found(), found(ONE), found(notes=(HOSTILE_NAME,))):
        assert render(name, document(one))


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_the_table_is_in_a_comment_and_on_a_page(name: str) -> None:
    shown = render(name, document(found()))
    assert "waiting for late ranks" in shown and "37.5%" not in shown and "22.5%" in shown


def test_the_schema_has_every_field_of_the_model() -> None:
    jsonschema.validate(json.loads(render("json", document(found()))), SCHEMA)
    for struct, part in (
        (scaling.Scaling, SCHEMA),
        (scaling.ScaledRun, SCHEMA["$defs"]["run"]),
        (scaling.Loss, SCHEMA["$defs"]["loss"]),
    ):
        assert part["required"] == list(struct.__struct_encode_fields__)
        assert list(part["properties"]) == part["required"]
    assert SCHEMA["properties"]["schema_version"]["const"] == scaling.SCALING_VERSION
    assert SCHEMA["$defs"]["loss"]["properties"]["row"]["enum"] == list(ROWS)


def test_the_report_of_several_ranks_says_it_in_the_same_words() -> None:
    ranks = tuple(
        RankStep(
            rank=number, step_ns=40 * MS, communication_ns=comm * MS, late=False,
            components=(Component("forward", (40 - comm) * MS), Component("comm", comm * MS)),
        )
        for number, comm in enumerate((20, 4))
    )  # fmt: skip
    for name in ("terminal", "html"):
        said = " ".join(draw(name, msgspec.structs.replace(CPU_BOUND, ranks=ranks)).split())
        assert "With perfect scaling the step of 40.0 ms would be at least 12.0 ms (30%)" in said
    calm = msgspec.structs.replace(ranks[1], components=(Component("comm", MS),))
    alone = msgspec.structs.replace(CPU_BOUND, ranks=(calm, calm))
    assert "perfect scaling" not in draw("terminal", alone)
