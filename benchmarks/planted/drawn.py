"""Cases drawn from a seed: causes × styles × sizes, mixes of two causes, and healthy ones.

Every eighth case is healthy (a well-written step that computes, or a cause's fixed twin), two of
eight mix two causes, the others plant one. Each kind goes through its causes in an order that the
seed gives, so that a few dozen cases have most of them; style, size, model and amount are drawn for
each case from (seed, number), so that a case does not depend on how many are drawn.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from . import (
    around_wastes,
    batch_wastes,
    data_wastes,
    framework_styles,
    log_wastes,
    loss_wastes,
    module_wastes,
    more_styles,
    objective_wastes,
    reading_wastes,
    sample_wastes,
    step_wastes,
    styles,
    weight_wastes,
)
from .parts import PARTS, Waste
from .sizes import BATCHES, HEALTHY, MODELS, WIDTHS

STYLES: dict[str, dict[str, str]] = {
    name.lower(): template
    for module in (styles, framework_styles, more_styles)
    for name, template in vars(module).items()
    if name.isupper() and isinstance(template, dict)
}


def _wastes(*modules: object) -> dict[str, Waste]:
    found = ((n, w) for module in modules for n, w in vars(module).items() if isinstance(w, Waste))
    return {name.lower(): waste for name, waste in found}


NEW = _wastes(
    reading_wastes,
    sample_wastes,
    batch_wastes,
    objective_wastes,
    module_wastes,
    weight_wastes,
    log_wastes,
    around_wastes,
)
OLD = {n: w for n, w in _wastes(data_wastes, loss_wastes, step_wastes).items() if w.fixed}
CAUSES = {**NEW, **OLD}
OLD_SHARE = 0.15  # of the causes drawn: those of ``cases.py``, which rules were made beside


def fits(waste: Waste, style: str) -> bool:
    """Whether the style runs the waste as it is meant: some have no use for a loader's options."""
    loaders = [p["LOADER"] for p in (waste.slow, waste.fixed) if "LOADER" in p]
    options = any("," in text or "sampler" in text for text in loaders)
    own_data = {"DATA", "MODEL"} <= set(waste.slow)
    return not (
        style in waste.without
        or (style in {"generator", "stream"} and options)
        or (style == "hugging_face" and any("collate_fn" in text for text in loaders))
        or (style == "gan" and own_data)
    )


def holes(waste: Waste) -> set[str]:
    return {*waste.slow, *waste.fixed}


@dataclass(frozen=True)
class Drawn:
    """One or two ``wastes`` (none: healthy by itself); ``amounts``: their ``$N``. ``twin``: it is
    run with all of them fixed and expected to be healthy."""

    name: str
    wastes: tuple[Waste, ...]
    amounts: tuple[int, ...]
    style: str
    size: str
    model: str
    twin: bool = False

    @property
    def healthy(self) -> bool:
        return self.twin or not self.wastes

    @property
    def one_core(self) -> bool:
        """One thread computes. Beside an idle core it would be a waste that nobody planted, but
        where batches are made workers may need that core."""
        return self.healthy or not any({"DATA", "SETUP"} & holes(waste) for waste in self.wastes)

    def files(self, fixed: Collection[int] = ()) -> dict[str, str]:
        """The program's files, the first is run; ``fixed``: the wastes, by index, that are not in
        it. The parts of the fixed ones are the twins'."""
        parts = {**PARTS, "MODEL": MODELS[self.model], "LOADER": "batch_size=$B"}
        for k, (waste, amount) in enumerate(zip(self.wastes, self.amounts, strict=True)):
            own = {**waste.slow, **(waste.fixed if k in fixed else {})}
            parts |= {hole: text.replace("$N", str(amount)) for hole, text in own.items()}
        values = {
            "$H": str(WIDTHS[self.size]),
            "$B": str(BATCHES[self.size]),
            "$CORES": str(len(os.sched_getaffinity(0))),
        }
        parts["BATCH"] = "$B"
        if "batch_size=" in parts["LOADER"]:
            parts["BATCH"] = parts["LOADER"].split("batch_size=")[1].split(",")[0].rstrip(")")
        texts = dict(STYLES[self.style])
        for place, text in texts.items():
            for hole, part in parts.items():
                text = text.replace(f"${hole}", part.strip("\n"))
            for mark, value in values.items():
                text = text.replace(mark, value)
            texts[place] = text
        return texts

    def right(self, waste: int | None = None, work: bool = False) -> set[tuple[str, int]]:
        """(file name, line) of every line of a waste (default: of any); none: it has no line.
        ``work``: only lines that do the work, not the one that makes the loader."""
        chosen = range(len(self.wastes)) if waste is None else (waste,)
        others = [k for k in range(len(self.wastes)) if k not in chosen]
        found = set()
        for name, text in _unmarked(self, others).items():
            for number, line in enumerate(text.splitlines(), 1):
                loader = (
                    not work and "# FIX" in line and any(self._cured_by_loader(k) for k in chosen)
                )
                if "# HERE" in line or loader:
                    found.add((Path(name).name, number))
        return found

    def _cured_by_loader(self, k: int) -> bool:
        waste = self.wastes[k]
        return "DATA" in waste.slow and waste.cls in {"cpu", "io", "loader"}

    def command(self) -> list[str]:
        """What follows ``python``, in the folder that holds the files."""
        first = next(iter(STYLES[self.style]))
        module = first.removesuffix(".py").replace("/", ".")
        return ["-m", module] if "/" in first else [first]


