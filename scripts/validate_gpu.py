"""The whole GPU validation in one call, on a machine with a CUDA device and torch.

    python scripts/validate_gpu.py [FOLDER]

Diagnoses every sample script, runs the tests marked ``gpu``, checks that watching changes no
result, and writes ``gpu-validation.md`` (paste it into docs/gpu-validation.md), each diagnosis and
one small real trace into FOLDER (default: the folder named by $OUT, else the working directory).
tdiag need not be installed; its dependencies must be importable. Exit code 1 if anything failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = sorted(
    path for path in (ROOT / "sample_scripts").glob("*.py") if not path.name.startswith("_")
)
IDENTICAL = ("plain_loop", "functions", "trainer_class", "gan", "lbfgs", "workers_fork")
SMALL_TRACE_BYTES = 300_000


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OUT", "."))
    out.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(_paths())}
    lines = ["# GPU validation", "", *_machine(), "", *_table_head()]
    diagnoses: dict[str, Any] = {}
    failed = []
    for script in SAMPLES:
        diagnosis, problem = _diagnose(script, out, environ)
        lines.append(_row(script.stem, diagnosis, problem))
        diagnoses[script.stem] = diagnosis
        if problem:
            failed.append(f"{script.stem}: {problem}")
    (out / "diagnoses.json").write_text(json.dumps(diagnoses))
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-q"],
        cwd=ROOT, env=environ, capture_output=True, text=True,
    )  # fmt: skip
    lines += ["", "`pytest -m gpu tests/gpu`:", "", "```", tests.stdout[-3000:].strip(), "```"]
    if tests.returncode:
        failed.append("pytest -m gpu")
    differing = [name for name in IDENTICAL if not _same(name, environ)]
    same = f"{len(IDENTICAL) - len(differing)} of {len(IDENTICAL)} zoo scripts"
    lines += ["", f"Bit-identical with and without tdiag: {same}. {' '.join(differing)}"]
    failed += [f"not identical: {name}" for name in differing]
    (out / "gpu-validation.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    print("FAILED: " + "; ".join(failed) if failed else "ALL PASSED")
    return bool(failed)


def _paths() -> list[str]:
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _machine() -> list[str]:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    python = ".".join(map(str, sys.version_info[:3]))
    return [f"{name}, torch {torch.__version__}, Python {python}, commit {commit or 'unknown'}."]


def _table_head() -> list[str]:
    return ["| sample | verdict | share | step ms | first finding | budget (ms) | disturbance |",
            "|---|---|---|---|---|---|---|"]  # fmt: skip


def _diagnose(script: Path, out: Path, environ: dict[str, str]) -> tuple[Any, str]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir, output = Path(folder) / "run", Path(folder) / "diagnosis.json"
        done = subprocess.run(
            [sys.executable, "-m", "tdiag", "run", str(script), "--profiling", "--quiet",
             "--out", str(run_dir), "-o", str(output)],
            cwd=folder, env=environ, capture_output=True, text=True,
        )  # fmt: skip
        for trace in sorted((run_dir / "tensorboard").glob("*"), key=lambda p: p.stat().st_size):
            if trace.stat().st_size < SMALL_TRACE_BYTES and not list(out.glob("small.*")):
                shutil.copy(trace, out / f"small.{trace.name}")
        if not output.exists():
            return None, f"no diagnosis (exit {done.returncode}): {done.stderr[-300:]}"
        problem = f"exit {done.returncode}" if done.returncode else ""
        return json.loads(output.read_text()), problem


def _row(name: str, diagnosis: Any, problem: str) -> str:
    if diagnosis is None:
        return f"| {name} | {problem} | | | | | |"
    verdict, step = diagnosis["verdict"], diagnosis["step"]
    first = next((f for f in diagnosis["findings"] if not f["advisory"]), None)
    parts = ", ".join(f"{p['component']} {p['ns'] / 1e6:.2f}" for p in diagnosis["budget"][:5])
    disturbed = ", ".join(f"{k} {v:+.0%}" for k, v in diagnosis["perturbation"].items())
    return (
        f"| {name} | {verdict['class']} | {verdict['share']:.0%} "
        f"| {step['mean_ns'] / 1e6:.2f} | {first['code'] + ' ' + first['name'] if first else '–'} "
        f"| {parts} | {disturbed} |"
    )


def _same(name: str, environ: dict[str, str]) -> bool:
    """A zoo script prints the same RESULT digests alone and under ``tdiag run``."""
    scripts = ROOT / "tests" / "zoo" / "scripts"
    command = [f"{name if not name.startswith('workers') else 'workers'}.py", "--steps", "60"]
    plain = subprocess.run(
        [sys.executable, *command], cwd=scripts, env=environ, capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        watched = subprocess.run(
            [sys.executable, "-m", "tdiag", "run", *command[:1], "--out", f"{folder}/run",
             "--quiet", *command[1:]],
            cwd=scripts, env=environ, capture_output=True, text=True,
        )  # fmt: skip
    return plain.stdout == watched.stdout and plain.returncode == watched.returncode


if __name__ == "__main__":
    sys.exit(main())
