"""What the probe and the rest of tdiag agree on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tdiag.evidence.from_run.records import Record
from tdiag.probe import wire
from tdiag.report.html.charts.step_times import WINDOWS as CHARTED

PROBE = Path(wire.__file__).parent


def kinds_written() -> set[str]:
    """First arguments of ``recorder.write`` in the probe's source."""
    found = set()
    for path in PROBE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("recorder.write", "recorder.write)")
            ):
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                found.add(str(node.args[0].value))
    return found


def test_every_kind_of_record_is_named_and_written() -> None:
    assert kinds_written() | {"steps"} == set(get_args(wire.RecordKind))


def test_the_evidence_reads_only_records_that_are_written() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in Record.__subclasses__()}
    assert tags <= set(get_args(wire.RecordKind))


@pytest.mark.parametrize("name", list(wire.WINDOWS))
def test_every_window_has_words_and_a_colour_of_its_own(name: str) -> None:
    row = wire.WINDOWS[name]
    assert row.tool and row.doing and row.absent
    assert [r.color for r in wire.WINDOWS.values()].count(row.color) == 1
    assert name in CHARTED or name == wire.BASELINE  # whose judged steps are "clean" there


def test_each_mark_that_opens_a_pair_is_followed_by_the_one_that_closes_it() -> None:
    codes = {name: value for name, value in vars(wire).items() if name.endswith(("_BEGIN", "_END"))}
    for name, code in codes.items():
        if name.endswith("_BEGIN"):
            assert code % 2 == 0 and codes[name.replace("_BEGIN", "_END")] == code + 1
    assert len({*codes.values(), wire.ON_CPU}) == len(codes) + 1


def test_a_line_without_its_end_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "12.jsonl"
    path.write_bytes(b'{"kind":"stop","t":1}\n\nnoise\n{"kind":"forc')
    file = wire.EventsFile(str(path))
    assert file.pid == 12
    assert file.read() == [("stop", b'{"kind":"stop","t":1}'), ("", b"noise")]
    assert file.read() == []
    with path.open("ab") as more:
        more.write(b'ed","t":2}\n{"kind":"torn"')
    assert file.read() == [("forced", b'{"kind":"forced","t":2}')]
    assert file.read(last=True) == [("torn", b'{"kind":"torn"')]


def test_the_line_of_steps_tells_a_display_what_it_needs_at_its_head() -> None:
    line = (wire.STEPS % (7, 2, 100, 300, wire.BASELINE, [12, 300, 0])).encode()
    found = wire.STEPS_HEAD.match(line)
    assert found and list(map(int, found.groups())) == [7, 2, 300]


def test_it_takes_neither_torch_nor_the_rest_of_the_probe_to_be_read() -> None:
    code = "import sys, tdiag.probe.wire; print(sorted(m for m in sys.modules if 'probe' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tdiag.probe', 'tdiag.probe.wire']"


@pytest.mark.parametrize(
    ("file", "of_user"),
    [
        ("/home/me/train.py", True),
        ("/home/me/venv/lib/python3.12/site-packages/timm/data.py", False),
        (
            "/tmp/torchinductor_me/xw/cxw" + "dib5dcuhnysm7ohzfvh6mna3nwag4hgteviokerrz3eecfgh6.py",
            False,
        ),
        ("/home/me/xw/cxw.py", True),
        ("<string>", False),
    ],
)
def test_whose_code_a_file_holds(file: str, of_user: bool) -> None:
    """Code that inductor generated is not the user's, wherever its cache lies."""
    assert wire.is_user_file(file) is of_user
