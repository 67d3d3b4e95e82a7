"""How right the predictions and trials are: writes docs/accuracy.md and docs/accuracy.svg.

Usage: ``python benchmarks/accuracy_page.py``

From ``accuracy.jsonl``, ``drawn.jsonl`` and ``trials.jsonl`` beside this file, and from the rules;
a test fails while the page differs from them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planted import judging
from planted.drawn import draw
from planted.judging import times

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
CLOSE = 0.10  # of the fix by hand: the target
BUSY_LOAD = 1.5  # of one-minute load average: a single training makes 1
IN_TURNS = (9, 10, 11, 12)  # seeds whose programs were alive at once
SEEDS, DRAWN = (2, 4, 5, 6, 7, *IN_TURNS), 64  # seeds 1 and 3 were not run whole
SIZE, MARGIN, MOST = 420, 44, 128.0  # pixels, pixels, times as fast

Row = dict[str, Any]


def rows_of(name: str, kind: str | None = "") -> list[Row]:
    """``kind`` None: all of them."""
    file = HERE / name
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if kind in (None, row.get("kind", ""))]


def idle(rows: list[Row]) -> str:
    """What is known of how idle the machine was."""
    loads = sorted(row["load"] for row in rows)
    busy = sum(load > BUSY_LOAD for load in loads)
    text = (f"Load average at the start: {loads[0]:.1f} to {loads[-1]:.1f}, median"
            f" {statistics.median(loads):.1f}")  # fmt: skip
    others = "other programs, or the measurement before it, were running"
    also = f"; above {BUSY_LOAD} in {busy} of {len(rows)}: {others}"
    return f"{text}{also if busy else ''}."


# Predicted against measured --------------------------------------------------------------------


def paired(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("predicted") and "measured" in row]


def middle(row: Row) -> float:
    low, high = row["predicted"]
    return math.sqrt(low * high)


def holds(row: Row) -> bool:
    low, high = row["predicted"]
    return bool(low <= row["measured"] <= high)


def of_predictions(rows: list[Row], drawn: list[Row]) -> list[str]:
    """``drawn``: outcomes of drawn cases, which count beside these."""
    done = paired(rows)
    held = list(map(holds, done))
    widths = [row["predicted"][1] / row["predicted"][0] for row in done]
    off = [middle(row) / row["measured"] for row in done]
    low = sum(row["measured"] > row["predicted"][1] for row in done)
    ranges = [x for x in drawn if x["range"] is not None]
    both = held + [x["range"] for x in ranges]
    all_widths = statistics.median(widths + [x["width"] for x in ranges])
    all_off = times(off + [x["off"] for x in ranges])
    seeds = f"{IN_TURNS[0]} to {IN_TURNS[-1]}"
    lines = [
        f"| | these | with the drawn ones of seeds {seeds} | target |",
        "|---|---|---|---|",
        f"| range holds the gain | {sum(held)} of {len(held)} |"
        f" {sum(both)} of {len(both)} | 80 % |",
        f"| width of a range, high ÷ low, median | {statistics.median(widths):.2f} |"
        f" {all_widths:.2f} | ≤ 2.5 |",
        f"| middle of a range off by, median | {times(off):.2f}× | {all_off:.2f}× | ≤ 1.25× |",
        "",
        f"Of the misses {low} predicted too little,"
        f" {len(done) - low - sum(held)} too much. {idle(done)}",
        "",
        "![predicted against measured](accuracy.svg)",
        "",
        "| case | predicted | measured (its pairs) | in the range |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {row['name']} | {_span(row['predicted'])} | {row['measured']:.2f}"
        f" ({_span(row['span'])}) | {'yes' if holds(row) else '**no**'} |"
        for row in sorted(done, key=lambda row: -row["measured"])
    ]


def _span(ends: Iterable[float]) -> str:
    return "–".join(f"{end:.2f}" for end in ends)


def scatter(rows: list[Row]) -> str:
    """Each case a bar from the low to the high end of its range, at what was measured."""

    def at(value: float) -> float:
        share = (math.log2(value) + 1) / (math.log2(MOST) + 1)  # from 0.5 on
        return MARGIN + max(0.0, min(1.0, share)) * (SIZE - 2 * MARGIN)

    def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
        return (f'<line x1="{x1:.1f}" y1="{SIZE - y1:.1f}" x2="{x2:.1f}" y2="{SIZE - y2:.1f}"'
                f" {style}/>")  # fmt: skip

    def words(x: float, y: float, text: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{SIZE - y:.1f}" text-anchor="middle" {more}>{text}</text>'

    low, high = at(0.5), at(MOST)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}"'
        ' font-family="sans-serif" font-size="11" fill="#555">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="#fff"/>',
        line(low, low, high, high, 'stroke="#999" stroke-dasharray="4 3"'),
    ]
    for power in range(int(math.log2(MOST)) + 1):
        place = at(2.0**power)
        drawn += [
            line(place, low, place, high, 'stroke="#eee"'),
            line(low, place, high, place, 'stroke="#eee"'),
            words(place, low - 14, f"{2**power}×"),
            words(low - 16, place - 4, f"{2**power}×"),
        ]
    for row in paired(rows):
        x, (least, most) = at(row["measured"]), map(at, row["predicted"])
        colour = "#2a7" if holds(row) else "#c33"
        drawn += [
            line(x, least, x, most, f'stroke="{colour}" stroke-opacity="0.5" stroke-width="2"'),
            f'<circle cx="{x:.1f}" cy="{SIZE - at(middle(row)):.1f}" r="3" fill="{colour}"/>',
        ]
    centre = (low + high) / 2
    drawn += [
        words(centre, low - 32, "measured: the fix made by hand, times as fast"),
        words(0, 0, "predicted range, its middle", f'transform="translate(14 {centre}) rotate(-90)'
              f' translate(0 {-SIZE})"'),
        "</svg>\n",
    ]  # fmt: skip
    return "\n".join(drawn)


# Drawn cases -----------------------------------------------------------------------------------


def of_drawn(rows: list[Row]) -> list[str]:
    """By the seed that drew them; as tdiag judged them when they were run."""
    heads = "seed", "cases", "class", "line", "range", "width, median", "middle off", "false alarms"
    lines = [f"| {' | '.join(heads)} |", "|--:|--:|---|---|---|--:|--:|---|"]
    for seed in SEEDS:
        right = outcomes(seed, rows)
        ranges = [x for x in right if x["width"]]
        if not ranges:
            continue
        cells = (
            seed, len(right), *(_share(right, what) for what in ("class", "line", "range")),
            f"{statistics.median(x['width'] for x in ranges):.2f}",
            f"{times(x['off'] for x in ranges):.2f}×", _share(right, "alarm"),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, "| target | | 95 % | 90 % | 80 % | ≤ 2.5 | ≤ 1.25× | 0 |"]


def outcomes(seed: int, rows: list[Row]) -> list[Row]:
    """Of the seed's cases that ran, as :func:`planted.judging.outcome` gives them."""
    cases = {case.name: case for case in draw(seed, DRAWN)}
    done = [row for row in rows if row["name"] in cases and "failed" not in row]
    return [judging.outcome(cases[row["name"]], row) for row in done]


