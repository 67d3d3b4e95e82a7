"""What is computed only to be written: functions, and values."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tdiag.model.place import Place
from tdiag.rules.only_writes import made_to_write, only_changes_itself, only_returns, only_writes

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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("acc = hits(x)  # HERE\nself.log('acc', acc)", True),
        ("acc, f1 = hits(x)  # HERE\nbar.set_postfix(acc=acc, f1=f1)", True),
        ("acc = hits(x)  # HERE\ntext = f'{acc:.3f}'\nif step % 9 == 0:\n    print(text)", True),
        ("acc = hits(x)  # HERE\nmean = acc.mean().item()\nprint(mean)", True),
        ("ranked = hits(x)  # HERE\nworst = ranked.idxmax()\nprint(worst)", True),
        ("text = json.dumps(hits(x))  # HERE\npath.write_text(text)", True),
        ("text = json.dumps(hits(x))  # HERE\nserver.send(text)", False),  # a message
        ("losses = hits(x)  # HERE\nmade = surgery.backward(losses)\nprint(made)", False),
        ("self.report(hits(x), began)  # HERE", True),  # defined below, and only writes
        ("acc = hits(x)  # HERE\nself.log('acc', acc)\nreturn acc", False),
        ("acc = hits(x)  # HERE\nif acc > best:\n    print(acc)", False),
        ("acc = hits(x)  # HERE\nbest = max(best, acc)\nprint(acc)", False),
        ("acc = hits(x)  # HERE\nself.keep(acc)", False),
        ("acc = hits(x)  # HERE", False),
        ("self.acc = hits(x)  # HERE\nprint(self.acc)", False),
        ("acc = hits(x)  # HERE\ndef later():\n    return acc\nprint(acc)", False),
        ("self.stats['acc'] = hits(x)  # HERE", True),  # printed by `show`
        ("self.stats['acc'] = hits(x)  # HERE\nself.stats['acc'] = 0.0", True),
        ("self.stats['acc'] = hits(x)  # HERE\nif self.stats['acc'] > best:\n    stop()", False),
        ("self.stats['acc'] = hits(x)  # HERE\nself.stats.pop('acc')", False),
        ("self.stats['f1'] = hits(x)  # HERE", False),  # nobody in this file reads it
        ("self.stats[step] = hits(x)  # HERE", False),
        ("acc = hits(x)  # HERE\nself.rows.append(stack([acc, x.mean()]))", True),  # `write`s
        ("acc = hits(x)  # HERE\nself.kept.append(acc)", False),  # and nobody reads it
        ("row = hits(x)  # HERE\nself.kept.append(row)\nprint(row['acc'])", True),
        ("row = hits(x)  # HERE\nself.drawn.append(row)\nprint(row['acc'])", False),
        ("seen = []\nacc = hits(x)  # HERE\nseen.append(acc)\nprint(sum(seen))", True),
        ("seen = []\nacc = hits(x)  # HERE\nseen.append(acc)\nsum(seen).backward()", False),
        ("acc = hits(x)  # HERE\nshared.append(acc)\nprint(acc)\nfollow(shared)", True),
        ("acc = hits(x)  # HERE\nshared.append(acc)\nprint(acc)\nstop(shared)", False),
        ("acc = hits(x)  # HERE\nself.drawn.append(acc)", False),  # its caller is unknown
        ("acc = hits(x)  # HERE\nself.rows.append(acc)\nstop(self.rows)", False),
    ],
)
def test_a_value_that_is_only_written(body: str, expected: bool, tmp_path: Path) -> None:
    code = f"""
class Trainer:
    def __init__(self):
        self.rows, self.drawn = [], []
        self.rows = []

    def step(self, x, step, best):
{textwrap.indent(body, " " * 8)}

    def report(self, values, began):
        if began:
            text = str(values)
            print(text)

    def keep(self, value):
        self.kept = value

    def write(self, path):
        with open(path, "w") as file:
            csv.writer(file).writerows(stack(self.rows).tolist())

    def last(self):
        return [x.item() for x in self.rows[-1]]

    def draw(self):
        return choice(self.drawn)

    def follow(self, shared):
        shared.append(1)

    def tell(self):
        acc, mean = self.last()
        print(acc, mean)

    def show(self, step):
        stats = self.stats
        if step % 40 == 0:
            print(f"{{step}} {{stats['acc']:.4f}}", flush=True)
"""
    file = tmp_path / "train.py"
    file.write_text(code)
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "HERE" in text)
    assert made_to_write(Place(str(file), line, "step")) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ranks = argsort(x)\nreturn ranks[0]", True),
        ("with no_grad():\n    top = x.topk(5)\nreturn top", True),
        ("self.seen.append(x)\nreturn x", False),
        ("self.count += 1\nreturn x", False),
        ("yield x", False),
        ("ranks = zeros(len(x))\nranks[order] = arange(len(x))\nreturn ranks", True),
        ("ranks = self.ranks\nranks[order] = arange(len(x))\nreturn ranks", False),
    ],
)
def test_a_function_that_only_returns(body: str, expected: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def f(self, x):\n" + textwrap.indent(body, "    "))
    assert only_returns(Place(str(file), 2, "f")) is expected


def placed(code: str, folder: Path) -> Place:
    """The line with HERE of this code in a file."""
    file = folder / "code.py"
    file.write_text(code)
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "HERE" in text)
    return Place(str(file), line, "")


TRACKER = """
import meters
def train(model, loader, optimizer):
    model.train()
    losses, tracker = meters.Mean(), meters.GradeTracker(keep=30_000)
    for step, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.add(loss.item())
        tracker.update(x, y)  # HERE
        if step % 50 == 0:
            print(f"step {step} {losses.value} {tracker.summary()}")
"""
METER = """
class GradeTracker:
    def update(self, scores, labels):
        self.scores.extend(scores)
        self.refresh()
    def refresh(self):
        ranks = sorted(self.scores)
        self.auc = area(ranks)  # HERE
"""


@pytest.mark.parametrize(
    ("changed", "to", "only"),
    [
        ("", "", True),
        ("print(", "log.info(", True),
        # Something else depends on it: training ends, or it is made of what trains.
        ("if step % 50 == 0", "if tracker.bad > 5", False),
        ("print(f", "scheduler.step(tracker.auc); print(f", False),
        ("GradeTracker(keep=30_000)", "GradeTracker(model)", False),
        ("tracker.update(x, y)", "tracker.update(model, y)", False),
        ("GradeTracker(keep=30_000)", "tracker_of(30_000)", False),
        ("loss = (model(x)", "x = tracker.scale(x); loss = (model(x)", False),
    ],
)
def test_a_tracker_whose_figures_are_only_printed(
    changed: str, to: str, only: bool, tmp_path: Path
) -> None:
    source = TRACKER.replace(changed, to) if changed else TRACKER
    assert made_to_write(placed(source, tmp_path)) is only


@pytest.mark.parametrize(
    ("changed", "to", "only"),
    [
        ("", "", True),
        ("self.refresh()", "self.refresh(); return self.auc", True),
        ("self.auc = area(ranks)", "best = area(ranks); torch.save(best)", False),
        ("self.auc = area(ranks)", "labels[0] = area(ranks)", False),
        ("def refresh(self)", "def refresh(tracker)", False),
    ],
)
def test_a_method_that_changes_its_own_object_alone(
    changed: str, to: str, only: bool, tmp_path: Path
) -> None:
    source = METER.replace(changed, to) if changed else METER
    assert only_changes_itself(placed(source, tmp_path)) is only
