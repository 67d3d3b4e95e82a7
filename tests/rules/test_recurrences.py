"""Loops that carry a state, by their source."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tdiag.model.place import Place
from tdiag.rules.examples import op_line
from tdiag.rules.recurrences import carried_state
from tdiag.rules.vectorised import rewriting


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("h = cell(x[t], h)  # HERE\nouts.append(h)", "h"),
        ("h, c = cell(x[t], (h, c))  # HERE", "c"),
        ("x = x @ a.T  # HERE", "x"),
        ("k = rates(s)\ns = s + 0.1 * k  # HERE", "s"),
        ("h = decay * h + x[t]  # HERE", "h"),
        ("if t:\n    h = mix(h, x[t])  # HERE", "h"),
        ("d = x[t] - y[t]\nloss = loss + d.square()  # HERE", ""),
        ("loss += (x[t] - y[t]).square()  # HERE", ""),
        ("best = torch.maximum(best, score(x[t]))  # HERE", ""),
        ("rows = torch.cat([rows, x[t]])  # HERE", ""),
        ("d = score(x[t])  # HERE\nif last is not None:\n    use(d - last)\nlast = d", ""),
        ("ema = decay(ema, x[t])\nloss = sum(d(i) for i in x)  # HERE", ""),
        ("ema = decay(ema, x[t])  # HERE\nema.sum().backward()", ""),  # the training's own
        ("d = score(x[t])  # HERE\ntotal = total + d\nif total > 3:\n    stop(total)", ""),
    ],
)
def test_what_a_loop_carries(body: str, state: str, tmp_path: Path) -> None:
    source = "def run(x, y):\n    for t in range(len(x)):\n" + textwrap.indent(body, " " * 8)
    file = tmp_path / "train.py"
    file.write_text(source)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "HERE" in text)
    at = Place(str(file), line, "run")
    assert carried_state(at) == state
    fix = rewriting([op_line(line, "forward", 60, at=at)])
    assert ("needs" in fix.text) is bool(state)
    assert fix.action.startswith("Compile") is bool(state)


def test_an_unknown_source_tells_nothing() -> None:
    assert carried_state(Place("/nowhere/train.py", 3, "run")) == ""


def test_a_loop_elsewhere_that_is_known_to_carry_a_state() -> None:
    """Of a stage of a solver, whose loop is in another function."""
    line = op_line(63, "forward", 160, at=Place("/nowhere/train.py", 63, "rk4"))
    assert rewriting([line], chained=True).action.startswith("Compile")
    assert rewriting([line]).action.startswith("Replace")
