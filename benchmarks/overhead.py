"""What tdiag costs: its hooks, a whole `tdiag run --profiling`, and starting the command line.

Usage: ``python benchmarks/overhead.py [hooks] [run] [help] [--rounds 60] [--script FILE]``

* ``hooks``: a step of about 5 ms bare against the same step with hooks only, interleaved in one
  process (:mod:`hooks`), and bare against bare for what the machine's noise alone makes of it. What
  the hooks of a step cost hardly depends on its arithmetic, so that a step with next to none shows
  it more sharply: that cost is given in µs, too.
  Target: at most 1 % slower, median of pairs.
* ``run``: wall time of one ``tdiag run --profiling`` against py-spy, cProfile and torch.profiler
  run one after another for as many steps as tdiag's run made. torch.profiler records only as many
  steps as tdiag's own traces hold, the rest of its run is plain: the cheapest way to use it.
  Target: at most 0.6.
* ``help``: ``tdiag --help`` against ``python -c "import typer, rich"``, interleaved.
  Target: at most 1.5, and 0.25 s.

Figures of a busy machine mean little: the load average is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hooks import TINY, TURN_STEPS, measure, ratios, summary

REPOSITORY = Path(__file__).parents[1]
TDIAG = (sys.executable, "-m", "tdiag")
HOOKS_TARGET, RUN_TARGET, HELP_TARGET, HELP_TARGET_S = 0.01, 0.6, 1.5, 0.25
HELP_REPEATS = 15
STEP_NS = 5e6
TORCH_PROFILER = "--torch-profiler"


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def hooks(rounds: int) -> None:
    groups = measure(rounds)
    step_ms = statistics.median(a.wall_ns for group in groups for a, _ in group.hooked) / 1e6
    turns = len(groups) * rounds * 4
    print(f"hooks: {turns} turns of {TURN_STEPS} steps, {step_ms:.2f} ms a bare step")
    print(f"  bare ÷ bare, wall     {summary([ratios(g.bare, 'wall_ns') for g in groups])}")
    wall = [ratios(group.hooked, "wall_ns") for group in groups]
    print(f"  hooks ÷ bare, wall    {summary(wall)}")
    print(f"  hooks ÷ bare, on-CPU  {summary([ratios(g.hooked, 'cpu_ns') for g in groups])}")
    middle = statistics.median(ratio for group in wall for ratio in group)
    print(f"  target ≤ {HOOKS_TARGET:.0%}: {verdict(middle - 1 <= HOOKS_TARGET)}")
    small = [pair for group in measure(rounds, TINY) for pair in group.hooked]
    first, cost, third = statistics.quantiles([b.cpu_ns - a.cpu_ns for a, b in small], n=4)
    print(
        f"  hooks in the same step with next to no arithmetic, on-CPU: {cost / 1e3:.0f} µs a step"
    )
    print(f"  (quartiles {first / 1e3:.0f} to {third / 1e3:.0f}), {cost / STEP_NS:.1%} of 5 ms")


def seconds(command: Sequence[str], folder: Path) -> float:
    """Wall time of a command that has to succeed; its output goes to files in ``folder``.

    With one thread for torch: on a machine with other work, threads that wait for each other turn
    one busy core into any figure at all.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        done = subprocess.run(command, cwd=folder, env=environ, stdout=out, stderr=err)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'stderr').read_text()[-2000:]}")
    return taken


def counts(run_dir: Path) -> tuple[int, int]:
    """Steps that a run made, and how many of them its traces hold."""
    steps = traced = 0
    for file in (run_dir / "events").iterdir():
        for line in file.read_text().splitlines():
            event = json.loads(line)
            steps += event["n"] if event["kind"] == "steps" else 0
            traced += event["steps"] if event["kind"] == "trace" else 0
    return steps, traced


def whole_run(script: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds([sys.executable, str(script), "--steps", "5"], folder)  # its data, warm caches
        run = [*TDIAG, "run", "--profiling", "--out", str(folder / "run"), str(script)]
        tdiag_s = seconds(run, folder)
        steps, traced = counts(folder / "run")
        same = [str(script), "--steps", str(steps)]
        spy = ["--subprocesses", "--idle", "--format", "speedscope", "-o", str(folder / "stacks")]
        python = sys.executable
        py_spy = str(Path(python).with_name("py-spy"))
        one_after_another = {
            "py-spy": [py_spy, "record", *spy, "--", python, *same],
            "cProfile": [python, "-m", "cProfile", "-o", str(folder / "calls"), *same],
            "torch.profiler": [python, __file__, TORCH_PROFILER, str(traced), *same],
        }
        bare_s = seconds([python, *same], folder)
        others = {tool: seconds(command, folder) for tool, command in one_after_another.items()}
    total = sum(others.values())
    print(f"run: {script.name}, {steps} steps, {traced} of them traced; bare {bare_s:.1f} s")
    print(
        "  " + " + ".join(f"{tool} {s:.1f} s" for tool, s in others.items()) + f" = {total:.1f} s"
    )
    ratio = tdiag_s / total
    print(f"  tdiag {tdiag_s:.1f} s, report included: {ratio:.2f} of that")
    print(f"  target ≤ {RUN_TARGET}: {verdict(ratio <= RUN_TARGET)}")


def under_torch_profiler(record: int, script: str, options: list[str]) -> None:
    """Runs a script with ``record`` of its optimizer steps under torch.profiler, and exports."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile, schedule

    plan = schedule(wait=5, warmup=1, active=record, repeat=1)
    sys.argv = [script, *options]
    with profile(schedule=plan, record_shapes=True, with_stack=True) as profiler:
        register_optimizer_step_post_hook(lambda *_: profiler.step())
        runpy.run_path(script, run_name="__main__")
    profiler.export_chrome_trace("trace.json.gz")


def help_start() -> None:
    commands = ([*TDIAG, "--help"], [sys.executable, "-c", "import typer, rich"])
    with tempfile.TemporaryDirectory() as name:
        pairs = [[seconds(c, Path(name)) for c in commands] for _ in range(HELP_REPEATS + 1)][1:]
    tdiags = statistics.median(pair[0] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(f"help: tdiag --help {tdiags:.3f} s, {ratio:.2f} of `import typer, rich`")
    met = ratio <= HELP_TARGET and tdiags <= HELP_TARGET_S
    print(f"  target ≤ {HELP_TARGET} and ≤ {HELP_TARGET_S} s: {verdict(met)}")


def main() -> None:
    if sys.argv[1:2] == [TORCH_PROFILER]:
        under_torch_profiler(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
        return
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("parts", nargs="*", metavar="PART", help="hooks, run, help; default: all")
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--script", type=Path, default=REPOSITORY / "sample_scripts/healthy.py")
    args = options.parse_args()
    parts = {
        "hooks": lambda: hooks(args.rounds),
        "run": lambda: whole_run(args.script.resolve()),
        "help": help_start,
    }
    for part in args.parts or parts:
        parts[part]()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
