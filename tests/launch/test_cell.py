"""How the evidence of a notebook's cell comes to name the cells' sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.launch.cell import CellSource, name_cells
from tdiag.model.place import Place
from tdiag.probe.wire import is_user_file
from tdiag.report.text import spot

JUPYTER = "/tmp/ipykernel_42/1234567.py"
IPYTHON = "<ipython-input-5-0a1b2c3d4e5f>"


@pytest.mark.parametrize("name", [JUPYTER, IPYTHON])
def test_the_evidence_names_a_file_that_holds_the_cell(tmp_path: Path, name: str) -> None:
    for folder in ("events", "tensorboard"):
        (tmp_path / folder).mkdir()
    made_absolute = name if name.startswith("/") else f"/home/me/{name}"
    events = tmp_path / "events" / "7.jsonl"
    events.write_text(json.dumps({"kind": "module", "at": [made_absolute, 3, "f"]}) + "\n")
    stacks = tmp_path / "stacks-7.speedscope.json"
    stacks.write_text(json.dumps([{"file": name, "line": 3}, {"file": "<string>"}]))
    trace = tmp_path / "tensorboard" / "x.pt.trace.json"
    trace.write_text(json.dumps({"name": f"{name}(3): f"}))
    magic = CellSource("<ipython-input-5-ffff>", "", "get_ipython().run_cell_magic()")
    unused = CellSource("<ipython-input-4-aaaa>", "In[4]", "1")

    name_cells(tmp_path, [CellSource(name, "In[5]", "\nx = 1\ny = 2\n"), magic, unused], 10**18)

    file = tmp_path / "cells" / "In[5].py"
    assert file.read_text() == "\nx = 1\ny = 2\n"
    assert file.stat().st_mtime_ns == 10**18, "not changed after the run began"
    assert list(file.parent.iterdir()) == [file], "of the cells that are named"
    assert json.loads(events.read_text())["at"] == [str(file), 3, "f"]
    assert json.loads(stacks.read_text()) == [{"file": str(file), "line": 3}, {"file": "<string>"}]
    assert json.loads(trace.read_text())["name"] == f"{file}(3): f"
    assert is_user_file(name) and is_user_file(str(file))
    assert spot(Place(file=str(file), line=3), tmp_path) == "In[5]:3"


def test_the_call_of_the_magic_is_no_code_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    stacks = tmp_path / "stacks-7.speedscope.json"
    stacks.write_text(json.dumps([{"file": IPYTHON, "line": 1}]))
    name_cells(tmp_path, [CellSource(IPYTHON, "", "get_ipython()")], 10**18)
    (frame,) = json.loads(stacks.read_text())
    assert not is_user_file(frame["file"])
