"""How often tdiag is right: planted bottlenecks and healthy trainings, a verdict each.

Usage: ``python benchmarks/accuracy.py [--minutes M] [--results FILE] [--no-speed] [--rejudge]
[--twins FILE] [--drawn SEED [--count N]] [NAME ...]``

Each case of :mod:`planted.cases` is written out, diagnosed by ``tdiag run --profiling``, and, where
it has a fixed twin, measured against it: both alive, in turns of some 50 ms, in two groups of
fresh processes; the measured speed-up is the median of the groups' ratios. One JSON line a case
goes to the results file at once; a case that is in it is not run again, so that a run that was cut
off can go on (a drawn one of which only the twins are missing: only they are run). Without cases
left it only prints the tables (``--rejudge``: with what tdiag as it is now says of the recorded
runs; nothing is run):

- class: the verdict's class is the planted one;
- code: the first ranked finding is of a rule that the case names;
- line: that finding points at a line of the waste (cases with lines only);
- range: the measured speed-up lies in what the finding predicts whose fix the twin makes (cases
  with a twin and such a finding);
- false alarm: a healthy case whose class is not ``compute``, or with any ranked finding.

``--drawn`` takes cases of :mod:`planted.drawn` instead, judged as :mod:`planted.judging` says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from planted import judging
from planted.cases import CASES, Case
from planted.drawn import Drawn, draw
from planted.running import alternating, diagnose, write

from tdiag.errors import TdiagError

FAILURES = (RuntimeError, AssertionError, subprocess.SubprocessError, TdiagError)
OF_TWINS = ("slow_ms", "fixed_ms", "measured", "span")  # fields of a row


def judge(case: Case, diagnosis: dict[str, Any]) -> dict[str, Any]:
    """What was found against what was planted."""
    ranked = [f for f in diagnosis["findings"] if not f["advisory"] and f["recoverable_ns"] > 0]
    first = next((f for f in ranked if f["code"] not in case.waste.beside), None)
    cures = case.waste.twin or case.waste.codes
    mine = next((f for f in ranked if f["code"] in cures), None)
    place = first and first["location"]
    right = case.right()
    return {
        "name": case.name,
        "hold_out": case.hold_out,
        "healthy": case.healthy,
        "expected": case.waste.cls,
        "class": diagnosis["verdict"]["class"],
        "confidence": diagnosis["verdict"]["confidence"],
        "summary": diagnosis["verdict"]["summary"],
        "codes": [f["code"] for f in ranked],
        "code_right": bool(first and first["code"] in case.waste.codes),
        "line_right": (
            None
            if not right
            else bool(place and (Path(place["file"]).name, place["line"]) in right)
        ),
        "predicted": mine and mine["speedup"] and [mine["speedup"]["low"], mine["speedup"]["high"]],
        "step_ms": diagnosis["step"] and diagnosis["step"]["mean_ns"] / 1e6,
    }


def run(case: Case, base: Path, speed: bool) -> dict[str, Any]:
    """A case of the table."""
    began = time.monotonic()
    slow = write(case.files(False), base / case.name / "slow")
    try:
        result = judge(case, diagnose(case, slow))
        if speed and case.waste.fixed and result["step_ms"]:
            fixed = write(case.files(True), base / case.name / "fixed")
            sides = {"slow_ms": slow, "fixed_ms": fixed}
            taken = alternating(case, sides, base / case.name / "turns")
            result |= {**taken, **gain_of(taken)}
    except FAILURES as error:
        result = {"name": case.name, "failed": str(error)[-600:]}
    return result | {"seconds": round(time.monotonic() - began), "load": os.getloadavg()[0]}


def gain_of(taken: dict[str, list[float]]) -> dict[str, Any]:
    """Of slow and fixed in pairs. ``span``: the least and the largest ratio of a pair."""
    ratios = [a / b for a, b in zip(*taken.values(), strict=True)]
    return {"measured": statistics.median(ratios), "span": [min(ratios), max(ratios)]}


def run_drawn(
    case: Drawn, base: Path, speed: bool, row: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A drawn case: the diagnosis of what is planted, or of the fixed twin, then the twins bare.
    ``row``: of an earlier run without twins, which is not diagnosed again."""
    began = time.monotonic()
    folder = base / case.name
    every = range(len(case.wastes))
    slow = write(case.files(every if case.twin else ()), folder / "slow")
    try:
        result = row or judging.judge(case, diagnose(case, slow))
        if speed and case.wastes and result["step_ms"]:
            without = replace(case, wastes=(), amounts=()) if case.twin else case
            sides = {"slow": slow, "fixed": write(without.files(every), folder / "fixed")}
            if len(case.wastes) > 1:
                sides |= {f"only {k}": write(case.files({k}), folder / f"only_{k}") for k in every}
            taken = alternating(case, sides, folder / "turns")
            result |= judging.gains(case, taken)
    except FAILURES as error:
        result = {"name": case.name, "failed": str(error)[-600:]}
    return result | {"seconds": round(time.monotonic() - began), "load": os.getloadavg()[0]}


def rejudge(case: Case | Drawn, row: dict[str, Any], base: Path) -> dict[str, Any]:
    """The case's row, with today's diagnosis of its recorded run."""
    from tdiag.diagnose import diagnose
    from tdiag.evidence.from_run import load_run
    from tdiag.report.json import encode

    found = diagnose(load_run(base / case.name / "slow" / "run"))
    judged = judging.judge if isinstance(case, Drawn) else judge
    return row | judged(case, json.loads(encode(found)))


