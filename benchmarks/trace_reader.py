"""What reading a trace costs: tdiag against HolisticTraceAnalysis and torch-tb-profiler.

Usage: ``python benchmarks/trace_reader.py TRACE... [--hta-python PYTHON] [--turns 2]``

Each tool reads each trace in a fresh process, from the file to its answer: tdiag to the verdict,
HolisticTraceAnalysis to its temporal breakdown, torch-tb-profiler to its overview. Wall time and
CPU time of all its processes, and the peak of their memory together, are shown side by side:
medians of interleaved runs, in each of which tdiag, the shortest, runs four times.
HolisticTraceAnalysis brings many packages of its own: install it in an environment apart, whose
interpreter ``--hta-python`` names; without it that row is left out.

Targets, on a trace of about 1.1 GB: at least 20 times faster than HolisticTraceAnalysis, at most
a tenth of its memory, and at most half the uncompressed size. Figures of a busy machine mean
little: the load average is printed with them.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import tdiag

TDIAG = """
import sys
from tdiag.diagnose import diagnose
from tdiag.evidence.from_trace import device_evidence
from tdiag.trace import read_trace
print(diagnose(device_evidence(read_trace(sys.argv[1]))).verdict.cls)
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
print(analysis.get_temporal_breakdown(visualize=False))
"""
TB = """
import sys, tempfile
from torch_tb_profiler.profiler.data import RunProfileData
print(RunProfileData.parse("worker0", None, sys.argv[1], tempfile.mkdtemp()).avg_costs)
"""
POLL_S = 0.05
RUNS_A_TURN = {"tdiag": 4}  # of the others one


@dataclass
class Cost:
    wall_s: float
    cpu_s: float
    peak_bytes: int  # resident, of all processes of the tool together


def measure(python: str, code: str, trace: Path) -> Cost:
    """Run ``code`` on ``trace`` and watch its process tree. The file is read once before: what the
    system holds of it is the same for all tools."""
    with trace.open("rb") as file:
        while file.read(1 << 24):
            pass
    began = time.perf_counter()
    process = psutil.Popen(
        [python, "-c", code, str(trace)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    watched = _Watched(process)
    watched.start()
    process.wait()
    wall = time.perf_counter() - began
    watched.join()
    if process.returncode:
        raise SystemExit(f"{python} failed on {trace}:\n{process.stderr.read().decode()[-2000:]}")
    return Cost(wall, sum(watched.cpu_s.values()), watched.peak_bytes)


class _Watched(threading.Thread):
    """Looks at the process and its children now and then, until it ends."""

    def __init__(self, process: psutil.Popen) -> None:
        super().__init__()
        self.process = process
        self.peak_bytes = 0
        self.cpu_s: dict[int, float] = {}

    def run(self) -> None:
        while self.process.is_running():
            seen = [_usage(member) for member in [self.process, *_children(self.process)]]
            self.peak_bytes = max(self.peak_bytes, sum(resident for _, resident, _ in seen))
            self.cpu_s |= {pid: seconds for pid, _, seconds in seen if seconds}
            time.sleep(POLL_S)


def _usage(process: psutil.Process) -> tuple[int, int, float]:
    """pid, resident bytes, CPU seconds; zeros if it ended meanwhile."""
    try:
        times = process.cpu_times()
        return process.pid, process.memory_info().rss, times.user + times.system
    except psutil.Error:
        return process.pid, 0, 0.0


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def uncompressed_bytes(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    size = 0
    with gzip.open(path) as file:
        while block := file.read(1 << 24):
            size += len(block)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--hta-python", help="interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--turns", type=int, default=2, help="medians of so many turns are shown")
    chosen = parser.parse_args()
    compileall.compile_dir(Path(tdiag.__file__).parent, quiet=2)  # as pip does for the others
    tools = {"tdiag": (sys.executable, TDIAG), "torch-tb-profiler": (sys.executable, TB)}
    if chosen.hta_python:
        tools["HolisticTraceAnalysis"] = (chosen.hta_python, HTA)
    for trace in chosen.traces:
        size = uncompressed_bytes(trace)
        load = os.getloadavg()[0]
        print(f"{trace.name}: {size / 1e6:,.0f} MB uncompressed, load average {load:.1f}")
        costs: dict[str, list[Cost]] = {tool: [] for tool in tools}
        for tool in list(tools) * chosen.turns:
            for _ in range(RUNS_A_TURN.get(tool, 1)):
                costs[tool].append(measure(*tools[tool], trace.resolve()))
        own = _median(costs["tdiag"])
        for tool, runs in costs.items():
            cost, wall = _median(runs), sorted(run.wall_s for run in runs)
            print(
                f"  {tool:<22} {cost.wall_s:7.2f} s wall, {wall[0]:.2f} to {wall[-1]:.2f}"
                f" in {len(runs)} runs, {cost.cpu_s:7.2f} s CPU,"
                f" {cost.peak_bytes / 1e6:6,.0f} MB ({cost.peak_bytes / size:.2f} of the file):"
                f" {cost.wall_s / own.wall_s:5.1f} × time,"
                f" {cost.peak_bytes / own.peak_bytes:5.1f} × memory"
            )


def _median(runs: list[Cost]) -> Cost:
    """Of each figure by itself."""
    return Cost(
        statistics.median(run.wall_s for run in runs),
        statistics.median(run.cpu_s for run in runs),
        int(statistics.median(run.peak_bytes for run in runs)),
    )


if __name__ == "__main__":
    main()
