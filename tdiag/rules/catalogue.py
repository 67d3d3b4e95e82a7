"""Finds the rules: every module ``tdnnn_*.py`` of this package is one, without registration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

import tdiag.rules
from tdiag.errors import UsageError
from tdiag.evidence.store import Evidence
from tdiag.model.kind import Kind
from tdiag.model.threshold import Threshold
from tdiag.rules.base import NOISE_FLOOR_FRAC, Found

HEADINGS = (
    "What it measures",
    "Why it is slow",
    "What to do",
    "How the gain is computed",
    "When this advice is wrong",
)
_RULE_FILE = re.compile(r"td\d{3}_\w+")


@dataclass(frozen=True)
class Rule:
    """One rule file. ``only_if``: "clear" if the finding is kept only if no other finding matters,
    "healthy" if the verdict must also be healthy, else "".
    ``after``: codes of rules to act on first, each with the reason. ``untried``: why no change of
    `tdiag try` measures the gain, at least not in its own example. ``by_work``: with a device,
    its gain is computed from the device's time, divided among the calls by their estimated work;
    ``by_issue``: from the host's time to issue the calls."""

    code: str
    name: str
    cls: str
    doc: str
    check: Callable[..., Found | None]
    fires: Callable[[], Evidence]
    clear: Callable[[], Evidence]
    only_if: str
    after: tuple[tuple[str, str], ...]
    untried: str
    by_work: bool
    by_issue: bool
    module: ModuleType

    @property
    def source(self) -> str:
        """The file's source, read only when needed: a report does not need it."""
        return inspect.getsource(self.module)

    @property
    def title(self) -> str:
        return self.doc.splitlines()[0].rstrip(".")

    @property
    def predicts(self) -> bool:
        """Whether the rule can predict a gain; otherwise it is an advisory or a statement."""
        return "gain=" in self.source or example(self).gain is not None

    def sections(self) -> dict[str, str]:
        """The docstring by heading, in the order of :data:`HEADINGS`."""
        parts = re.split(r"^## (.+)$", self.doc, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))

    def thresholds(self) -> dict[str, Threshold]:
        return declared_in(self.module)


def declared_in(*modules: ModuleType) -> dict[str, Threshold]:
    """The thresholds that these modules declare or import, by name."""
    found = (entry for module in modules for entry in vars(module).items())
    return {name: value for name, value in found if isinstance(value, Threshold)}


def _load(module: ModuleType) -> Rule:
    return Rule(
        code=module.CODE,
        name=module.NAME,
        cls=module.CLASS,
        doc=inspect.cleandoc(module.__doc__ or ""),
        check=module.check,
        fires=module.fires,
        clear=module.clear,
        only_if=getattr(module, "ONLY_IF", ""),
        after=tuple(getattr(module, "AFTER", {}).items()),
        untried=getattr(module, "UNTRIED", ""),
        by_work=getattr(module, "BY_WORK", False),
        by_issue=getattr(module, "BY_ISSUE", False),
        module=module,
    )


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    names = sorted(found.name for found in pkgutil.iter_modules(tdiag.rules.__path__))
    files = [name for name in names if _RULE_FILE.fullmatch(name)]
    return tuple(_load(importlib.import_module(f"tdiag.rules.{name}")) for name in files)


@cache
def needs(rule: Rule) -> dict[str, tuple[type[Kind], bool]]:
    """``check``'s parameters: name → (evidence kind, required); ``X | None`` is optional."""
    hints = get_type_hints(rule.check)
    hints.pop("return", None)
    return {name: _kind(hint) for name, hint in hints.items()}


def _kind(hint: Any) -> tuple[type[Kind], bool]:
    if get_origin(hint) in (Union, types.UnionType):
        present = [arg for arg in get_args(hint) if arg is not type(None)]
        return present[0], False
    return hint, True


@cache
def example(rule: Rule) -> Found:
    """The rule's finding in its own example."""
    evidence = rule.fires()
    found = rule.check(**{name: evidence.get(kind) for name, (kind, _) in needs(rule).items()})
    assert found is not None, f"{rule.code} does not fire on its example"
    return found


def find(code_or_name: str) -> Rule:
    """The rule with this code (``TD201``, ``201``) or name; :class:`UsageError` if none has it."""
    wanted = code_or_name.strip().lower()
    for rule in all_rules():
        if wanted in {rule.code.lower(), rule.code.lower().removeprefix("td"), rule.name}:
            return rule
    known = ", ".join(rule.code for rule in all_rules())
    raise UsageError(f"no rule is called {code_or_name!r}", f"rules: {known}")


