"""The page of all results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any

from gpu.cases import Case
from gpu.running import ROOT


@cache
def machine() -> str:
    """The device, its driver and the versions, in one sentence."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    asked = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    commit = os.environ.get("COMMIT") or _output(
        "git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"
    )
    python = ".".join(map(str, sys.version_info[:3]))
    date = datetime.now(timezone.utc).date().isoformat()
    driver = asked.splitlines()[0] if asked else "none"
    return (
        f"{date}: {name}, driver {driver}, torch {torch.__version__}, Python {python}, commit"
        f" {commit or 'unknown'}."
    )


def _output(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def page(results: Sequence[dict[str, Any]], cases: Sequence[Case]) -> str:
    """All results, on which machines and of which commits, and which cases have not run."""
    by_name = {result["name"]: result for result in results}
    rows = [_row(case, by_name.get(case.name)) for case in cases]
    good = sum(result["state"] == "passed" for result in by_name.values())
    open_ = len(cases) - len(by_name)
    lines = [
        "# Results of the GPU validation",
        "",
        *dict.fromkeys(result["machine"] for result in results),
        "",
        f"{good} of {len(cases)} cases passed, {len(by_name) - good} failed, {open_} have not run.",
        "",
        "Written by `python scripts/validate_gpu.py`, which asserts each case and goes on where it"
        " stopped. Without a device, what a GPU run says is tested on simulated ones"
        " (`tests/simulated`) and on recorded traces (`TDIAG_TRACE_CORPUS`).",
        "",
        "| case | result | measured |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _row(case: Case, result: dict[str, Any] | None) -> str:
    if result is None:
        return f"| {case.name} | not run | |"
    text = result["state"] + (f": {result['why']}" if result.get("why") else "")
    measured = ", ".join(f"{name} {_short(x)}" for name, x in result["measured"].items())
    return f"| {case.name} | {' '.join(text.split())[:300].replace('|', '/')} | {measured} |"


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"
