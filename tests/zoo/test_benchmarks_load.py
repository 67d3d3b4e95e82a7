"""Benchmarks run by hand: what one takes from another must still be there."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOAD = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for file in sys.argv[2:]:
    runpy.run_path(file, run_name="loaded")
"""


def test_every_benchmark_finds_what_it_imports() -> None:
    programs = [f for f in BENCHMARKS.glob("*.py") if "__main__" in f.read_text()]
    assert len(programs) > 10
    command = [sys.executable, "-c", LOAD, str(BENCHMARKS), *map(str, programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
