"""The tensor expression that replaces a Python loop."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tdiag.evidence.torch_ops import OpLine
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import where
from tdiag.rules.loop_heads import loop_head
from tdiag.rules.loops import SELECTING, conversions
from tdiag.rules.recurrences import carried_state


@dataclass(frozen=True)
class _Way:
    """A vectorised form: its description, and code to paste."""

    text: str
    code: str


# What a line in a loop does to one element or pair, and the form that does it for all. ``name``:
# the variable that the line assigns.
_FORMS = (
    (
        r"(?P<x>[\w.]+)\[(?P<i>\w+)\] - (?P=x)\[(?P<j>\w+)\]",
        "index all pairs at once with torch.triu_indices",
        "{i}, {j} = torch.triu_indices(len({x}), len({x}), 1)\n"
        "difference = {x}[{i}] - {x}[{j}]  # one row per pair: reduce with .sum(dim=1)",
    ),
    (
        r"\b(?P<loss>cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div"
        r"|binary_cross_entropy(?:_with_logits)?)\((?P<x>[\w.]+)\[[^\]]*\], (?P<t>[\w.]+)\[",
        "call {loss} once on the batch with reduction='none'",
        "{name} = torch.nn.functional.{loss}({x}, {t}, reduction='none')",
    ),
    (
        r"(?P<x>[\w.]+)\[(?P<i>\w+), (?P<t>[\w.]+)\[(?P=i)\]\]",
        "select one element of each row with gather",
        "{name} = {x}.gather(1, {t}[:, None])[:, 0]",
    ),
    (
        r"^\s*\w+ = (?P<ids>[\w.]+) == \w+$",
        "add up the rows of every group with index_add",
        "sums = torch.zeros(groups, rows.shape[1]).index_add(0, {ids}, rows)\n"
        "# a softmax in each group: exp(scores) / their sums[{ids}]",
    ),
    (
        r"(?P<x>[\w.]+)\[\w+\]\.(?P<f>max|min)\(\)",
        "reduce all rows at once with .{f}(dim=1)",
        "{name} = {x}.flatten(1).{f}(dim=1).values",
    ),
    (
        r"(?P<x>[\w.]+)\[\w+\]\.(?P<f>sum|mean|prod)\(\)",
        "reduce all rows at once with .{f}(dim=1)",
        "{name} = {x}.flatten(1).{f}(dim=1)",
    ),
)
# The built-in function for a loop whose text matches no form; the first match is used.
_BUILT_IN = (
    (
        r"cosine",
        _Way(
            "compute torch.nn.functional.cosine_similarity(a, b, dim=-1) over the whole batch",
            "similarity = torch.nn.functional.cosine_similarity(a[:, None], b[None, :], dim=-1)",
        ),
    ),
    (
        r"\b(dist|cdist|norm|pairwise)",
        _Way("compute all pairs at once with torch.cdist(a, b)", "distance = torch.cdist(a, b)"),
    ),
    (
        r"\b(triplet|margin|hinge|clamp|max\()",
        _Way(
            "apply the margin to whole rows, (margin + d).clamp(min=0)",
            "hinge = (margin + distance).clamp(min=0)",
        ),
    ),
)
# A penalty on the weights loops over the parameters, which have different shapes.
_PARAMETERS = re.compile(r"\bin \w[\w.]*\.(named_)?parameters\(")
_PENALTY = _Way(
    "compute the penalty on all parameters at once (a squared norm: weight_decay of the optimizer)",
    "weights = torch.nn.utils.parameters_to_vector(model.parameters())\n"
    "penalty = weights.abs().sum()  # or weights.square().sum()",
)
_WHERE = _Way(
    "replace the branch by torch.where(condition, a, b), or by a 0/1 mask as weight",
    "value = torch.where(condition, if_true, if_false)",
)
_MASK = _Way("weight by a mask instead of selecting elements", "total = (x * mask).sum()")
_REDUCE = _Way(
    "keep the values as tensors, reduce them once, and call .item() only for logging",
    "total = torch.stack(values).sum()  # values: tensors, without .item()",
)
_BROADCAST = _Way(
    "index with broadcasting (x[:, None] - y[None, :]) and reduce with .sum(dim)",
    "difference = x[:, None] - y[None, :]  # every pair\ntotal = difference.sum(dim=1)",
)
# Compares the same sequence at two places: ``labels[i] == labels[j]``, converted or not.
_SAME_LABEL = re.compile(r"([\w.]+)\[(\w+)\]\)?(?:\.item\(\))?\s*[!=]=\s*(?:\w+\()?\1\[(\w+)\]")
_ASSIGNS = re.compile(r"\s*(\w+) = ")
_READS = {"item", "float", "int", "tolist", "numpy", "cpu"}
MOST_WAYS = Threshold(
    2,
    "suggestions",
    "Heuristic: with more suggestions the reader would have to find out which one is meant.",
)


def rewriting(lines: Sequence[OpLine], python: Place | None = None, chained: bool = False) -> Fix:
    """The fix for a loop of these lines: the vectorised form that fits their text and conversions.

    Names the line that takes longest, or ``python``: a line that the loop calls. A loop that
    carries a state is to be compiled instead; ``chained``: it does, whatever its source says.
    """
    worst = max(lines, key=lambda line: line.elapsed_ns)
    loop = f" that runs {python.function}{where(python)}" if python else where(worst.at)
    if not python and (head := loop_head(worst.at)) is not None:
        loop = f"{where(head)}, most of it in line {worst.at.line}"
    made = conversions(lines)
    state = "" if python else carried_state(worst.at) or ("the state" if chained else "")
    counts = [f"{sum(line.calls for line in lines):.0f} torch calls"]
    counts += [f"{times:.0f} × {kind}()" for kind, times in sorted(made.items())]
    if state:
        return Fix(
            f"torch.compile the body of the loop{loop} ({', '.join(counts)} per step): each round"
            f" needs {state} of the one before. Or compute more sequences at once.",
            "review",
            action="Compile the loop: its rounds need each other",
            code="step = torch.compile(step)  # the body of the loop, as a function",
        )
    ways = _ways(lines, set(made))
    texts = [way.text for way in ways[: int(MOST_WAYS)]]
    return Fix(
        f"Replace the loop{loop} ({', '.join(counts)} per step) by one expression over"
        f" whole tensors: {'; '.join(texts)}.",
        "review",
        action="Replace the loop by one tensor expression",
        code="\n".join(way.code for way in ways),
    )


def _ways(lines: Sequence[OpLine], conversions: set[str]) -> list[_Way]:
    """The forms that fit the text of these lines and their conversions, most specific first."""
    places = sorted({line.at.spot for line in lines})
    if _over_parameters(places):
        return [_PENALTY]
    texts = [linecache.getline(file, line) for file, line in places]
    ways = list(dict.fromkeys(way for text in texts for way in _forms_of(text)))
    text = "".join(texts)
    if not ways:
        ways = [way for pattern, way in _BUILT_IN if re.search(pattern, text)][:1]
    by_value = "bool" in conversions or (conversions & _READS and re.search(r"\bif\b", text))
    if same := _SAME_LABEL.search(text):
        labels, i, j = same.groups()
        pairs = any("triu_indices" in way.code for way in ways)
        mask = (
            f"{labels}[{i}] == {labels}[{j}]"
            if pairs
            else f"{labels}[:, None] == {labels}[None, :]"
        )
        code = f"same = {mask}\nvalue = torch.where(same, if_same, if_different)"
        ways.insert(int(pairs), _Way(f"replace the branch by the mask `{mask}`", code))
    elif by_value:
        ways.append(_WHERE)
    elif conversions & SELECTING and not any("index_add" in way.code for way in ways):
        ways.append(_MASK)
    if conversions & _READS and not any("reduction=" in way.code for way in ways):
        ways.append(_REDUCE)
    return ways or [_BROADCAST]


def _over_parameters(places: Sequence[tuple[str, int]]) -> bool:
    """Whether each of these lines loops over a model's parameters: on the line itself, or on the
    line above it."""
    return bool(places) and all(
        any(_PARAMETERS.search(linecache.getline(file, n)) for n in (line, line - 1))
        for file, line in places
    )


def _forms_of(text: str) -> list[_Way]:
    """The vectorised forms of one line of a loop."""
    assigned = _ASSIGNS.match(text)
    found = []
    for pattern, words, code in _FORMS:
        if match := re.search(pattern, text):
            parts = {"name": assigned[1] if assigned else "value", **match.groupdict()}
            found.append(_Way(words.format(**parts), code.format(**parts)))
    return found
