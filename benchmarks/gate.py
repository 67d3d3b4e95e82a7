"""How often the gate cries wolf, and what it catches: planted slow-downs, beside two naive gates.

Usage: ``python benchmarks/gate.py [METHOD …] [--effects 0 3 5 10] [--minutes 30] [--report]``
``python benchmarks/gate.py nothing [--programs all] [--rounds 10]``

A step of about 10 ms is made of 100 equal units of work; a planted slow-down of 3 % is three units
more. Every check is a whole one: fresh processes, looks, verdict. Results are appended to
``gate.jsonl`` beside this file's working folder (``--out``), so that a run can be continued at
any time; ``--report`` only adds up what is there.

* ``turns``: `tdiag check --against` (its time; counters would see the extra calls at once).
* ``planted``: the command `tdiag check --baseline`, the slow-down an edit of the working tree;
  its time, too.
* ``nothing``: the command `tdiag check --baseline` of nothing, of each of ``gate_programs.py``,
  until each has so many rounds in the file.
* ``naive``: two runs one after the other, fails if the mean step is 5 % longer.
* ``pytest-benchmark``: its own ``--benchmark-compare-fail=mean:5%``, two sessions (pip install
  pytest-benchmark).

The rows ``stored`` in the file are of the baseline before 2026-11-23, which compared with work of
fixed size.

Targets: false alarms ≤ 1 % of at least 100; turn-taking finds 3 % in ≥ 90 %, 5 % in ≥ 99 %; a
baseline finds 10 % in ≥ 90 %; at most 2 minutes a check.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate_repository import NAMES, Repository

UNITS = 100
SHAPE = 144  # 144³ multiplications and additions on one core: about 0.1 ms
NAIVE_STEPS, NAIVE_WARM_UP, NAIVE_LIMIT = 400, 20, 1.05
ONE_CORE = {"OMP_NUM_THREADS": "1"}


def train(units: int, steps: int | None) -> None:
    """The script under test; prints the mean step in ns if it is to end by itself."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    a = torch.randn(SHAPE, SHAPE)
    product = torch.empty_like(a)
    taken: list[int] = []
    while steps is None or len(taken) < steps:
        began = time.perf_counter_ns()
        step(torch, model, optimizer, a, product, units)
        if steps is not None:
            taken.append(time.perf_counter_ns() - began)
    print(statistics.fmean(taken[NAIVE_WARM_UP:]))


def step(torch: Any, model: Any, optimizer: Any, a: Any, product: Any, units: int) -> None:
    with torch.no_grad():
        for _ in range(units):
            torch.mm(a, a, out=product)
    optimizer.zero_grad()
    model(a[:8, :8]).sum().backward()
    optimizer.step()


def script(effect: float) -> list[str]:
    return [sys.executable, __file__, "--train", str(round(UNITS * (1 + effect / 100)))]


def turns(effect: float, folder: Path) -> dict[str, Any]:
    from tdiag.duel.duel import duel
    from tdiag.duel.side import Program
    from tdiag.gate.against import THRESHOLD

    before, now = (
        Program(name, script(e), folder, ONE_CORE) for name, e in (("before", 0), ("now", effect))
    )
    found = duel(before, now, folder, THRESHOLD)
    typical = found.ratios.typical
    medians = [
        statistics.median(y / x for x, y in zip(a.typical_ns, b.typical_ns, strict=True))
        for a, b in found.groups
    ]
    return {
        "answer": found.ratios.answer(THRESHOLD),
        "estimate": [typical.ratio, typical.low, typical.high],
        "groups": medians,
    }


def planted(effect: float, folder: Path) -> dict[str, Any]:
    repository = Repository(folder)
    repository.write("units")
    # The extra calls are not to decide.
    found = repository.check("units", effect, "--max-growth", "1000%")
    return {"answer": found.pop("answer"), "estimate": found.pop("estimate")}


def nothing(programs: list[str], rounds: int, out: Path) -> None:
    """Round by round, so that what the machine does in an hour hits all programs alike."""
    have = Counter(r["program"] for r in _results(out) if r["method"] == "nothing")
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        for number in range(rounds):
            for program in programs:
                if have[program] > number:
                    continue
                repository.write(program)
                began = time.monotonic()
                found = repository.check(program)
                taken = {"method": "nothing", "effect": 0.0, "program": program,
                         "seconds": time.monotonic() - began}  # fmt: skip
                _append(out, {**taken, **found, "load": os.getloadavg()[0]})


def naive(effect: float, folder: Path) -> dict[str, Any]:
    def mean(e: float) -> float:
        command = [*script(e), "--steps", str(NAIVE_STEPS)]
        environ = {**os.environ, **ONE_CORE}
        return float(subprocess.check_output(command, env=environ, text=True))

    ratio = mean(effect) / mean(0)
    return {"answer": "slower" if ratio > NAIVE_LIMIT else "same", "estimate": [ratio]}


