"""What lines after the step do: save weights without torch.save, describe them for a log."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Abstained, Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases, stack, stacks


def result(code: str, evidence: Evidence) -> Finding | Abstained | None:
    return run_rule(find(code), evidence)


def around(tmp_path: Path, source: str, *lines: tuple[int, float, str], leaf: str = "") -> Evidence:
    """A loop whose forward is at line 1 and whose update is at line 2 of ``source``, 20 of 100 ms
    after it; samples at these lines with their functions."""
    script = tmp_path / "train.py"
    script.write_text(source)
    sampled = tuple(
        replace(stack(0, share, leaf), at=at(line, function, str(script)))
        for line, share, function in lines
    )
    calls = ops(
        op_line(1, "forward", 9, at=at(1, "train", str(script))),
        op_line(2, "optimizer", 9, at=at(2, "train", str(script))),
    )
    parts = {"forward": 40, "backward": 40}
    step = budget(**parts, other=20), phases(**parts, after_step=20)
    return Evidence().add(*step, stacks(sampled), calls)


GZIPPED = """\
    loss = model(x)
    optimizer.step()
    if step % 4 == 0:
        state = pickle.dumps({k: v.numpy() for k, v in model.state_dict().items()})
        with gzip.open("last.gz", "wb") as file:
            file.write(state)
"""


def test_weights_written_without_torch_save_are_a_checkpoint(tmp_path: Path) -> None:
    """By the text of a line (``pickle``), or by the functions that it calls (``gzip``)."""
    evidence = around(
        tmp_path, GZIPPED, (6, 0.15, "train"), (4, 0.05, "train"),
        leaf="GzipFile.write (python3.11/gzip.py)",
    )  # fmt: skip
    found = result("TD803", evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert (found.location.line, found.components) == (6, ("other",))
    assert found.at_best_ns == pytest.approx(20 * MS, rel=0.1)
    assert result("TD804", evidence) is None and result("TD713", evidence) is None


def test_rare_saves_of_which_samples_saw_few_take_their_part_of_the_clean_steps(
    tmp_path: Path,
) -> None:
    """Of all that was sampled after the step they are nine tenths; the clean steps have 20 ms."""
    evidence = around(tmp_path, GZIPPED, (4, 0.126, "train"), (8, 0.014, "train"))
    found = result("TD803", evidence)
    assert isinstance(found, Finding)
    assert found.at_best_ns == pytest.approx(18 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("text", "leaf", "saves"),
    [
        ("np.savez_compressed(path, **state)", "write_array (lib/format.py)", True),
        ("joblib.dump(state, path)", "NumpyPickler.save (joblib/numpy_pickle.py)", True),
        ("shutil.copy(path, kept)", "copyfile (python3.11/shutil.py)", True),
        ("with gzip.open(path) as file: table = file.read()", "GzipFile.read (x/gzip.py)", True),
        ("table = file.read()", "GzipFile.read (python3.11/gzip.py)", False),
        ("file.write(text)", "", False),
    ],
)
def test_what_writes_weights_is_known_by_its_call_and_by_the_name_of_its_function(
    text: str, leaf: str, saves: bool, tmp_path: Path
) -> None:
    source = f"    loss = model(x)\n    optimizer.step()\ndef NAME(state):\n    {text}\n"
    for name, expected in (("save_weights", saves), ("note", False)):
        evidence = around(tmp_path / "", source.replace("NAME", name), leaf=leaf)
        script = tmp_path / "train.py"
        line = replace(stack(0, 0.2, leaf, "after_step"), at=at(4, name, str(script)))
        linecache.checkcache()
        found = result("TD803", evidence.add(stacks((line,))))
        assert isinstance(found, Finding) is expected, name


@pytest.mark.parametrize(
    ("text", "leaf", "library"),
    [
        ("counts, edges = np.histogram(values, 64)", "", "numpy"),
        ("counts = describe(values)", "histogram (lib/_histograms_impl.py)", "numpy"),
        ("draw(values)", "draw_path (backends/backend_agg.py)", "matplotlib"),
    ],
)
def test_histograms_and_plots_after_the_step_are_logging(
    text: str, leaf: str, library: str, tmp_path: Path
) -> None:
    source = f"    loss = model(x)\n    optimizer.step()\n    {text}\n"
    evidence = around(tmp_path, source, (3, 0.2, "train"), leaf=leaf)
    seen = evidence.get(Stacks)
    assert seen is not None
    evidence.add(stacks((replace(seen.training[0], library=library),)))
    linecache.checkcache()
    found = result("TD804", evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == 3
    assert result("TD713", evidence) is None


@pytest.mark.parametrize(
    ("calling", "logged"),
    [
        ("logger.info(rank())", True),
        ("wandb.log({'rank': rank()})", True),
        ("best = max(best, rank())", False),
    ],
)
def test_what_a_line_that_writes_calls_is_logging(
    calling: str, logged: bool, tmp_path: Path
) -> None:
    source = f"    loss = model(x)\n    optimizer.step()\n    {calling}\ndef rank():\n    svd()\n"
    evidence = around(tmp_path, source, (5, 0.2, "rank"))
    script = str(tmp_path / "train.py")
    frames = [("train", 1, -1, 0.7), ("train", 3, -1, 0.2), ("rank", 5, 1, 0.2)]
    tree = tuple(
        CallFrame(name=name, file=script, line=line, parent=parent, frac=frac, user=True)
        for name, line, parent, frac in frames
    )
    evidence.add(CallTrees(training=tree, workers=()))
    linecache.checkcache()
    found = {code for code in ("TD713", "TD804") if isinstance(result(code, evidence), Finding)}
    assert found == {"TD804" if logged else "TD713"}


def sampled(
    folder: Path, function: str, shares: dict[int, tuple[float, str]]
) -> tuple[StackLine, ...]:
    """Lines of the script in one function, each with its share and phase."""
    linecache.checkcache()
    return tuple(
        replace(stack(0, share, "", phase), at=at(line, function, str(folder / "train.py")))
        for line, (share, phase) in shares.items()
    )


DESCRIBED = """\
loss = model(x)
optimizer.step()
def describe(tensor):
    levels = torch.quantile(tensor, LEVELS).tolist()
    counts = np.histogram(tensor.numpy(), 64)
    return {"levels": levels, "counts": counts}
