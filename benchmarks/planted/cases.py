"""The cases: which waste is planted in which style, and the healthy ones.

What is expected of a case was written down here before it was run for the first time. Hold-outs
(``*``) are only counted: rules and verdict are not mended by looking at them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import data_wastes as data
from . import framework_styles, styles
from . import later_wastes as later
from . import loss_wastes as loss
from . import step_wastes as step
from . import tensor_wastes as tensor
from .parts import PARTS, Waste

STYLES: dict[str, dict[str, str]] = {
    name.lower(): template
    for name, template in {**vars(styles), **vars(framework_styles)}.items()
    if name.isupper() and isinstance(template, dict)
}

WIDE = {
    "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
    def forward(self, x):
        return self.layers(x)
""",
    "LOADER": "batch_size=256",
}
CONVOLUTIONS = {
    "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(128 * 64, 10),
        )
    def forward(self, x):
        return self.body(x.view(-1, 1, 16, 16))
""",
    "LOADER": "batch_size=64",
}
HEALTHY = Waste("wide layers, batches of 256", "compute", (), WIDE, one_core=True)
PICTURES = Waste("convolutions, batches of 64", "compute", (), CONVOLUTIONS, one_core=True)

# (waste, style, hold-out)
TABLE: tuple[tuple[Waste, str, str], ...] = (
    (data.COLD_FILES, "plain", ""),
    (data.COLD_FILES, "package", "*"),
    (data.SERVICE, "functions", ""),
    (data.SERVICE, "stream", ""),
    (data.DECOMPRESS, "trainer", ""),
    (data.DECOMPRESS, "generator", "*"),
    (data.DECOMPRESS_IN_WORKERS, "config", ""),
    (data.JSON, "hugging_face", ""),
    (data.JSON, "stream", "*"),
    (data.TOKENS, "package", ""),
    (data.LISTS, "functions", ""),
    (data.LISTS, "lightning", "*"),
    (data.SLOW_COLLATE, "trainer", ""),
    (data.MANY_FILES, "plain", ""),
    (data.RESTARTS, "functions", ""),
    (data.RESTARTS, "config", "*"),
    (data.SINGLY, "plain", ""),
    (data.PICKED, "functions", ""),
    (data.PICKED, "lightning", "*"),
    (loss.BRANCHES, "functions", ""),
    (loss.BRANCHES, "hugging_face", "*"),
    (loss.PAIRS, "lightning", ""),
    (loss.PAIRS, "accumulation", ""),
    (loss.MINING, "trainer", ""),
    (loss.SMALL_CALLS, "config", ""),
    (loss.SMALL_CALLS, "package", "*"),
    (loss.COLUMNS, "plain", ""),
    (loss.COLUMNS, "accumulation", ""),
    (loss.ROWS, "functions", ""),
    (loss.ROWS, "trainer", "*"),
    (loss.CELLS, "plain", ""),
    (loss.CELLS, "lightning", "*"),
    (loss.FOLDED, "plain", ""),
    (loss.FOLDED, "trainer", "*"),
    (step.HAND_WRITTEN, "functions", ""),
    (step.HAND_WRITTEN, "lightning", ""),
    (step.ANOMALY, "package", ""),
    (step.ANOMALY, "plain", "*"),
    (step.THREADS, "trainer", ""),
    (step.COLLECTS, "config", ""),
    (step.OFTEN, "plain", ""),
    (step.OFTEN, "trainer", "*"),
    (step.WITH_GRADIENTS, "functions", ""),
    (step.SAVES, "package", ""),
    (step.SAVES, "hugging_face", "*"),
    (step.SAVES_SHARDS, "functions", ""),
    (step.SAVES_SHARDS, "plain", "*"),
    (step.LOGS, "trainer", ""),
    (step.CLIPS, "functions", ""),
    (step.DOUBLE, "config", ""),
    (data.POOLS, "plain", ""),
    (data.POOLS, "functions", "*"),
    (data.PADDED, "plain", ""),
    (data.PADDED, "functions", "*"),
    (step.TABLE, "functions", ""),
    (step.TABLE, "trainer", "*"),
    (loss.BRANCHES, "gan", ""),
    (data.TOKENS, "gan", ""),
    (later.TOO_LARGE, "functions", ""),
    (later.ONE_BY_ONE, "package", ""),
    (later.OUTER, "config", ""),
    (tensor.UNUSED, "functions", ""),
    (tensor.JOINED, "plain", ""),
    (tensor.GRAPH, "package", ""),
    (tensor.REPEATED, "trainer", ""),
    (tensor.LOW_RANK, "config", ""),
    (tensor.ZEROS, "lightning", ""),
    (tensor.PRIME, "hugging_face", ""),
    (tensor.FROZEN, "generator", ""),
    (tensor.GATHERED, "functions", ""),
    (tensor.BRACKETS, "plain", ""),
    (later.SEPARATE, "package", ""),
    (later.DECAY, "functions", ""),
    (HEALTHY, "plain", ""),
    (HEALTHY, "gan", ""),
    (HEALTHY, "package", ""),
    (HEALTHY, "lightning", "*"),
    (HEALTHY, "stream", ""),
    (HEALTHY, "accumulation", ""),
    (PICTURES, "functions", ""),
    (PICTURES, "trainer", "*"),
    (PICTURES, "config", ""),
    (PICTURES, "hugging_face", ""),
)


@dataclass(frozen=True)
class Case:
    """``right``: (file name, line) pairs of which any is right; empty where the waste has no line
    of its own. ``name``: waste's module-level name and style."""

    name: str
    waste: Waste
    style: str
    hold_out: bool

    @property
    def healthy(self) -> bool:
        return not self.waste.codes

    @property
    def one_core(self) -> bool:
        return self.waste.one_core

    def files(self, fixed: bool) -> dict[str, str]:
        """The program's files; the first is run."""
        parts = {**PARTS, **self.waste.slow, **(self.waste.fixed if fixed else {})}
        parts["BATCH"] = parts["LOADER"].split("batch_size=")[1].split(",")[0]
        return {name: _fill(text, parts) for name, text in STYLES[self.style].items()}

    def right(self) -> set[tuple[str, int]]:
        cures = {"TD101", "TD201", "TD202", "TD203", "TD205", "TD206", "TD213", "TD217", "TD613"}
        marks = ["# HERE"] + ["# FIX"] * bool(cures & set(self.waste.codes))
        found = set()
        for name, text in self.files(fixed=False).items():
            for number, line in enumerate(text.splitlines(), 1):
                if any(mark in line for mark in marks):
                    found.add((Path(name).name, number))
        return found

    def command(self) -> list[str]:
        """What follows ``python``, in the folder that holds the files."""
        first = next(iter(STYLES[self.style]))
        return ["-m", "project.train"] if first.startswith("project/") else [first]


def _fill(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace(f"${name}", part.strip("\n"))
    return text.replace("$CORES", str(len(os.sched_getaffinity(0))))


def _names() -> dict[int, str]:
    wastes = {
        **vars(data),
        **vars(loss),
        **vars(step),
        **vars(later),
        **vars(tensor),
        "HEALTHY": HEALTHY,
        "PICTURES": PICTURES,
    }
    return {id(w): name.lower() for name, w in wastes.items() if isinstance(w, Waste)}


def _in_order() -> list[Case]:
    """Each waste once, then the healthy ones, then the other styles: a run that is cut off has
    seen something of everything."""
    cases = [Case(f"{_names()[id(w)]}-{style}", w, style, bool(held)) for w, style, held in TABLE]
    first = {case.waste.what: case.name for case in reversed(cases)}
    return sorted(
        cases, key=lambda c: 1 if c.healthy else 0 if first[c.waste.what] == c.name else 2
    )


CASES = tuple(_in_order())