def _share(right: list[Row], what: str) -> str:
    known = [x[what] for x in right if x[what] is not None]
    return f"{sum(known)} of {len(known)}" + (f" ({sum(known) / len(known):.0%})" if known else "")


# Trials ----------------------------------------------------------------------------------------


def interval(row: Row) -> str:
    return f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if row["speedup"] else ""


def of_nothing(rows: list[Row]) -> list[str]:
    """Of a change that does nothing, by change."""
    rows = [row for row in rows if "failed" not in row]
    if not rows:
        return ["Not measured yet."]
    lines = ["| change | trials | claim an effect | no effect | unclear | read | s, median |",
             "|---|--:|--:|--:|--:|---|--:|"]  # fmt: skip
    changes = dict.fromkeys(row["name"].partition(" ")[2] for row in rows)
    for change in (*changes, ""):
        mine = [row for row in rows if row["name"].endswith(change)]
        said = Counter(row["answer"] for row in mine)
        read = sorted(row["speedup"] - 1 for row in mine if row["speedup"])
        span = f"{read[0]:+.1%} to {read[-1]:+.1%}" if read else ""
        seconds = statistics.median(row["seconds"] for row in mine)
        claims = said["faster"] + said["slower"]
        cells = (f"`{change}`" if change else "all", len(mine), claims, said["no effect"],
                 said["unclear"], span, f"{seconds:.0f}")  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    claimed = [row for row in rows if row["answer"] in ("faster", "slower")]
    lines += ["", *(f"Claimed by `{r['name']}`: {r['answer']}, {interval(r)}." for r in claimed)]
    return [*lines, f"Target: 2 claims in 100 trials at most. {idle(rows)}"]


def close(row: Row) -> bool:
    return bool(abs(row["speedup"] / row["measured"] - 1) <= CLOSE)


def may_be_close(row: Row) -> bool:
    """As far as the trial's interval and the pairs by hand tell."""
    least, most = row["span"]
    low, high = row["low"], row["high"]
    return bool(high and low <= most * (1 + CLOSE) and least * (1 - CLOSE) <= high)


