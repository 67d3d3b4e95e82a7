"""Ceilings of copies to a device, logs and own losses; other files test scripts of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probe.harness import watch_code

from .scripts import run, said

# torch's meta device stands in for one: what comes there is another tensor, without values.
SENT = """
there, buffer = [], torch.empty(4, 4, device="meta")
def sent(x):
    pair = [part.to("meta", non_blocking=True) for part in (x, x + 1)]
    there.append(pair)
    buffer.copy_(x)
"""
BOTH = "(sent(x), loss_of(model(x), t))[1]"


def test_batches_stay_on_the_device(tmp_path: Path) -> None:
    show = "(len(there), len({id(a) for a, _ in there}) < 16, all(a is not b for a, b in there))"
    plain, said = run(tmp_path / "plain", [], show, code=SENT, loss=BOTH)
    assert plain == "(16, False, True)" and not said
    changes = [("ceiling.copies", "")]
    changed, said = run(tmp_path / "changed", changes, show, code=SENT, loss=BOTH)
    assert changed == "(16, True, True)"
    assert {(name, state) for name, state, _ in said} == {("ceiling.copies", "applied")}
    told = " ".join(what for _, _, what in said)
    assert "to() at script.py:" in told and "copy_() at script.py:" in told


def test_what_stays_on_the_host_is_no_copy(tmp_path: Path) -> None:
    """A change of the type only; a model that moves; its weights, read from a checkpoint."""
    code = """
other, kept = torch.nn.Linear(4, 4), []
def sent(x):
    kept.append(x.to(torch.float64))
    moved = torch.nn.Linear(4, 4).to("meta")
    kept.append(moved.weight)
    other.load_state_dict(torch.nn.Linear(4, 4).state_dict())
"""
    show = "len({id(x) for x in kept})"
    changed, said = run(tmp_path, [("ceiling.copies", "")], show, code=code, loss=BOTH)
    assert (changed, said) == ("32", [])


LOGS = """
import csv, logging, os, sys
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
logging.basicConfig(stream=open("log.txt", "w"), level="INFO")
rows = csv.writer(open("rows.csv", "w"))
named = csv.DictWriter(open("named.csv", "w"), ["step"])
board = SummaryWriter("board")
bar = tqdm(total=16, file=open("bar.txt", "w"), mininterval=0)
def write(x):
    logging.info("step")
    rows.writerow([1])
    named.writerow({"step": 1})
    board.add_scalar("x", 1.0)
    bar.update()
    print("step")
"""
SIZES = (
    "(bar.close(), board.close(), [os.path.getsize(f'{name}') for name in ('log.txt', 'rows.csv',"
    " 'named.csv', 'bar.txt')], sum(entry.stat().st_size for entry in os.scandir('board')))[2:]"
)


def test_logs_are_not_written(tmp_path: Path) -> None:
    code, loss = LOGS.replace('"w")', '"w", buffering=1)'), BOTH.replace("sent", "write")
    written, said = run(tmp_path / "plain", [], SIZES, code=code, loss=loss)
    files, board = eval(written)
    assert min(files) > 16 and not said
    changes = [("ceiling.logging", "")]
    left, said = run(tmp_path / "changed", changes, SIZES, code=code, loss=loss)
    files_left, board_left = eval(left)
    # A bar that begins and ends is drawn by tqdm before it was known.
    assert files_left[:3] == [0, 0, 0] and files_left[3] < files[3] and board_left < board
    for what in ("Logger._log", "writer.writerow", "DictWriter.writerow", "SummaryWriter.add_",
                 "tqdm.display", "print"):  # fmt: skip
        assert any(what in told for _, _, told in said), (what, said)


def test_a_script_that_writes_nothing_is_left_alone(tmp_path: Path) -> None:
    _, said = run(tmp_path, [("ceiling.logging", "")], "0")
    assert said == []


# On a CPU Adam reads its number of steps, one parameter after the other.
ADAM = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=False)
texts = []
for step in range(20):
    loss = model(torch.ones(1, 2)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    READ
import sys
sys.stdout.write(f"{len(set(texts))} {model.bias.detach().numpy()[0]:.4f}")
"""


@pytest.mark.parametrize(
    ("read", "plain", "changed", "told"),
    [
        ("pass", 0, 0, set()),
        ("texts.append(f'{loss:.3f}')", 20, 1, {"item() at script.py:11"}),
        ("texts.append(str(float(loss)))", 20, 1, {"__float__() at script.py:11"}),
    ],
)
def test_what_torch_reads_for_itself_is_no_read_of_the_script(
    read: str, plain: int, changed: int, told: set[str], tmp_path: Path
) -> None:
    code = ADAM.replace("READ", read)
    shown = []
    for name, trial in (("plain", []), ("changed", [("ceiling.reads", "")])):
        (tmp_path / name).mkdir()
        watched = watch_code(tmp_path / name, code, windows=[], trial=trial)
        assert watched.returncode == 0, watched.err
        shown.append(watched.out.split())
    assert [int(count) for count, _ in shown] == [plain, changed]
    assert shown[0][1] == shown[1][1], "Adam steps by another number"
    assert {what.partition(" returns")[0] for _, _, what in said(watched)} == told


OWN_LOSS = """
import torch
def both(y):
    return RESULT
x = torch.ones(2, requires_grad=True)
torch.optim.SGD([x], lr=0.1)
for _ in range(3):
    r = both(x)
import sys
sys.stdout.write(str(SHOW))
"""


@pytest.mark.parametrize(
    ("result", "show", "shown", "told"),
    [
        ("y.sum(), {'part': y.mean(), 'seen': 3}",
         "[r[0].item(), r[1]['part'].item(), r[1]['seen']]", "[0.0, 0.0, 3]",
         "is a sum of its inputs"),
        ("y.sum(), y * 2", "[r[0].item(), r[1].tolist()]", "[2.0, [2.0, 2.0]]",
         "returns a tensor with gradients that is not one number"),
        ("y.sum().item()", "r", "2.0", "returns no loss with gradients"),
    ],
)  # fmt: skip
def test_a_loss_of_the_script_keeps_the_form_of_what_it_returns(
    result: str, show: str, shown: str, told: str, tmp_path: Path
) -> None:
    code = OWN_LOSS.replace("RESULT", result).replace("SHOW", show)
    watched = watch_code(tmp_path, code, windows=[], trial=[("ceiling.loss", "script.py:both")])
    assert (watched.returncode, watched.out) == (0, shown), watched.err
    assert {what for _, _, what in said(watched)} == {f"script.py:both {told}"}
