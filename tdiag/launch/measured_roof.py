"""Measures the machine's best rates after the run: matrix products, copies, the time of one call.

``calibrate.py`` measures, in a separate process with the user's Python and torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tdiag.model.threshold import Threshold
from tdiag.probe.wire import ROOF, RUN_VARIABLE, events_files
from tdiag.sample.limits import cores_allowed

CALIBRATE = Path(__file__).with_name("calibrate.py")
DTYPES = "float32,float64,bfloat16,float16"
WITHIN_S = Threshold(
    10.0,
    "s",
    "Heuristic: two idle slow cores need 0.26 s for each number of threads after 2.0 to 2.3 s of"
    " importing torch. If three times that is not enough, other programs keep the cores busy and"
    " the rates would be useless.",
)


def calibrate(run_dir: Path) -> None:
    """Write ``roof.json`` for a run that computed its steps on the CPU: the rates, or ``why`` there
    are none. Does nothing for a run without steps."""
    process, torch = _trained(run_dir)
    if torch is None or torch.get("devices"):
        return
    with contextlib.suppress(OSError):
        (run_dir / ROOF).write_text(json.dumps(_measured(process, torch)))


def _measured(process: dict[str, Any], torch: dict[str, Any]) -> dict[str, Any]:
    used = int(torch.get("intra_op") or 1)
    allowed = max(1, int(min(torch.get("cpus_allowed") or cores_allowed(), cores_allowed())))
    threads = list(dict.fromkeys((allowed, min(used, allowed))))
    python = str(process.get("executable") or "python")
    command = [python, str(CALIBRATE), ",".join(map(str, threads)), DTYPES]
    environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN_S, env=environment,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"why": f"measuring the machine's best rates took more than {WITHIN_S:g} s"}
    except OSError as error:
        why = f"{python} could not be started to measure the machine's best rates"
        return {"why": f"{why}: {error.strerror}"}
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"why": f"measuring the machine's best rates failed: {last}"}
    rates = {(x["what"], x["threads"]): x for x in lines if "what" in x}
    queued = next((x["queued"] for x in lines if "queued" in x), 0.0)
    return {"allowed": allowed, "used": used, "queued": queued, "rates": list(rates.values())}


def _trained(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The last ``process`` and ``torch`` records of the process that made steps."""
    for file in events_files(run_dir):
        last: dict[str, dict[str, Any]] = {}
        stepped = False
        with contextlib.suppress(OSError, ValueError):
            for kind, line in file.read():
                stepped |= kind == "steps"
                if kind in ("process", "torch"):
                    last[kind] = json.loads(line)
        if stepped:
            return last.get("process", {}), last.get("torch")
    return {}, None
