"""What is done with a checkpoint after it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.rules.examples import at, op_line, ops, stack, stacks
from tdiag.rules.loop_lines import saved_by_hand

SCRIPT = """
def save(self, model):
    torch.save({saved}, path)
    self.pack()
def pack(self):
    {packs}
def main():
    loss = model(x)
    optimizer.step()
    run.save(model)
"""


@pytest.mark.parametrize(
    ("saved", "packs", "found"),
    [
        ("model.state_dict()", "shutil.make_archive(name, 'zip', folder)", True),
        ("model.state_dict()", "shutil.copy(newest, best)", True),
        ("replies", "self.best = copy.deepcopy(model.state_dict())", True),
        ("replies", "self.seen = copy.deepcopy(losses)", False),
        ("model.state_dict()", "self.seen = copy.deepcopy(losses)", False),  # beside a checkpoint
        ("replies", "shutil.make_archive(name, 'zip', folder)", False),  # no weights
        ("model.state_dict()", "plot(losses)", False),  # writes nothing
    ],
)
def test_what_the_function_that_saves_calls(
    saved: str, packs: str, found: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(saved=saved, packs=packs))
    file = str(script)
    frames = (("main", 10, -1), ("save", 4, 0), ("pack", 6, 1), ("main", 9, -1), ("main", 8, -1))
    trees = CallTrees(
        training=tuple(
            CallFrame(name=name, file=file, line=line, parent=parent, frac=0.3, user=True)
            for name, line, parent in frames
        ),
        workers=(),
    )
    calls = ops(
        op_line(8, "forward", 9, at=at(8, "main", file)),
        op_line(9, "optimizer", 9, at=at(9, "main", file)),
    )
    line = stack(0, 0.3, "write (zipfile.py)" if found else "plot (me/train.py)")
    line = replace(line, at=at(6, "pack", file))
    assert bool(saved_by_hand(stacks((line,)), calls, trees)) is found