"""


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_function_returns_with_a_histogram_is_logging(keeps: bool, tmp_path: Path) -> None:
    source = DESCRIBED.replace("    return", "    model.scale = levels\n    return" if keeps else
                               "    return")  # fmt: skip
    evidence = around(tmp_path, source).add(
        stacks(sampled(tmp_path, "describe", {4: (0.4, "after_step"), 5: (0.1, "after_step")}))
    )
    found = result("TD804", evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == (5 if keeps else 4)
    assert isinstance(result("TD713", evidence), Finding) is keeps


REPLACED = """\
    loss = model(x)
    optimizer.step()
def offer(model):
    torch.save(model.state_dict(), path + ".tmp")
    os.replace(path + ".tmp", path)
"""


def test_the_files_of_a_checkpoint_are_part_of_it(tmp_path: Path) -> None:
    """A large file that another replaces is freed: that took 20 % of a step of a real script."""
    evidence = around(tmp_path, REPLACED).add(
        stacks(sampled(tmp_path, "offer", {4: (0.2, "checkpoint"), 5: (0.2, "")})),
        budget(forward=20, backward=40, checkpoint=20, other=20),
        phases(forward=20, backward=40, checkpoint=20, after_step=20),
    )
    found = result("TD803", evidence)
    assert isinstance(found, Finding) and found.speedup is not None
    assert "and its files 20% more at train.py:5" in found.summary
    assert found.components == ("checkpoint", "other")
    assert found.at_best_ns == pytest.approx(40 * MS, rel=0.1)
    assert result("TD713", evidence) is None


def test_a_histogram_of_the_batch_is_not_logging(tmp_path: Path) -> None:
    source = "    counts = np.histogram(x, 64)\n    loss = model(x)\n    optimizer.step()\n"
    evidence = around(tmp_path, source, (1, 0.2, "train"))
    script = str(tmp_path / "train.py")
    evidence.add(
        ops(
            op_line(2, "forward", 9, at=at(2, "train", script)),
            op_line(3, "optimizer", 9, at=at(3, "train", script)),
        )
    )
    assert result("TD804", evidence) is None


def test_what_is_pickled_beside_a_save_of_torchs_is_no_weights(tmp_path: Path) -> None:
    source = """\
    loss = model(x)
    optimizer.step()
def report(step):
    if step % 1000 == 0:
        torch.save(model.state_dict(), path)
    if step % 4 == 0:
        pickle.dump(table, file)
"""
    evidence = around(tmp_path, source)
    line = replace(stack(0, 0.2, "", "after_step"), at=at(7, "report", str(tmp_path / "train.py")))
    linecache.checkcache()
    assert not isinstance(result("TD803", evidence.add(stacks((line,)))), Finding)


COPIED = """\
    loss = model(x)
    optimizer.step()
    queue = torch.cat([queue, keys])
    scheduler.step()
"""


def test_the_clean_time_after_the_step_bounds_what_its_lines_take(tmp_path: Path) -> None:
    """Samples put 12 % of the step there, the clean steps 20 %: in proportion to the lines."""
    alone = result("TD713", around(tmp_path, COPIED, (3, 0.12, "train")))
    assert isinstance(alone, Finding) and alone.at_best_ns == pytest.approx(20 * MS, rel=0.1)
    shared = around(tmp_path, COPIED, (3, 0.06, "train"), (4, 0.06, "train"))
    found = result("TD713", shared)
    assert isinstance(found, Finding) and found.at_best_ns == pytest.approx(20 * MS, rel=0.1)
