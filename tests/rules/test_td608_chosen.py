"""Attention that a library writes out because the script asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Place
from tdiag.rules.catalogue import find


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('model = make(config, attn_implementation="eager")', 2),
        ("config._attn_implementation = 'eager'", 2),
        ('settings = {"attn_implementation": "eager"}', 2),
        ('model = make(config, attn_implementation="sdpa")', 4),
    ],
)
def test_it_is_named_where_it_is_asked_for(text: str, line: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"import transformers\n{text}\ntrainer = trainer_of(model)\ntrainer.train()\n"
    )
    rule = find("TD608")
    evidence = rule.fires()
    ops = evidence.get(Ops)
    assert ops is not None and ops.attention
    called = tuple(replace(x, at=Place(str(script), 4, "main")) for x in ops.attention)
    found = run_rule(rule, evidence.add(replace(ops, attention=called)))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
    assert ("as asked for at" in found.summary) == (line == 2)
