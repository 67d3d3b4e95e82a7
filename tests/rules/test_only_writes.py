"""Functions whose only effect is what they write."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tdiag.model.place import Place
from tdiag.rules.only_writes import only_writes

SPECTRUM = """
    def on_step_end(self, model, state):
        row = {"step": state.step}
        for name, weight in model.named_parameters():
            sigma = svdvals(weight)  # HERE
            row[name] = sigma[0].item()
        self.file.write(json.dumps(row))
"""
BARE = """
    def report(model, step):
        norms = []
        for weight in model.parameters():
            norms.append(weight.norm().item())  # HERE
        if step % 50 == 0:
            print(norms)
"""
KEEPS = """
    def watch(self, model):
        self.norm = model.weight.norm()  # HERE
        print(self.norm)
"""
GIVES = """
    def norm(model):
        found = model.weight.norm()  # HERE
        print(found)
        return found
"""
CHANGES = """
    def clip(model):
        found = model.weight.norm()  # HERE
        model.weight.clamp_(-1, 1)
        print(found)
"""
ANOTHERS = """
    def fill(row, model):
        row["norm"] = model.weight.norm()  # HERE
        print(row)
"""
SILENT = """
    def watch(model):
        norm = model.weight.norm()  # HERE
"""
TRAINS = """
    def epoch(model, loader, optimizer):
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
            print(loss)  # HERE
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (SPECTRUM, True), (BARE, True), (KEEPS, False), (GIVES, False), (CHANGES, False),
        (ANOTHERS, False), (SILENT, False), (TRAINS, False), ("    x = 1  # HERE", False),
    ],
)  # fmt: skip
def test_what_is_computed_only_to_be_written(code: str, expected: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(code))
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "HERE" in text)
    assert only_writes(Place(str(file), line, "f")) is expected


def test_an_unknown_source_tells_nothing(tmp_path: Path) -> None:
    assert not only_writes(Place(str(tmp_path / "gone.py"), 3, "f"))
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n    print(1)\n")
    assert not only_writes(Place(str(broken), 2, "f"))
