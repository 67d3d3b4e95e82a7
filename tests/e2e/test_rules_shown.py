"""Rules that a CPU can show and no planted case does: a script that shows them, and a fixed twin.

Whole runs, as a user makes them; with ``pytest -m slow``, on a machine that is otherwise idle. The
other rules' scripts are the cases of ``benchmarks/accuracy.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = Path(__file__).parents[1] / "zoo" / "shown"
# script → the rules that it shows
RULES = {
    "setup": {"TD001", "TD002", "TD003", "TD004", "TD607", "TD703"},
    "attention": {"TD608", "TD805", "TD807"},
    "compiled": {"TD005", "TD708"},
    "agent": {"TD810"},
    "startup": {"TD212"},
    "recurrent": {"TD006", "TD008"},
    "shards": {"TD102"},
    "table": {"TD210"},
    "uneven": {"TD204"},  # and TD105, where a slow batch is among the sampled fetches
    "volumes": {"TD208", "TD211"},
    "activations": {"TD808"},
    "crowd": {"TD205"},
    "clipped": {"TD705"},
    "generated": {"TD214"},
    "piped": {"TD106"},
    "polled": {"TD226"},
    "asked": {"TD228"},
    "windowed": {"TD229"},
    "handed": {"TD227"},
    "groups": {"TD751"},
    "heads": {"TD752"},
    "stream": {"TD230"},
    "density": {"TD753", "TD754"},
    "tracks": {"TD755"},
    "keys": {"TD756"},
    "shops": {"TD757"},
    "atlas": {"TD758"},
    "rounds": {"TD231"},
    "formulas": {"TD502"},
    "ranks": {"TD902", "TD904", "TD905"},
    "reduced": {"TD903"},
    "buffers": {"TD908"},
    "hogwild": {"TD706"},
}
WHOLE = ("startup",)  # the start's share of a run is known at its end only
RANKS = ("ranks", "reduced", "buffers")


def codes(name: str, folder: Path) -> set[str]:
    """The rules that a run of the script finds something for."""
    pair, script = name.removesuffix("_fixed"), [str(SHOWN / f"{name}.py")]
    options = [] if pair in WHOLE else ["--profiling", "--time-budget", "25"]
    if pair in RANKS:
        torchrun = Path(sys.executable).with_name("torchrun")
        script = ["--", str(torchrun), "--standalone", "--nproc-per-node", "2", *script]
    done = subprocess.run(
        [sys.executable, "-m", "tdiag", "run", *options, "--quiet", "--json", *script],
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {finding["code"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_script_shows_its_rules_and_its_twin_does_not(name: str, tmp_path: Path) -> None:
    shown = codes(name, tmp_path)
    assert shown >= RULES[name], shown
    assert not codes(f"{name}_fixed", tmp_path) & RULES[name]
