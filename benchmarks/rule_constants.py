"""The constants of tdiag that were measured, measured again on this machine.

Usage: ``python benchmarks/rule_constants.py [NAME ...] [--out FILE | --results FILE]``

NAME is ``module.CONSTANT`` or the beginning of one (``td702``, ``feed.PICK_NS``); all without. One
core unless a measurement says two; works that are compared run interleaved, in CPU time, and the
median counts. "Agrees": the value in use is within a fifth of what this machine gives (0.01 of a
small one). "Covers": it is a bound that leaves more room, because another machine gave more.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import time
from pathlib import Path

import torch
from constants import Figures, Is, load

from tdiag.model.threshold import Threshold

NEAR, SMALL = 0.2, 0.01
PACKAGES = ("tdiag.rules", "tdiag.diagnose")


def threshold(name: str) -> Threshold:
    """The value in use, from tdiag itself."""
    module, _, constant = name.partition(".")
    for package in PACKAGES:
        if importlib.util.find_spec(f"{package}.{module}"):
            found = getattr(importlib.import_module(f"{package}.{module}"), constant)
            assert isinstance(found, Threshold), name
            return found
    raise LookupError(name)


def known(asked: str) -> list[str]:
    """The constants whose names begin so."""
    return [name for name in load() if name.lower().startswith(asked.lower())]


def verdict(used: float, figures: Figures, what: Is) -> str:
    least, most = min(figures.values()), max(figures.values())
    if what == "between":
        return "agrees" if least < used < most else "differs"
    measured = chosen(figures, what)
    if abs(used - measured) <= max(NEAR * abs(measured), SMALL):
        return "agrees"
    if what == "median":
        return "agrees" if least <= used <= most else "differs"
    return "covers" if (used < least if what == "least" else used > most) else "differs"


def chosen(figures: Figures, what: Is) -> float:
    values = figures.values()
    return {"least": min, "most": max}.get(what, statistics.median)(values)


def row(name: str, figures: Figures) -> str:
    used, what = threshold(name), load()[name].what
    least, middle, most = (chosen(figures, one) for one in ("least", "median", "most"))
    return (
        f"| `{name}` | {used:.4g} | {what} | {middle:.4g} | {least:.4g} to {most:.4g} |"
        f" {verdict(used, figures, what)} |"
    )


def recorded(path: Path) -> dict[str, Figures]:
    """The last figures of each constant that is still measured."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["constant"]: line["measured"] for line in lines if line["constant"] in load()}


def measured(name: str, done: dict[object, Figures]) -> dict[str, object]:
    """One line of the record; ``done``: figures of functions that measure several constants."""
    run, what = load()[name]
    load_before = os.getloadavg()[0]
    if run not in done:
        done[run] = run()
    used = threshold(name)
    return {
        "constant": name, "used": float(used), "unit": used.unit, "is": what,
        "measured": done[run], "answer": verdict(used, done[run], what),
        "torch": torch.__version__, "cores": len(os.sched_getaffinity(0)), "load": load_before,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--out", type=Path, help="append one JSON line each")
    options.add_argument("--results", type=Path, help="only print what was recorded in this file")
    args = options.parse_args()
    names = [name for asked in args.names or [""] for name in known(asked)]
    unknown = [asked for asked in args.names if not known(asked)]
    if unknown:
        options.error(f"no measurement of {', '.join(unknown)}; there are {', '.join(load())}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| constant | in use | is the | measured, median | range | |")
    print("|---|--:|---|--:|---|---|")
    if args.results:
        for name, figures in sorted(recorded(args.results).items()):
            if name in names:
                print(row(name, figures))
        return
    done: dict[object, Figures] = {}
    for name in names:
        line = measured(name, done)
        print(row(name, done[load()[name].run]), flush=True)
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