def _unmarked(case: Drawn, wastes: Collection[int]) -> dict[str, str]:
    """The case's files as they run, without the marks of some wastes: lines stay where they are."""
    bare = list(case.wastes)
    for k in wastes:
        slow = {hole: text.replace("  # HERE", "") for hole, text in bare[k].slow.items()}
        bare[k] = replace(bare[k], slow=slow)
    return replace(case, wastes=tuple(bare)).files()


def draw(seed: int, count: int) -> list[Drawn]:
    """The first ``count`` cases of a seed."""
    shuffle = random.Random(f"{seed}")
    orders = {}
    for kind in ("single", "mix", "twin"):
        orders[kind] = [*NEW]
        shuffle.shuffle(orders[kind])
    taken = dict.fromkeys((*orders, "healthy"), 0)
    cases = []
    for number in range(count):
        dice = random.Random(f"{seed}:{number}")
        kind = {1: "mix", 4: "mix", 6: "healthy"}.get(number % 8, "single")
        if kind == "healthy" and number % 16 > 8:
            kind = "twin"
        turn = taken[kind]
        taken[kind] += 1
        case = _draw(dice, kind, orders.get(kind, []), turn)
        short = f"{seed}-{number:03d}-{case.name}"
        cases.append(replace(case, name=short))
    return cases


def _draw(dice: random.Random, kind: str, order: list[str], turn: int) -> Drawn:
    style = dice.choice(sorted(STYLES))
    size = dice.choice(sorted(set(BATCHES) - {"huge"}))
    model = dice.choice(sorted(MODELS))
    if kind == "healthy":
        model, size = dice.choice(HEALTHY)
        return Drawn(f"healthy-{style}-{model}-{size}", (), (), style, size, model)
    if kind == "twin":
        order = [name for name in order if not NEW[name].left and "MODEL" not in holes(NEW[name])]
        model, size = dice.choice(HEALTHY)
    name = order[turn % len(order)]
    if kind == "single" and dice.random() < OLD_SHARE:
        name = dice.choice(sorted(OLD))
    names = [name]
    if kind == "mix":
        others = [n for n in order if not holes(CAUSES[n]) & holes(CAUSES[name])]
        names.append(dice.choice(others))
    wastes = tuple(CAUSES[n] for n in names)
    style = dice.choice([s for s in sorted(STYLES) if all(fits(w, s) for w in wastes)])
    grows = any("DATA" in waste.slow for waste in wastes)  # with the batch, as the step does
    if kind != "twin" and size == "large" and model in {"attention", "convolutions"} and not grows:
        size = "medium"
    amounts = tuple(_amount(dice, waste, size) for waste in wastes)
    label = "+".join(names) + "-fixed" * (kind == "twin")
    own = any("MODEL" in waste.slow for waste in wastes)
    text = f"{label}-{style}-{'own' if own else model}-{size}"
    return Drawn(text, wastes, amounts, style, size, model, kind == "twin")


def _amount(dice: random.Random, waste: Waste, size: str) -> int:
    """Little waste in a large step would be none, and much in a small one nearly all of it."""
    likely = {"small": (0, 1, 2), "medium": (0, 1, 2), "large": (1, 2)}.get(size, (1, 2))
    return waste.amounts[min(dice.choice(likely), len(waste.amounts) - 1)]