def pytest_benchmark(effect: float, folder: Path) -> dict[str, Any]:
    test = folder / "test_step.py"
    test.write_text(
        f"import sys, os\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch, gate\n"
        "def test_step(benchmark):\n"
        "    torch.set_num_threads(1)\n"
        "    model = torch.nn.Linear(8, 8)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "    a = torch.randn(gate.SHAPE, gate.SHAPE)\n"
        "    benchmark(gate.step, torch, model, optimizer, a, torch.empty_like(a),\n"
        "              int(os.environ['UNITS']))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-only",
               f"--benchmark-storage={folder}/store", str(test)]  # fmt: skip
    compared = ["--benchmark-compare", "--benchmark-compare-fail=mean:5%"]
    for e, more in ((0.0, ["--benchmark-save=before"]), (effect, compared)):
        units = str(round(UNITS * (1 + e / 100)))
        environ = {**os.environ, **ONE_CORE, "UNITS": units}
        done = subprocess.run([*command, *more], env=environ, capture_output=True, text=True)
        failed = done.returncode != 0
        assert not failed or "Performance has regressed" in done.stdout + done.stderr, done.stdout
    return {"answer": "slower" if failed else "same", "estimate": []}


METHODS: dict[str, Callable[[float, Path], dict[str, Any]]] = {
    "turns": turns, "planted": planted, "naive": naive, "pytest-benchmark": pytest_benchmark,
}  # fmt: skip


def measure(methods: list[str], effects: list[float], minutes: float, out: Path) -> None:
    end, number = time.monotonic() + minutes * 60, 0
    while time.monotonic() < end:
        method = methods[number % len(methods)]
        effect = effects[number // len(methods) % len(effects)]
        with tempfile.TemporaryDirectory() as name:
            began = time.monotonic()
            found = METHODS[method](effect, Path(name))
            taken = {"method": method, "effect": effect, "seconds": time.monotonic() - began}
        _append(out, {**taken, **found, "load": os.getloadavg()[0]})
        number += 1


def _append(out: Path, result: dict[str, Any]) -> None:
    line = json.dumps(result)
    print(line, flush=True)
    with out.open("a") as file:
        print(line, file=file)


def _results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def report(out: Path) -> None:
    results = _results(out)
    print("| method | planted | checks | slower | same or faster | unclear | s a check, median |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for method in ("stored", *METHODS):
        mine = [r for r in results if r["method"] == method]
        for effect in sorted({r["effect"] for r in mine}):
            some = [r for r in mine if r["effect"] == effect]
            said = [r["answer"] for r in some]
            slower, unclear = said.count("slower"), said.count("unclear")
            seconds = statistics.median(r["seconds"] for r in some)
            print(
                f"| {method} | +{effect:g} % | {len(some)} | {slower} |"
                f" {len(some) - slower - unclear} | {unclear} | {seconds:.0f} |"
            )


def report_nothing(out: Path) -> None:
    """By program: the verdicts, the lowest and highest ratio, whatever was inconclusive or not."""
    results = [r for r in _results(out) if r["method"] == "nothing"]
    print("| program | ms a step | checks | regressed | pass | inconclusive | read | s a check |")
    print("|---|--:|--:|--:|--:|--:|---|--:|")
    for program in [*dict.fromkeys(r["program"] for r in results), "all"]:
        mine = [r for r in results if program in (r["program"], "all")]
        said = Counter(r["verdict"] for r in mine)
        ratios = sorted(r["estimate"][0] - 1 for r in mine)
        times = "" if program == "all" else f"{statistics.median(r['step_ms'] for r in mine):.2g}"
        print(
            f"| {program} | {times} | {len(mine)} | {said['regressed']} | {said['pass']} |"
            f" {said['inconclusive']} | {ratios[0]:+.1%} to {ratios[-1]:+.1%} |"
            f" {statistics.median(r['seconds'] for r in mine):.0f} |"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "methods", nargs="*", metavar="METHOD", help="; ".join([*METHODS, "nothing"])
    )
    options.add_argument("--effects", nargs="+", type=float, default=[0.0, 3.0, 5.0, 10.0])
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--programs", nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--out", type=Path, default=Path("gate.jsonl"))
    options.add_argument("--report", action="store_true")
    options.add_argument("--train", type=int, help=argparse.SUPPRESS)
    options.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.train:
        train(args.train, args.steps)
        return
    if args.methods == ["nothing"]:
        if not args.report:
            chosen = NAMES if args.programs == ["all"] else args.programs
            if unknown := set(chosen) - set(NAMES):
                options.error(f"no program {', '.join(unknown)}; there are: {', '.join(NAMES)}")
            nothing(chosen, args.rounds, args.out)
        report_nothing(args.out)
        return
    if not args.report:
        measure(args.methods or list(METHODS), args.effects, args.minutes, args.out)
    report(args.out)


if __name__ == "__main__":
    main()
