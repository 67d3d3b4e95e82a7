"""What each threshold decides: recorded runs and traces diagnosed again with it halved and doubled.

Usage: ``python benchmarks/sensitivity.py PATH... [--factor 2] [--output FILE]``

PATH: run directories, folders that hold some (the folder of ``accuracy.py``'s results), traces.
For every :class:`~tdiag.model.threshold.Threshold` of the rules and of the verdict, all of them are
diagnosed with the threshold divided and multiplied by the factor. Counted are the diagnoses whose
class changes, and those whose ranked findings change in code or order. A threshold that changes
none is either safe within that factor, or no recording here comes near it; one that changes many
has to be measured well.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import tdiag.diagnose
import tdiag.rules
from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_trace.trace_files import read_file
from tdiag.evidence.store import Evidence
from tdiag.model.threshold import Threshold

Answer = tuple[str, tuple[str, ...]]  # the class, and the codes of the ranked findings


@dataclass
class Declared:
    """A threshold and every module attribute that holds it; the first is where it is declared."""

    value: Threshold
    held_by: list[tuple[ModuleType, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        module, name = self.held_by[0]
        return f"{module.__name__.removeprefix('tdiag.')}.{name}"

    def set(self, value: float) -> None:
        for module, name in self.held_by:
            setattr(module, name, value)


def declared() -> list[Declared]:
    """Every threshold of the rules and of the verdict, by where it is declared."""
    found: dict[int, Declared] = {}
    for package in (tdiag.rules, tdiag.diagnose):
        names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
        # Helpers first: a rule that uses a helper's threshold does not declare it.
        names.sort(key=lambda name: name.startswith("td"))
        modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
        for module in [package, *modules]:
            for name, value in vars(module).items():
                if isinstance(value, Threshold):
                    found.setdefault(id(value), Declared(value)).held_by.append((module, name))
    return list(found.values())


def recordings(paths: Sequence[Path]) -> Iterator[Evidence]:
    for path in paths:
        for run in sorted(path.rglob("run.json")):
            yield load_run(run.parent)
        for trace in [path] if path.is_file() else sorted(path.glob("*.json.gz")):
            yield read_file(trace).evidence


def answer(evidence: Evidence) -> Answer:
    found = diagnose(copy.copy(evidence))
    ranked = [f.code for f in found.findings if not f.advisory and f.recoverable_ns > 0]
    return found.verdict.cls, tuple(ranked)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("paths", nargs="+", type=Path)
    options.add_argument("--factor", type=float, default=2.0)
    options.add_argument("--output", type=argparse.FileType("w"), default=sys.stdout)
    args = options.parse_args()
    all_evidence = [(evidence, answer(evidence)) for evidence in recordings(args.paths)]
    print(f"{len(all_evidence)} recordings", file=sys.stderr)
    rows = []
    for threshold in declared():
        row = []
        for factor in (1 / args.factor, args.factor):
            threshold.set(threshold.value * factor)
            answers = [(answer(evidence), before) for evidence, before in all_evidence]
            row.append(sum(now[0] != before[0] for now, before in answers))
            row.append(sum(now != before for now, before in answers))
        threshold.set(threshold.value)
        rows.append((max(row), threshold, row))
        print(threshold.name, row, file=sys.stderr, flush=True)
    rows.sort(key=lambda entry: (-entry[0], entry[1].name))
    heads = ["class ÷", "findings ÷", "class ×", "findings ×"]
    print(f"| threshold | value | {' | '.join(heads)} |", file=args.output)
    print("|---|---|" + "--:|" * len(heads), file=args.output)
    for _, threshold, row in rows:
        value = f"{threshold.value} {threshold.value.unit}"
        cells = " | ".join(str(number or "") for number in row)
        print(f"| `{threshold.name}` | {value} | {cells} |", file=args.output)
    print(f"\n{len(all_evidence)} recordings, factor {args.factor:g}", file=args.output)


if __name__ == "__main__":
    main()
