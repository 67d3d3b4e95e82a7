"""How much faster each sample's fixed twin is, measured interleaved; prints a Markdown table.

Usage: ``python benchmarks/sample_pairs.py [--rounds 3] [--threads N] [NAME ...]``

Each round runs slow, fixed, fixed, slow, so that a drift of the machine hits both alike. Where
other work shares the machine, ``--threads 1`` keeps threads from waiting for each other. "step" is
the script's own figure, wall time ÷ steps; the ratio is the median over rounds. Last, the loss of
``python_loss`` alone, forward and backward, against its twin's on the same batch.
"""

import argparse
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

SAMPLES = Path(__file__).parents[1] / "sample_scripts"
# Steps that take one to five seconds; io_reads_fixed must get well past its one reading epoch.
STEPS = {
    "io_reads": (100, 400),
    "cpu_decode": (60, 200),
    "python_loss": (20, 200),
    "compute": (30, 60),
    "overhead": (100, 2000),
    "debugging": (200, 500),
    "h2d": (100, 100),
}


def step_ms(script: str, steps: int) -> float:
    done = subprocess.run(
        [sys.executable, SAMPLES / f"{script}.py", "--steps", str(steps)],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r" steps, (\S+) ms each", done.stdout)
    assert found, done.stdout
    return float(found[1])


def compare(name: str, rounds: int) -> str:
    slow_steps, fixed_steps = STEPS[name]
    slow, fixed, ratios = [], [], []
    for _ in range(rounds):
        first = step_ms(name, slow_steps)
        both = step_ms(f"{name}_fixed", fixed_steps) + step_ms(f"{name}_fixed", fixed_steps)
        last = step_ms(name, slow_steps)
        slow.append((first + last) / 2)
        fixed.append(both / 2)
        ratios.append(slow[-1] / fixed[-1])
    median = statistics.median
    spread = f"{min(ratios):.1f}–{max(ratios):.1f}"
    return (
        f"| {name} | {median(slow):.1f} | {median(fixed):.1f} | {median(ratios):.1f}× ({spread}) |"
    )


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median of ``repeats`` calls after two to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def loss_alone() -> str:
    names = runpy.run_path(str(SAMPLES / "python_loss.py"))
    twin = runpy.run_path(str(SAMPLES / "python_loss_fixed.py"))
    random = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 768, names["WIDTH"], generator=random).requires_grad_()
    labels = torch.where(torch.rand(768, generator=random) < 0.5, 1, -1)
    slow = median_seconds(lambda: names["instance_loss"](first, second, labels).backward(), 9)
    fixed = median_seconds(lambda: twin["instance_loss"](first, second, labels).backward(), 301)
    return f"loss alone, 768 pairs: {slow * 1e3:.1f} ms, {fixed * 1e3:.3f} ms, {slow / fixed:.0f}×"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", default=list(STEPS))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    print("| pair | slow step, ms | fixed step, ms | ratio (spread over rounds) |")
    print("|---|---|---|---|")
    for name in args.names:
        print(compare(name, args.rounds), flush=True)
    print()
    if "python_loss" in args.names:
        print(loss_alone())
    machine = f"{os.cpu_count()} cores, {args.threads} torch threads, torch {torch.__version__}"
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
