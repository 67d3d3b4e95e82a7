"""The GPU validation: run it on a machine with a CUDA device and torch.

    python scripts/validate_gpu.py --out results --find-links wheels

Cases run in order of worth. Each asserts, has a time limit, and is appended to
``OUT/results.jsonl`` at once; another call goes on where this one stopped. ``--slice-minutes`` ends
a call before a longer case would exceed them. ``docs/gpu-validation.md`` is written at the end of
each call. Exit code: 0 if nothing that has run is wrong, else 1.
``--dry-run`` lists the cases and runs those that need no device.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent))
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu-validation.md"
LARGEST_TRACE = 3_000_000  # bytes, of those that are kept


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
    chosen = [c for c in CASES if not (args.dry_run and c.needs_device)]
    record = args.out / "results.jsonl"
    began, known = time.monotonic(), _read(record)
    for case in chosen:
        if case.name in {result["name"] for result in known}:
            continue
        left = args.slice_minutes * 60 - (time.monotonic() - began)
        if left < min(case.seconds, args.slice_minutes * 60):
            print(f"not begun in this slice: {case.name}")
            continue
        result = _run(case.name, case.seconds, args.out)
        known.append(result)
        with record.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['state']:7} {case.name} {result['why'][:200]}", flush=True)
    if not args.dry_run:
        from gpu.page import machine, page

        PAGE.write_text(page(known, CASES, machine()))
    return int(any(result["state"] != "passed" for result in known))


def _parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-results")))
    options.add_argument("--slice-minutes", type=float, default=8.0)
    options.add_argument("--dry-run", action="store_true")
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


def _run(name: str, seconds: int, out: Path) -> dict[str, Any]:
    """One case in a process group of its own, so that its time limit ends all of it."""
    began = time.monotonic()
    words = [sys.executable, __file__, "--case", name, "--out", str(out)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        stdout, stderr = "", f"ended after {seconds} s"
    printed = stdout.strip().splitlines()[-1:] or [""]
    try:
        result: dict[str, Any] = json.loads(printed[0])
    except ValueError:
        result = {"state": "failed", "why": stderr[-1000:], "measured": {}}
    return {"name": name, **result, "seconds": round(time.monotonic() - began, 1)}


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
