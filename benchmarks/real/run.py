"""Public training scripts that nobody here wrote, bare and under ``tdiag run --profiling``.

Usage: ``python benchmarks/real/run.py [--sources DIR] [--results FILE] [--limit S] [--table]
[NAME ...]``

``manifest.toml`` names for each script its repository and commit, the command, a small
configuration for a CPU, and what is expected of it and why, written before the first run. Nothing
of these repositories is in this one. ``DIR`` holds a clone of each at that commit::

    git clone https://github.com/karpathy/nanoGPT DIR/karpathy+nanoGPT
    git -C DIR/karpathy+nanoGPT checkout 3adf61e

Each run has a fresh copy of the script's files, at the same path. ``--profiling`` ends a run early,
and a bare run is ended after ``--limit`` seconds. So standard output is compared line by line as
far as both got, without the times in it; exit codes are compared where both ran to their end. If
the two differ, the script runs bare once more: where bare differs from bare, nothing is concluded.
One JSON line a script is appended to the results file; ``--table`` only prints the last of each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import tomllib

HERE = Path(__file__).parent
TIMES = r"\d+(\.\d+)?\s?(ms|s|sec|seconds|it/s)\b"
LIBRARIES = ("site-packages", "dist-packages", f"lib/python{sys.version_info.major}.")
DIAGNOSIS_S = 240  # four times what tdiag watches at most
COMPILED = {"breaks": "Graph break in user code", "recompiles": "Recompiling function"}


@dataclass(frozen=True)
class Ran:
    """``code`` is None where the run was ended after the limit."""

    code: int | None
    out: str
    err: str
    seconds: float


def lay_out(script: dict[str, Any], sources: Path, folder: Path) -> Path:
    """A fresh copy of the files with the configuration's data. Returns the working folder."""
    shutil.rmtree(folder, ignore_errors=True)
    clone = sources / script["repository"].replace("/", "+")
    head = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    at = subprocess.run(head, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    assert at == script["commit"], f"{clone} is at {at}, not {script['commit']}"
    for part in script.get("files", [script.get("folder", ".")]):
        shutil.copytree(clone / part, folder / part, ignore=shutil.ignore_patterns(".git"))
    for file, old, new in script.get("edits", ()):
        text = (folder / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (folder / file).write_text(text.replace(old, new))
    for make, where in script.get("data", {}).items():
        (folder / where).mkdir(parents=True, exist_ok=True)
        getattr(data, make)(folder / where)
    return folder / str(script.get("folder", "."))


def run(script: dict[str, Any], folder: Path, command: list[str], limit: float) -> Ran:
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    env |= {"MPLBACKEND": "Agg", **script.get("env", {})}
    if script.get("compiled"):
        env |= {"TORCH_LOGS": "graph_breaks,recompiles"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=err)
        code: int | None
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait(30)
            code = None
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        return Ran(code, out.read(), err.read(), seconds)


def lines(script: dict[str, Any], ran: Ran) -> list[str]:
    masks = "|".join(f"(?:{mask})" for mask in [TIMES, *script.get("mask", ())])
    kept = (x for x in ran.out.splitlines() if not re.search(script.get("drop", "(?!)"), x))
    return [re.sub(masks, "#", line) for line in kept]


def same(script: dict[str, Any], one: Ran, other: Ran, cut: bool) -> tuple[bool, int]:
    """Whether both printed the same, and how many lines were compared. ``cut``: tdiag ended the
    first early."""
    a, b = lines(script, one), lines(script, other)
    if cut or None in (one.code, other.code):
        both = max(0, min(len(a), len(b)) - 1)  # the last line of an ended run can be incomplete
        return a[:both] == b[:both], both
    return a == b and one.code == other.code, max(len(a), len(b))


def judge(script: dict[str, Any], diagnosis: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What was found against what is expected."""
    ranked = [f for f in diagnosis["findings"] if not f["advisory"] and f["recoverable_ns"] > 0]
    places = [f["location"] for f in diagnosis["findings"] if f["location"]]
    names = [f"{Path(place['file']).name}:{place['line']}" for place in places]
    first = ranked[0]["location"] if ranked else None
    verdict = diagnosis["verdict"]
    line = f"{Path(first['file']).name}:{first['line']}" if first else None
    return {
        "class": verdict["class"],
        "healthy": verdict.get("healthy"),
        "summary": verdict["summary"],
        "codes": [f["code"] for f in ranked],
        "advisory": [f["code"] for f in diagnosis["findings"] if f not in ranked],
        "line": line,
        "class_right": verdict["class"] in script["classes"],
        "line_right": line in script["lines"] if script.get("lines") else None,
        "in_library": [
            name
            for name, place in zip(names, places, strict=True)
            if any(library in place["file"] for library in LIBRARIES)
        ],
        "step_ms": diagnosis["step"] and diagnosis["step"]["mean_ns"] / 1e6,
    }


def measure(script: dict[str, Any], sources: Path, base: Path, limit: float) -> dict[str, Any]:
    folder = base / script["name"]
    result = base / f"{script['name']}.json"
    result.unlink(missing_ok=True)
    tdiag = [str(Path(sys.executable).with_name("tdiag")), "run", "--profiling", "-q"]
    tdiag += ["-o", str(result), "--out", str(base / "runs" / script["name"])]
    shutil.rmtree(base / "runs" / script["name"], ignore_errors=True)
    bare = [sys.executable]
    load = os.getloadavg()[0]
    under = run(script, lay_out(script, sources, folder), tdiag + script["command"], DIAGNOSIS_S)
    plain = run(script, lay_out(script, sources, folder), bare + script["command"], limit)
    (base / f"{script['name']}.err").write_text(under.err)
    row: dict[str, Any] = {
        "name": script["name"],
        "expected": script["classes"],
        "seconds": round(under.seconds, 1),
        "bare": round(plain.seconds, 1),
        "ended": plain.code is None,
        "codes_of_exit": [under.code, plain.code],
        "load": round(load, 1),
    }
    document = json.loads(result.read_text()) if result.is_file() else None
    cut = (
        bool(document) and under.code == 0 and len(lines(script, under)) < len(lines(script, plain))
    )
    row["identical"], row["compared"] = same(script, under, plain, cut)
    if not row["identical"]:
        (base / f"{script['name']}.under").write_text(under.out)
        (base / f"{script['name']}.bare").write_text(plain.out)
        again = run(script, lay_out(script, sources, folder), bare + script["command"], limit)
        row["identical"] = False if same(script, again, plain, False)[0] else None
    if script.get("compiled"):
        counts = [{n: ran.err.count(t) for n, t in COMPILED.items()} for ran in (under, plain)]
        far = len(lines(script, plain)) >= len(lines(script, under))
        more = any(counts[0][name] > counts[1][name] for name in COMPILED)
        row["added"] = more if far or not more else None  # bare did not get as far
    if document:
        return row | judge(script, document, folder)
    return row | {
        "failed": under.err[-400:],
        "class": None,
        "class_right": None in script["classes"],
    }


COLUMNS = ("script", "expected", "verdict", "line", "identical", "in a library")
TIMED = ("s bare", "s tdiag", "load")
IDENTICAL = {True: "yes ({} lines)", False: "**no**", None: "bare differs"}


def _verdict(row: dict[str, Any]) -> str:
    said = str(row["class"] or row.get("failed"))
    if row["class_right"]:
        return said
    return "unknown: abstained" if said == "unknown" else f"**wrong** {said}"


def table(rows: list[dict[str, Any]]) -> str:
    text = [" | ".join(COLUMNS + TIMED), "|".join(["---"] * len(COLUMNS) + ["--:"] * len(TIMED))]
    for row in rows:
        cells = (
            row["name"],
            ", ".join(map(str, row["expected"])),
            _verdict(row),
            (row.get("line") or "–") + " (**wrong**)" * (row.get("line_right") is False),
            IDENTICAL[row["identical"]].format(row["compared"]) if row["compared"] else "no output",
            ", ".join(row.get("in_library", ())) or "none",
            f"{row['bare']}{'+' * row['ended']}",
            str(row["seconds"]),
            str(row["load"]),
        )
        text.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sources", type=Path, default=Path("sources"))
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    parser.add_argument("--base", type=Path, default=Path(tempfile.gettempdir()) / "tdiag-real")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    scripts = tomllib.loads((HERE / "manifest.toml").read_text())["script"]
    unknown = set(given.names) - {script["name"] for script in scripts}
    if unknown:
        parser.error(f"not in the manifest: {', '.join(sorted(unknown))}")
    for script in () if given.table else scripts:
        if given.names and script["name"] not in given.names:
            continue
        row = measure(script, given.sources.resolve(), given.base.resolve(), given.limit)
        with given.results.open("a") as results:
            results.write(json.dumps(row) + "\n")
        print(json.dumps(row, indent=1), file=sys.stderr)
    known = {row["name"]: row for row in map(json.loads, given.results.open())}
    print(table([known[script["name"]] for script in scripts if script["name"] in known]))


if __name__ == "__main__":
    main()
