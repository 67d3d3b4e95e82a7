"""Whether `tdiag try` tells the truth: trials of nothing, trials beside the fix made by hand.

Usage: ``python benchmarks/trials.py [nothing] [twins] [samples] [--minutes M] [--results FILE]``

Every trial is one `tdiag` command, as a user starts it. One JSON line each is appended to the
results file (``trials.jsonl`` beside this file), so that a run that was cut off can go on:
`nothing` until each of its pairs of program and change has ``--rounds`` rows, the others until
every case has one. ``accuracy_page.py`` makes the tables of docs/accuracy.md.

* ``nothing``: a change that applies and does no work less, in the trainings of
  ``gate_programs.py`` of about 1 to 100 ms a step: an empty function frozen, a patch of a comment,
  the number of threads that the script sets itself. Target: at most 2 of 100 claim an effect.
* ``twins``: planted cases whose fixed twin a change of `tdiag try` can make, against bare runs of
  both twins in pairs (:func:`planted.running.in_turns`). Target: within 10 % in 90 %.
* ``samples``: `tdiag run --profiling --try` of each sample script, against bare runs of its twin.
  Target: the trials take at most two minutes, and prove what the twin wins.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any

import sample_pairs
from accuracy import gain_of
from planted.cases import CASES, Case
from planted.running import in_turns, start, write

HERE = Path(__file__).resolve().parent
SECONDS = 5.0  # that each bare run of a twin trains, about as long as a diagnosis: losses converge
RESULTS = HERE / "trials.jsonl"
TDIAG = str(Path(sys.executable).with_name("tdiag"))
# 20: three pairs of processes, the fewest of a trial, whatever they say; six where they are quick.
NOTHING_S, TWIN_S = 20.0, 180.0  # the latter is the default of `tdiag try`
LONGEST_S = 300.0
# One thread each in `gate_programs.py`: what `torch.num_threads=1` leaves as it is.
ONE_THREAD = ("tiny", "adam", "checkpoints", "workers", "python", "starved", "units", "buffers")
# Those that call `nothing()` in each step.
CALLING = ("tiny", "adam", "adam-2-threads", "workers", "ragged", "python", "convolution",
           "starved", "attention")  # fmt: skip
PATCHED = tuple(dict.fromkeys((*CALLING, *ONE_THREAD)))
COMMENT = "# of work in a step of `units`"
EMPTY, PATCH = "--freeze=train.py:nothing", "--diff=comment.patch"
THREADS = "--set=torch.num_threads=1"
NOTHING = [
    (program, change)
    for program in PATCHED
    for change, programs in ((EMPTY, CALLING), (PATCH, PATCHED), (THREADS, ONE_THREAD))
    if program in programs
]
SAMPLES = HERE.parent / "sample_scripts"

Row = dict[str, Any]
Task = tuple[str, Callable[[], Row]]  # its name in the results


def tdiag(words: list[str], folder: Path) -> str:
    """What it printed. Raises RuntimeError where it failed."""
    done = subprocess.run([TDIAG, *words], cwd=folder, text=True, capture_output=True, check=False,
                          timeout=LONGEST_S)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def result(trial: Row) -> Row:
    kept = ("change", "answer", "speedup", "low", "high", "step", "groups", "losses", "why")
    return {key: trial[key] for key in kept if key in trial} | {
        "step_ms": trial.get("without_ns", 0.0) / 1e6
    }


# Nothing ---------------------------------------------------------------------------------------


def nothing(program: str, change: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="tdiag-nothing-") as made:
        folder = Path(made)
        source = (HERE / "gate_programs.py").read_text()
        (folder / "train.py").write_text(source)
        if change == PATCH:
            (folder / "comment.patch").write_text(_of_a_comment(source))
        words = ["try", "--json", "--yes", "-q", f"--time-budget={NOTHING_S:g}", change]
        printed = tdiag([*words, "train.py", program], folder)
        return result(json.loads(printed)["tried"][0])


def _of_a_comment(source: str) -> str:
    lines = source.splitlines(keepends=True)
    other = source.replace(COMMENT, COMMENT + " alone").splitlines(keepends=True)
    assert lines != other
    return "".join(unified_diff(lines, other, "a/train.py", "b/train.py"))


def nothings(rows: list[Row], rounds: int) -> Iterator[Task]:
    """Those with the fewest rows first."""
    counts = [sum(r["name"] == f"{program} {change}" for r in rows) for program, change in NOTHING]
    for number in range(rounds):
        for (program, change), count in zip(NOTHING, counts, strict=True):
            if count <= number:
                yield f"{program} {change}", partial(nothing, program, change)


# Twins -----------------------------------------------------------------------------------------


def twin(case: Case, base: Path) -> Row:
    """Bare runs before and after the trial, because the machine's speed drifts; those before also
    write the files that a case reads, which two at once would not."""
    slow = write(case.files(False), base / case.name / "slow")
    fixed = write(case.files(True), base / case.name / "fixed")
    recorded = {row["name"]: row for row in rows_of(HERE / "accuracy.jsonl")}
    step_ms = recorded[case.name]["step_ms"]
    sides = {"slow_ms": slow, "fixed_ms": fixed}
    before = in_turns(case, sides, step_ms, SECONDS)
    change = case.waste.change.replace("$CORES", str(len(os.sched_getaffinity(0))))
    words = ["try", "--json", "--yes", "-q", f"--time-budget={TWIN_S:g}", "--set", change]
    done = start(case, [TDIAG, *words, *case.command()], slow)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    after = in_turns(case, sides, step_ms, SECONDS)
    bare = {name: [*before[name], *after[name]] for name in ("slow_ms", "fixed_ms")}
    return result(json.loads(done.stdout)["tried"][0]) | bare | gain_of(bare)


def twins(rows: list[Row], _: int) -> Iterator[Task]:
    base = HERE / ".tdiag" / "twins"
    for case in CASES:
        if case.waste.change and case.name not in {row["name"] for row in rows}:
            yield case.name, partial(twin, case, base)


# Samples ---------------------------------------------------------------------------------------


def sample(name: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="tdiag-sample-") as made:
        run, found = Path(made) / "run", Path(made) / "diagnosis.json"
        tdiag(["run", "--profiling", "--try", "-q", f"--output={found}", f"--out={run}",
               f"{name}.py"], SAMPLES)  # fmt: skip
        diagnosis = json.loads(found.read_text())
        trials_s = (run / "trials.json").stat().st_mtime - (run / "run.json").stat().st_mtime
    slow_steps, fixed_steps = sample_pairs.STEPS[name]
    ratios = []
    for _ in range(2):
        before = sample_pairs.step_ms(name, slow_steps)
        fixed = sample_pairs.step_ms(f"{name}_fixed", fixed_steps)
        ratios.append((before + sample_pairs.step_ms(name, slow_steps)) / 2 / fixed)
    trials, verdict = diagnosis["trials"], diagnosis["verdict"]
    tried = [*trials["tried"], *([trials["together"]] if trials.get("together") else [])]
    return {
        "class": verdict["class"], "proven": verdict.get("proven", False),
        "summary": verdict["summary"], "tried": [result(one) for one in tried],
        "untried": trials["untried"], "notes": trials["notes"],
        "measured": statistics.median(ratios), "span": [min(ratios), max(ratios)],
        "trials_s": trials_s,
    }  # fmt: skip


def samples(rows: list[Row], _: int) -> Iterator[Task]:
    for name in sample_pairs.STEPS:
        if name != "h2d" and name not in {row["name"] for row in rows}:
            yield name, partial(sample, name)


KINDS: dict[str, Callable[[list[Row], int], Iterator[Task]]] = {
    "nothing": nothings, "twins": twins, "samples": samples
}  # fmt: skip


def rows_of(file: Path, kind: str = "") -> list[Row]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row.get("kind", "") == kind]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options.add_argument("--minutes", type=float, default=40.0, help="begin no trial after these")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--results", type=Path, default=RESULTS)
    args = options.parse_args()
    kinds = args.kinds or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        options.error(f"no {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    end = time.monotonic() + args.minutes * 60
    for kind in kinds:
        for name, work in KINDS[kind](rows_of(args.results, kind), args.rounds):
            if time.monotonic() > end:
                break
            load, began = os.getloadavg()[0], time.monotonic()
            try:
                row = work()
            except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                row = {"failed": str(error)[-600:]}
            seconds = round(time.monotonic() - began, 1)
            line = json.dumps({"kind": kind, "name": name, **row, "seconds": seconds, "load": load})
            print(line, file=sys.stderr, flush=True)
            with args.results.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
