"""The constants of tdiag that were measured, measured again on this machine.

Usage: ``python benchmarks/rule_constants.py [NAME ...] [--out benchmarks/rule_constants.jsonl]``

NAME is ``module.CONSTANT`` or the beginning of one (``td702``, ``feed.PICK_NS``); all without. One
core unless a measurement says two; works that are compared run interleaved, in CPU time, and the
median counts. "Agrees": the value in use is within a fifth of what this machine gives (0.02 of a
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

NEAR, SMALL = 0.2, 0.02
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


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--out", type=Path, help="append one JSON line each")
    args = options.parse_args()
    names = [name for asked in args.names or [""] for name in known(asked)]
    unknown = [asked for asked in args.names if not known(asked)]
    if unknown or not names:
        options.error(f"no measurement of {', '.join(unknown)}; there are {', '.join(load())}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    done: dict[object, Figures] = {}
    print("| constant | in use | is the | measured, median | range | |")
    print("|---|--:|---|--:|---|---|")
    for name in names:
        run, what = load()[name]
        used, before = threshold(name), os.getloadavg()[0]
        if run not in done:
            done[run] = run()
        figures = done[run]
        answer = verdict(used, figures, what)
        least, middle, most = (chosen(figures, one) for one in ("least", "median", "most"))
        print(f"| `{name}` | {used:.4g} | {what} | {middle:.4g} | {least:.4g} to {most:.4g} |"
              f" {answer} |", flush=True)  # fmt: skip
        if args.out:
            line = {
                "constant": name, "used": float(used), "unit": used.unit, "is": what,
                "measured": figures, "answer": answer, "torch": torch.__version__,
                "cores": len(os.sched_getaffinity(0)), "load": before,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }  # fmt: skip
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
