"""The GPU validation: run it on a machine with a CUDA device and torch.

    python scripts/validate_gpu.py --out results --find-links wheels

Cases run in order of worth. Each asserts, has a time limit, and is appended to
``OUT/results.jsonl`` at once; another call goes on where this one stopped. What the slice
(``--slice-minutes``) ends before it has a result runs again in the next call. ``--jobs`` cases run
at once: programs that measure time take the device by turns, and what measures none does not use
it then. ``OUT/results.md`` is written at the end of each call; ``--page`` writes it without running
anything, and ``--record`` packs the planted cases' runs for the tests (``tests/recorded``). Exit
code: 0 if nothing that has run is wrong, else 1. ``--dry-run`` lists the cases and runs those that
need no device.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent))
ROOT = Path(__file__).resolve().parents[1]
PAGE = "results.md"  # in OUT
LARGEST_TRACE = 20_000_000  # bytes, of those that are kept
LEAST_S = 20  # what is left of a slice below this is not enough for any case


def main() -> int:
    args = _parse()
    if args.find_links:
        _install(args.find_links, args.out / "packages")
    from gpu.cases import CASES

    if args.case:
        return _one(args.case, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.dry_run:
        for case in CASES:
            print(f"{'device' if case.needs_device else 'here  '}  {case.name}")
    record = args.out / "results.jsonl"
    done = {result["name"] for result in _read(record)}
    chosen = [c for c in CASES if re.search(args.only, c.name) and c.name not in done]
    if args.dry_run or args.page or args.record:
        chosen = [c for c in chosen if args.dry_run and not c.needs_device]
    ends = time.monotonic() + args.slice_minutes * 60

    def run(case: Any) -> None:
        result = _run(case, args.out, ends, case.seconds * args.jobs)
        if result is None:
            return
        with record.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['state']:7} {case.name} {result['why'][:200]}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run, chosen))
    known = _read(record)
    if args.record:
        from gpu.recording import pack

        pack([x for x in known if re.search(args.only, x["name"])], args.out, args.record)
    elif not args.dry_run:
        from gpu.page import page

        (args.out / PAGE).write_text(page(known, CASES))
    return int(any(result["state"] != "passed" for result in known))


def _parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-results")))
    options.add_argument("--slice-minutes", type=float, default=8.0)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--only", default="", help="cases whose name has this regular expression")
    options.add_argument("--dry-run", action="store_true")
    options.add_argument("--page", action="store_true", help="write the page, run nothing")
    options.add_argument("--record", type=Path, help="pack runs into this folder, run nothing")
    options.add_argument("--find-links", type=Path, help="folder of wheels: tdiag's dependencies")
    options.add_argument("--case", help=argparse.SUPPRESS)  # one case, in a process of its own
    args = options.parse_args()
    args.out = args.out.resolve()
    return args


def _install(wheels: Path, target: Path) -> None:
    """tdiag's dependencies beside torch, and pytest, from this folder alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [name for name in project["dependencies"] if not name.startswith("torch>")]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--upgrade",
         "--find-links", str(wheels), "--target", str(target), *wanted, "pytest"],
        check=True,
    )  # fmt: skip
    paths = [str(target), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.path.insert(0, str(target))


def _run(case: Any, out: Path, ends: float, seconds: float) -> dict[str, Any] | None:
    """The case's result, in a process group of its own, so that its time limit (``seconds``) ends
    all of it; None where the slice ends first (``ends``: seconds, monotonic)."""
    from gpu.page import machine

    if ends - time.monotonic() < LEAST_S:
        return None
    turn = out / "device.turn"
    words = [sys.executable, __file__, "--case", case.name, "--out", str(out)]
    with _held(turn, case.turn):
        began = time.monotonic()
        left = ends - began
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
            env={**os.environ, "DEVICE_TURN": str(turn) if case.turn == "own" else ""},
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=max(0.0, min(seconds, left)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            if left < seconds:
                return None
            stdout, stderr = "", f"ended after {seconds} s"
    printed = stdout.strip().splitlines()[-1:] or [""]
    try:
        result: dict[str, Any] = json.loads(printed[0])
    except ValueError:
        result = {"state": "failed", "why": stderr[-1000:], "measured": {}}
    took = round(time.monotonic() - began, 1)
    return {"name": case.name, **result, "seconds": took, "machine": machine()}


@contextlib.contextmanager
def _held(turn: Path, kind: str) -> Iterator[None]:
    """Holds the turn that programs which measure time wait for (``DEVICE_TURN``), with others of
    its kind if it is shared; not at all if the case's programs take it themselves."""
    with turn.open("w") as file:
        if kind != "own":
            fcntl.flock(file, fcntl.LOCK_SH if kind == "shared" else fcntl.LOCK_EX)
        yield


def _one(name: str, out: Path) -> int:
    """Run this case here and print its result as the last line."""
    from gpu.cases import CASES, Bench, Wrong

    case = next(c for c in CASES if c.name == name)
    folder = out / name.replace(" ", "-").replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(folder, {})
    state, why = "passed", ""
    try:
        case.run(bench)
    except Wrong as wrong:
        state, why = "failed", str(wrong)
    for trace in folder.glob("run-*/tensorboard/*"):
        if trace.stat().st_size > LARGEST_TRACE:
            trace.unlink()
    print(json.dumps({"state": state, "why": why, "measured": bench.measured}))
    return 0


def _read(record: Path) -> list[dict[str, Any]]:
    lines = record.read_text().splitlines() if record.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