BY_WORK = (
    "the gain is computed in the same way from the device's time in forward and in backward, which"
    " is divided among the calls by their estimated work: bytes moved, or arithmetic. At the low"
    " end their work takes half as long as that of others, for the same estimate, at the high end"
    " twice. If the fix spares whole calls, the host's time to issue them goes, too."
)

BY_ISSUE = (
    "the gain is the host's time to issue these calls, replayed against the device's time: where"
    " the device is the limit, nothing is promised."
)


def page(rule: Rule) -> str:
    """The rule as a Markdown page: its own docstring, and its thresholds with their provenance."""
    title, _, body = rule.doc.partition("\n")
    lines = [
        f"# {rule.code} {rule.name}",
        "",
        f"**{title.rstrip('.')}** · class `{rule.cls}`",
        "",
        body.strip(),
    ]
    shown = example(rule)
    lines += ["", "## What it prints", "", "In an example run:", ""]
    action = [f"**{shown.fix.action}**", ""] if shown.fix.action else []
    said = [shown.summary, "", *action, *shown.fix.text.splitlines()]
    lines += [f"> {line}".rstrip() for line in said]
    if shown.fix.code:
        lines += ["", "```python", shown.fix.code, "```"]
    if rule.after:
        lines += ["", "## What to fix first, if it is found too", ""]
        lines += [f"- {find(code).code} {find(code).name}: {why}." for code, why in rule.after]
    if rule.by_work or rule.by_issue:
        lines += ["", f"With a device: {BY_WORK if rule.by_work else BY_ISSUE}"]
    if rule.predicts:
        lines += [
            "",
            f"Reported only if the fix can save {NOISE_FLOOR_FRAC:.0%} of the step or more.",
        ]
    if thresholds := rule.thresholds():
        lines += ["", "## Thresholds", "", *listed(thresholds)]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The table of all rules and the thresholds that several of them share, Markdown."""
    lines = [
        "# Rules",
        "",
        "The last column is the change of `tdiag try` that measures the rule's gain, or why"
        " there is none: then `tdiag try --diff FILE` measures your own patch. Rules without an"
        " entry predict no gain.",
        "",
        "| code | name | class | pattern | measured by |",
        "|---|---|---|---|---|",
        *(
            f"| [{r.code}]({r.code}.md) | {r.name} | {r.cls} | {r.title} | {_trial(r)} |"
            for r in all_rules()
        ),
        "",
        "## Thresholds that rules share",
        "",
        *listed(shared_thresholds()),
    ]
    return "\n".join(lines) + "\n"


def _trial(rule: Rule) -> str:
    change = example(rule).fix.intervention
    return f"`{change.partition('=')[0]}`" if change else rule.untried


def shared_thresholds() -> dict[str, Threshold]:
    """The thresholds of the helper modules."""
    names = sorted(found.name for found in pkgutil.iter_modules(tdiag.rules.__path__))
    helpers = [name for name in names if not _RULE_FILE.fullmatch(name)]
    return declared_in(*(importlib.import_module(f"tdiag.rules.{name}") for name in helpers))


def listed(thresholds: Mapping[str, Threshold]) -> list[str]:
    """A Markdown list of thresholds, one line for each."""
    return [f"- `{name} = {x} {x.unit}`: {x.source}" for name, x in thresholds.items()]


def speaking_of(words: str) -> list[Rule]:
    """Rules whose page contains all of these words, the page with most mentions first."""
    wanted = words.lower().split()
    pages = [(rule, page(rule).lower()) for rule in all_rules()]
    found = [(rule, text) for rule, text in pages if all(word in text for word in wanted)]
    found.sort(key=lambda pair: -sum(pair[1].count(word) for word in wanted))
    return [rule for rule, _ in found] if wanted else []


def explain(words: str) -> str:
    """Output of ``tdiag explain``: the page of the rule with this code or name, else a list of the
    rules that mention these words; :class:`UsageError` if none does."""
    try:
        return page(find(words))
    except UsageError:
        found = speaking_of(words)
        if not found:
            raise
    rows = "\n".join(f"- {rule.code} {rule.name}: {rule.title}" for rule in found)
    return f"Rules that mention `{words}`:\n\n{rows}\n"
