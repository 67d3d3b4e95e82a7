"""Cases to judge, and repositories to check, in as few words as possible."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tdiag.duel.estimate import Estimate, Ratios
from tdiag.gate.counters import Counter, LineCount
from tdiag.gate.judge import Case, Measured, SideCounts
from tdiag.gate.outcome import CounterChange, LineChange, Outcome, StepChange
from tdiag.model.comparison import Difference
from tdiag.model.diagnosis import Finding, Fix
from tdiag.model.place import Place

ROOT = Path("/home/u/project")
ITEM = ".item()"


def estimate(ratio: float, half: float = 0.01, p: float = 0.01) -> Estimate:
    return Estimate(ratio, ratio - half, ratio + half, p, 5)


def measured(ratio: float, half: float = 0.01, p: float = 0.01, mean: float = 0.0) -> Measured:
    ratios = Ratios(estimate(ratio, half, p), estimate(mean or ratio, half, p))
    return Measured(ratios, 10e6, 10e6 * ratio, turns=200, how="taking turns")


def item_lines(per_step: float, line: int = 42) -> dict[str, Counter]:
    key = "loss.py: forward: total += x.item()"
    place = Place(str(ROOT / "loss.py"), line)
    lines = {key: LineCount(key, per_step, place)} if per_step else {}
    return {ITEM: Counter(ITEM, "count", per_step, per_step, lines)}


def finding(code: str) -> Finding:
    return Finding(
        code=code, name="a-pattern", cls="python_loss", summary="Python takes 40% of the step.",
        location=Place(str(ROOT / "loss.py"), 42), evidence=(), recoverable_ns=4_000_000,
        speedup=None, why_gain="", fix=Fix("Use one call.", "safe"),
    )  # fmt: skip


def case(step: Measured | None = None, before: float = 0, now: float = 0, **more: object) -> Case:
    sides = [
        SideCounts(ROOT, item_lines(count), rules, parts, (3e9,), (4e8,))
        for count, parts, rules in (
            (before, {"loss": 1e6, "forward": 9e6}, frozenset({"TD301"})),
            (now, {"loss": 2e6, "forward": 9e6}, frozenset({"TD301", "TD501"})),
        )
    ]
    told = {"command": "train.py", "against": "main (1a2b3c)", "threshold": 0.05,
            "tolerance": 0.05, "why_no_step": "" if step else "not comparable"}  # fmt: skip
    return Case(before=sides[0], now=sides[1], step=step, **{**told, **more})  # type: ignore[arg-type]


def regressed() -> Outcome:
    """One of everything, names as hostile as users make them."""
    line = LineChange(
        text="loss.py: forward: total += x.item()  # | <b> @here",
        place=Place(str(ROOT / "lo,ss:%\x1b[31m.py"), 42), before=0, now=4096, in_diff=True,
    )  # fmt: skip
    return Outcome(
        verdict="regressed", command="train.py --name `a|b`", against="origin/main (1a2b3c4d5e)",
        threshold=0.015, tolerance=0.05,
        reasons=("step time +8.2% [+6.1%, +10.4%], 10.2 ms → 11.0 ms; allowed is +1.5%",
                 "loss.py:42 makes 4,096 more .item() calls a step (0 → 4,096)"),
        step=StepChange(before_ns=10.2e6, now_ns=11.0e6, ratio=1.082, low=1.061, high=1.104,
                        p_slower=0.031, mean_ratio=1.08, mean_low=1.05, mean_high=1.12, groups=5,
                        turns=200, answer="slower", stored_ns=10.0e6,
                        how="5 groups of fresh processes, 200 turns a side"),
        components=(Difference("loss", "ns", 1e6, 1.9e6),
                    Difference("forward", "ns", 9.2e6, 9.1e6)),
        side_costs=(Difference("start to warm", "ns", 3.1e9, 3.2e9),
                    Difference("peak memory", "bytes", 4e8, 4.1e8)),
        counters=(CounterChange(name=ITEM, unit="count", before=0, now=4096, failing=True,
                                lines=(line,)),
                  CounterChange(name="peak memory allocated", unit="bytes", before=4e8, now=3e8,
                                failing=False)),
        findings=(finding("TD501"),), changed_files=("loss.py",),
        notes=("the baseline is of torch 2.1",), tdiag="0.1.0",
    )  # fmt: skip


def git(folder: Path, *words: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A",
                "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": os.devnull}  # fmt: skip
    done = subprocess.run(["git", *words], cwd=folder, env={**os.environ, **identity}, check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout


def repository(folder: Path, **files: str) -> Path:
    """A fresh one with one commit of these files (``train_py`` is ``train.py``)."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / ".git/info/exclude").write_text("__pycache__/\n")  # what imports leave
    commit(folder, **files)
    return folder


def commit(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_py", ".py")).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a commit")