def of_twins(rows: list[Row], predictions: list[Row]) -> list[str]:
    predicted = {row["name"]: row.get("predicted") for row in predictions}
    done = [row for row in rows if "measured" in row]
    if not done:
        return ["Not measured yet."]
    lines = ["| case | change | trial | by hand (its pairs) | trial ÷ by hand | predicted |",
             "|---|---|---|---|--:|---|"]  # fmt: skip
    for row in done:
        ratio = f"{row['speedup'] / row['measured']:.2f}" if row["speedup"] else ""
        trial = interval(row) or f"{row['answer']}: {row['why']}"
        cells = (row["name"], f"`{row['change']}`", trial,
                 f"{row['measured']:.2f} ({_span(row['span'])})", ratio,
                 _span(predicted.get(row["name"]) or ()))  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    tried = [row for row in done if row["speedup"]]
    if not tried:
        return lines
    off = times(row["speedup"] / row["measured"] for row in tried)
    apart = f" Not applied, and not counted: {len(done) - len(tried)}." if tried != done else ""
    return [
        *lines, "",
        f"Within 10 % of the fix by hand: {sum(map(close, tried))} of {len(tried)} (target: 90 %)."
        f" As far as the intervals tell: {sum(map(may_be_close, tried))}. Off by {off:.2f}× in the"
        f" median.{apart} {idle(done)}",
    ]  # fmt: skip


def of_samples(rows: list[Row]) -> list[str]:
    done = [row for row in rows if "failed" not in row]
    if not done:
        return ["Not measured yet."]
    lines = ["| sample | verdict | trials | by hand | s of trials |", "|---|---|---|---|--:|"]
    for row in done:
        tried = [f"`{t['change']}` {t['answer']} {interval(t)}".strip() for t in row["tried"]]
        tried += [f"`{change}`: no time left" for change in row["untried"]]
        proven = f"{row['class']}, {'proven' if row['proven'] else 'not proven'}"
        lines.append(f"| {row['name']} | {proven} | {'; '.join(tried) or 'none'} |"
                     f" {row['measured']:.2f} | {row['trials_s']:.0f} |")  # fmt: skip
    return [*lines, "", f"Target: 120 s for all trials of a sample. {idle(done)}"]


def page() -> str:
    predictions, drawn = rows_of("accuracy.jsonl"), rows_of("drawn.jsonl", None)
    parts = {
        "Predicted gains": (
            "Planted bottlenecks (`benchmarks/planted/`): the range that the finding predicts,"
            " against bare runs of the script with its fix made by hand.",
            of_predictions(predictions, [x for seed in IN_TURNS for x in outcomes(seed, drawn)]),
        ),
        "Drawn cases": (
            "64 programs for each seed: causes, styles, models and sizes drawn, a quarter with two"
            " causes, an eighth healthy. As tdiag judged them when they were run, when nothing had"
            " been fitted to their seed; but 20 of seed 2 were judged again by a later version, and"
            " one false alarm of seed 5 was mended before its last 30. Gains are of bare runs, one"
            " after the other; from seed 9 on, of programs that are alive at once and run in turns"
            " of 50 ms. [Who ran what, when, and what was wrong]"
            "(../benchmarks/README.md#drawn-cases).",
            of_drawn(drawn),
        ),
        "Trials of nothing": (
            "A change that applies and saves no work: an empty function frozen, a patch of a"
            " comment, the number of threads that the script sets itself.",
            of_nothing(rows_of("trials.jsonl", "nothing")),
        ),
        "Trials against the fix made by hand": (
            "Planted cases whose fix `tdiag try` can switch on.",
            of_twins(rows_of("trials.jsonl", "twins"), predictions),
        ),
        "Samples": (
            "`tdiag run --profiling --try` of each sample script, against bare runs of its fixed"
            " version. A ceiling leaves a part out: it bounds the gain and does not equal it.",
            of_samples(rows_of("trials.jsonl", "samples")),
        ),
    }
    lines = [
        "# Accuracy",
        "",
        "Written by `python benchmarks/accuracy_page.py` from the benchmarks' results. All on 2"
        " shared cores without a device. Gains are ratios of step times, 2.00 is twice as fast. The"
        " [table of rules](rules/README.md) says which gains a trial can measure.",
    ]
    for heading, (what, found) in parts.items():
        lines += ["", f"## {heading}", "", what, "", *found]
    return "\n".join(lines) + "\n"


def main() -> None:
    (DOCS / "accuracy.md").write_text(page(), encoding="utf-8")
    (DOCS / "accuracy.svg").write_text(scatter(rows_of("accuracy.jsonl")), encoding="utf-8")


if __name__ == "__main__":
    main()
