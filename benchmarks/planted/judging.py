"""What tdiag says of a drawn case against what was planted, and the tables of it.

- class: the planted one; of two causes, that of the one whose fix alone saves more, or either where
  the smaller saves at least 85 % of the larger;
- line: the first finding points at a line of a cause (that which makes the loader is right for what
  is wrong in fetching); apart from that, whether the first three do, whether one of them points at
  a line that does the work, and whether they have both causes, where each alone is not weak;
- range: what fixing the cause alone gains lies in what the finding at its line predicts. It is not
  judged where the twin makes another change than the finding advises (``Waste.twin``);
- false alarm: a healthy case of another class than ``compute``, or with a finding that promises
  more than 10 %. What a fixed twin still loses to the same program without the cause is measured,
  and twins that lose more than that are not judged;
- weak: fixing it (all that was planted) gains less than 1.15 times: counted, not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tdiag.rules.base import known_to

from .drawn import Drawn

WEAK, ALARM, TIE = 1.15, 1.10, 0.85
JUDGED = (
    "class",
    "code",
    "line",
    "line in three",
    "work in three",
    "both in three",
    "range",
    "alarm",
)
Row = dict[str, Any]


def judge(case: Drawn, diagnosis: dict[str, Any]) -> Row:
    """What was found; nothing of it depends on what the twins took."""
    ranked = [f for f in diagnosis["findings"] if not f["advisory"] and f["recoverable_ns"] > 0]
    step = diagnosis["step"]
    return {
        "name": case.name,
        "kind": kind(case),
        "what": [waste.what for waste in case.wastes],
        "amounts": case.amounts,
        "class": diagnosis["verdict"]["class"],
        "confidence": diagnosis["verdict"]["confidence"],
        "summary": diagnosis["verdict"]["summary"],
        "findings": [_finding(case, f) for f in ranked],
        "step_ms": step and step["mean_ns"] / 1e6,
    }


def kind(case: Drawn) -> str:
    if case.healthy:
        return "fixed twin" if case.twin else "healthy"
    if len(case.wastes) > 1:
        return "two causes"
    return next((k for k in ("DATA", "MODEL", "LOSS", "AFTER") if k in case.wastes[0].slow), "rest")


def _finding(case: Drawn, finding: dict[str, Any]) -> Row:
    """``of``: the causes at whose lines it points, by index; ``fix``: of these, the ones whose twin
    makes the change that it advises."""
    place, gain = finding["location"], finding["speedup"]
    at = (Path(place["file"]).name, place["line"]) if place else None
    of = [k for k in range(len(case.wastes)) if at in case.right(k)]
    cures = [waste.twin or waste.codes for waste in case.wastes]
    return {
        "code": finding["code"],
        "at": at,
        "of": of,
        "fix": [
            k
            for k, codes in enumerate(cures)
            if (finding["code"] in codes if codes else k in of)
            and (k in of or not case.right(k) or len(cures) == 1)
        ],
        "speedup": gain and [gain["low"], gain["high"]],
    }


def outcome(case: Drawn, row: Row) -> Row:
    """What was right, None where it is not judged."""
    result: Row = dict.fromkeys((*JUDGED, "width", "off"))
    if case.healthy:
        promised = [f["speedup"][1] for f in row["findings"] if f["speedup"]]
        if not case.twin or row.get("gain", 1.0) <= ALARM:
            result["alarm"] = row["class"] != "compute" or max(promised, default=1.0) > ALARM
        return result
    if row.get("gain", WEAK) < WEAK:
        return result
    result["class"] = row["class"] in expected(case, row)
    beside = {code for waste in case.wastes for code in waste.beside}
    first_three = [f for f in row["findings"] if f["code"] not in beside][:3]
    codes = {code for waste in case.wastes for code in waste.codes}
    if all(waste.codes for waste in case.wastes):
        result["code"] = bool(first_three) and first_three[0]["code"] in codes
    if case.right():
        result["line"] = bool(first_three and first_three[0]["of"])
        result["line in three"] = any(f["of"] for f in first_three)
    if work := case.right(work=True):
        result["work in three"] = any(f["at"] and tuple(f["at"]) in work for f in first_three)
    if len(case.wastes) > 1 and min(row.get("gains", [WEAK])) >= WEAK:
        result["both in three"] = len({k for f in first_three for k in f["of"]}) > 1
    mine = next((f for f in row["findings"] if f["fix"] and f["speedup"]), None)
    if mine and "gains" in row:
        low, high = mine["speedup"]
        result["range"] = low <= row["gains"][mine["fix"][0]] <= high
        result["width"] = high / low
        result["off"] = math.sqrt(low * high) / row["gains"][mine["fix"][0]]  # the middle
    return result


def expected(case: Drawn, row: Row) -> set[str]:
    """The classes that are right."""
    if case.healthy:
        return {"compute"}
    saved = [1 - 1 / gain for gain in row.get("gains", [2.0] * len(case.wastes))]
    lead = [w for w, s in zip(case.wastes, saved, strict=True) if s >= TIE * max(saved)]
    return {cls for waste in lead for cls in (waste.cls, *waste.also)}


def gains(case: Drawn, taken: dict[str, list[float]]) -> Row:
    """``gain``: of fixing all; ``gains``: of fixing each alone. Medians of ratios by turn."""

    def ratio(side: str) -> float:
        return statistics.median(a / b for a, b in zip(taken["slow"], taken[side], strict=True))

    alone = [f"only {k}" for k in range(len(case.wastes))] if len(case.wastes) > 1 else ["fixed"]
    row: Row = {"taken": taken, "gain": ratio("fixed")}
    return row if case.healthy else row | {"gains": [ratio(side) for side in alone]}


def summarise(rows: list[Row], cases: dict[str, Drawn]) -> None:
    """The tables, Markdown; shares with Wilson's 95 % interval."""
    done = [(row, outcome(cases[row["name"]], row)) for row in rows if "failed" not in row]
    print("| case | expected | verdict | first findings, * at a cause | predicted | measured |")
    print("|---|---|---|---|---|---|")
    for row, right in done:
        case = cases[row["name"]]
        names = [f["code"] + "*" * bool(f["of"]) for f in row["findings"][:3]]
        mine = next((f for f in row["findings"] if f["fix"] and f["speedup"]), None)
        predicted = "–".join(f"{x:.2f}" for x in mine["speedup"]) if mine else ""
        wrong = right["class"] is False or right["alarm"]
        cells = (
            row["name"],
            "/".join(sorted(expected(case, row))),
            f"**{row['class']}**" if wrong else row["class"],
            " ".join(names),
            predicted if right["range"] is not False else f"**{predicted}**",
            " ".join(f"{x:.2f}" for x in row.get("gains", [row["gain"]] if "gain" in row else [])),
        )
        print(f"| {' | '.join(cells)} |")
    kinds = sorted({row["kind"] for row, _ in done})
    print("\n| | all | " + " | ".join(kinds) + " |\n" + "|---" * (len(kinds) + 2) + "|")
    for what in JUDGED:
        print(f"| {what} | " + " | ".join(_by_kind(done, what, kinds)) + " |")
    ranges = [right for _, right in done if right["width"]]
    if ranges:
        width = statistics.median(right["width"] for right in ranges)
        off = times(right["off"] for right in ranges)
        print(f"\nmedian width of the ranges, high ÷ low: {width:.2f}; middle off by {off:.2f}")
    weak = [row["name"] for row, right in done if not any(v is not None for v in right.values())]
    print(f"\nnot judged, for the waste is too weak or the twin is no better: {weak}")
    open_ = [row["name"] for row, _ in done if cases[row["name"]].wastes and "gain" not in row]
    print(f"\njudged although their twins were not measured, so some may be too weak: {open_}")
    for row in rows:
        if "failed" in row:
            print(f"\nfailed: {row['name']}: {row['failed']}")


def times(values: Iterable[float]) -> float:
    """The median of how far these ratios are from 1, as a ratio of at least 1."""
    return math.exp(statistics.median(abs(math.log(value)) for value in values))


def _by_kind(done: list[tuple[Row, Row]], what: str, kinds: list[str]) -> list[str]:
    def share(chosen: Callable[[Row], bool]) -> str:
        known = [right[what] for row, right in done if chosen(row) and right[what] is not None]
        if not known:
            return "–"
        low, high = known_to(sum(known) / len(known), len(known))
        return f"{sum(known)} of {len(known)} ({low:.0%} to {high:.0%})"

    return [share(lambda row: True), *(share(lambda row, k=k: row["kind"] == k) for k in kinds)]