def share(rows: list[dict[str, Any]], key: str) -> str:
    known = [row[key] for row in rows if row.get(key) is not None]
    return f"{sum(map(bool, known))} of {len(known)}" if known else "–"


def in_range(row: dict[str, Any], span: bool = False) -> bool | None:
    """Whether what was measured (``span``: what its pairs allow) lies in what was predicted."""
    if not row.get("predicted") or "measured" not in row:
        return None
    low, high = row["predicted"]
    least, most = row["span"] if span else (row["measured"],) * 2
    return bool(low <= most and least <= high)


def summarise(rows: list[dict[str, Any]]) -> None:
    """The tables, Markdown."""
    done = [
        row | {"in_range": in_range(row), "may_be_in_range": in_range(row, span=True)}
        for row in rows
        if "failed" not in row
    ]
    for row in done:
        row["class_right"] = row["class"] == row["expected"]
        row["alarm"] = not row["class_right"] or bool(row["codes"]) if row["healthy"] else None
    print("| case | expected | verdict | first findings | line | predicted | measured |")
    print("|---|---|---|---|---|---|---|")
    for row in done:
        predicted = "–".join(f"{x:.2f}" for x in row["predicted"] or ())
        measured = f"{row['measured']:.2f}" if "measured" in row else ""
        line = {True: "right", False: "wrong", None: ""}[row["line_right"]]
        name = row["name"] + "*" * row["hold_out"]
        codes = " ".join(row["codes"][:3])
        verdict = row["class"] if row["class_right"] else f"**{row['class']}**"
        cells = (name, row["expected"], verdict, codes, line, predicted, measured)
        print(f"| {' | '.join(cells)} |")
    print("\n| expected ↓ verdict → | " + " | ".join(seen := sorted({r["class"] for r in done})))
    print("|---" * (len(seen) + 1) + "|")
    for cls in sorted({row["expected"] for row in done}):
        counts = Counter(row["class"] for row in done if row["expected"] == cls)
        print(f"| {cls} | " + " | ".join(str(counts[c] or "") for c in seen) + " |")
    print("\n| | planted | of these hold-outs | target |\n|---|---|---|---|")
    planted = [row for row in done if not row["healthy"]]
    held = [row for row in planted if row["hold_out"]]
    for what, key, target in (
        ("class right", "class_right", "95 %"),
        ("first code right", "code_right", "–"),
        ("line right", "line_right", "90 %"),
        ("measured speed-up in the predicted range", "in_range", "80 %"),
        ("the same, as far as its pairs agree", "may_be_in_range", "–"),
    ):
        print(f"| {what} | {share(planted, key)} | {share(held, key)} | {target} |")
    healthy = [row for row in done if row["healthy"]]
    print(f"| false alarms on healthy cases | {share(healthy, 'alarm')} | | 0 |")
    for row in rows:
        if "failed" in row:
            print(f"\nfailed: {row['name']}: {row['failed']}")
    print(
        f"\n{len(rows)} of {len(CASES)} cases; load {max((r['load'] for r in rows), default=0):.1f}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help="only cases whose name has this")
    options.add_argument("--minutes", type=float, default=90.0)
    options.add_argument("--results", type=Path, default=Path("accuracy.jsonl"))
    options.add_argument(
        "--twins",
        type=Path,
        metavar="FILE",
        help="planted cases: take what twins took from these results, and run the others'",
    )
    options.add_argument("--no-speed", action="store_true", help="do not run the twins")
    options.add_argument("--rejudge", action="store_true", help="diagnose the recorded runs again")
    options.add_argument("--drawn", type=int, metavar="SEED", help="cases drawn from this seed")
    options.add_argument("--count", type=int, default=60, help="how many are drawn (default: 60)")
    args = options.parse_args()
    base = args.results.resolve().with_suffix("")
    known = args.results.read_text().splitlines() if args.results.exists() else []
    chosen = CASES if args.drawn is None else draw(args.drawn, args.count)
    cases = {case.name: case for case in chosen}
    rows = {row["name"]: row for row in map(json.loads, known) if row["name"] in cases}
    if args.rejudge:
        done = {name: row for name, row in rows.items() if "failed" not in row}
        rows |= {name: rejudge(cases[name], row, base) for name, row in done.items()}
    lines = args.twins.read_text().splitlines() if args.twins else []
    earlier = {row["name"]: row for row in map(json.loads, lines)}
    end = time.monotonic() + args.minutes * 60
    for name, case in () if args.rejudge else cases.items():
        if args.names and not any(part in name for part in args.names):
            continue
        if name in rows and not (isinstance(case, Drawn) and unmeasured(case, rows[name], args)):
            continue
        if time.monotonic() > end:
            break
        if isinstance(case, Drawn):
            row = run_drawn(case, base, not args.no_speed, rows.get(name))
        else:
            taken = {k: v for k, v in earlier.get(name, {}).items() if k in OF_TWINS}
            row = run(case, base, not (args.no_speed or taken)) | taken
        rows[name] = row
        with args.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        found = row.get("codes") or [f["code"] for f in row.get("findings", ())]
        outcome = row.get("failed") or f"{row['class']} {found[:3]}"
        print(f"{name}: {outcome} ({row['seconds']} s)", file=sys.stderr, flush=True)
    shown = [r for n, r in rows.items() if not args.names or any(part in n for part in args.names)]
    if args.drawn is None:
        summarise(shown)
    else:
        judging.summarise(shown, cases)


def unmeasured(case: Drawn, row: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether an earlier run left the twins out (``--no-speed``) and this one shall not."""
    return bool(case.wastes and not args.no_speed and row.get("step_ms") and "gain" not in row)


if __name__ == "__main__":
    main()
