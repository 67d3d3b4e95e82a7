"""Time versus money: what steps cost now, with each fix, and on a bigger machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.report.document import Cell, Column, Table
from tdiag.report.summary import ranked
from tdiag.units import between, duration, only_from_below, significant

STEPS = 1_000_000  # costs are shown per million steps, because one step costs too little
FIRST = 3  # fixes shown
# The next larger machine in a price list has twice as much of everything, for twice the price. It
# shortens only what waits for the larger part (Amdahl).
BIGGER = 2
_ON_DEVICE = (
    ("a device twice as fast", ("compute",)),
    ("twice the cores for loading", ("data_wait_cpu",)),
    ("storage twice as fast", ("data_wait_io",)),
    ("links between devices twice as fast", ("comm",)),
)
_ON_CPU = (
    ("cores twice as fast", ("forward", "loss", "backward", "optimizer")),
    ("twice the cores for loading", ("data_wait_cpu",)),
    ("storage twice as fast", ("data_wait_io",)),
)


def money(diagnosis: Diagnosis, price: float | None) -> Table | None:
    """One row per option: its step time, the cost of a million steps, and the hourly price below
    which it is cheaper than the present machine. None without a step or a price (per hour, any
    currency)."""
    if price is None or diagnosis.step is None or diagnosis.step.mean_ns <= 0:
        return None
    step = diagnosis.step.mean_ns
    rows = [_row("now", duration(step), _cost(step, step, price))]
    rows += [
        _row(f"with {finding.code}'s fix", *_fixed(finding, step, price))
        for finding in ranked(diagnosis)[:FIRST]
        if finding.wins is not None
    ]
    for name, shorter in _bigger(diagnosis, step):
        worth = significant(price * step / shorter)
        cost = _cost(shorter, shorter, BIGGER * price)
        rows.append(_row(name, duration(shorter), cost, f"{worth} an hour"))
    names = ("", "step", f"{STEPS:,} steps", "cheaper up to")
    return Table(
        title="",
        columns=tuple(Column(name, "number" if name else "end") for name in names),
        rows=tuple(rows),
        note="A fix keeps the price. A bigger machine is shown at twice this price; it saves money"
        " only below the price in the last column.",
        what="option",
    )


def _row(*cells: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in (*cells, "", "")[:4])


def _fixed(finding: Finding, step: int, price: float) -> tuple[str, str]:
    wins = finding.wins
    assert wins is not None
    low, high = step / wins.high, step / wins.low
    if only_from_below(wins.low, wins.high):
        return f"at most {duration(high)}", f"at most {_cost(high, high, price)}"
    return between(low, high), _cost(low, high, price)


def _cost(low_ns: float, high_ns: float, hourly: float) -> str:
    """The cost of ``STEPS`` steps, in the currency of ``hourly``."""
    low, high = (significant(ns / 3.6e12 * STEPS * hourly) for ns in (low_ns, high_ns))
    return low if low == high else f"{low}–{high}"


def _bigger(diagnosis: Diagnosis, step: int) -> Iterator[tuple[str, float]]:
    held = {part.component: part.ns for part in diagnosis.budget}
    for name, components in _ON_DEVICE if "compute" in held else _ON_CPU:
        spent = _sum(held, components)
        if spent >= NOTICEABLE_FRAC * step:
            yield name, step - spent * (1 - 1 / BIGGER)


def _sum(held: dict[str, int], components: Sequence[str]) -> int:
    return sum(held.get(name, 0) for name in components)
