"""Finds the rules: every module ``tdnnn_*.py`` of this package is one. Nothing is registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Callable
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
_CONSTANT = re.compile(r"^([A-Z][A-Z0-9_]*)(?:: [^=]+)? = (.+)$")
_WRAPPED = re.compile(
    r"^([A-Z][A-Z0-9_]* = )([(\[{])\n(.+?),\n([)\]}])(  # fmt: skip)?", re.M | re.S
)
_NO_THRESHOLDS = {"base", "catalogue", "examples", "examples_ranks", "measures"}
_NOT_THRESHOLDS = {"CODE", "NAME", "CLASS", "ONLY_IF_CLEAR", "AFTER"}


@dataclass(frozen=True)
class Named:
    """A threshold of a module, by the name it has there."""

    name: str
    value: str
    provenance: str


@dataclass(frozen=True)
class Rule:
    """One rule file. ``only_if_clear``: a healthy statement, kept when nothing else is found.
    ``after``: codes of rules to act on first, each with why."""

    code: str
    name: str
    cls: str
    doc: str
    check: Callable[..., Found | None]
    fires: Callable[[], Evidence]
    clear: Callable[[], Evidence]
    only_if_clear: bool
    after: tuple[tuple[str, str], ...]
    module: ModuleType

    @property
    def source(self) -> str:
        """Read when it is asked for: a report needs none."""
        return inspect.getsource(self.module)

    @property
    def title(self) -> str:
        return self.doc.splitlines()[0].rstrip(".")

    @property
    def predicts(self) -> bool:
        """The rule can predict a gain; without one it is an advisory or a statement."""
        return "gain=" in self.source

    def sections(self) -> dict[str, str]:
        """The docstring by heading, in the order of :data:`HEADINGS`."""
        parts = re.split(r"^## (.+)$", self.doc, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))

    def thresholds(self) -> list[Named]:
        return declared_in(self.module)


def declared_in(module: ModuleType) -> list[Named]:
    """The thresholds a module declares or imports, and constants that are none yet."""
    declared = [
        Named(name, f"{value} {value.unit}".rstrip(), value.source)
        for name, value in vars(module).items()
        if isinstance(value, Threshold)
    ]
    return declared + thresholds_in(inspect.getsource(module))


def thresholds_in(source: str) -> list[Named]:
    """Constants with the comment above them; constants on adjoining lines share one."""
    found: list[Named] = []
    comment: list[str] = []
    before = ""
    whole = _WRAPPED.sub(lambda m: f"{m[1]}{m[2]}{' '.join(m[3].split())}{m[4]}", source)
    for line in whole.splitlines():
        if line.startswith("#"):
            comment = [*(comment if before.startswith("#") else []), line.lstrip("# ")]
        elif constant := _CONSTANT.match(line):
            if constant[1] not in _NOT_THRESHOLDS and not constant[2].startswith("Threshold("):
                found.append(Named(constant[1], constant[2], " ".join(comment)))
        else:
            comment = []
        before = line
    return found


def _load(module: ModuleType) -> Rule:
    return Rule(
        code=module.CODE,
        name=module.NAME,
        cls=module.CLASS,
        doc=inspect.cleandoc(module.__doc__ or ""),
        check=module.check,
        fires=module.fires,
        clear=module.clear,
        only_if_clear=getattr(module, "ONLY_IF_CLEAR", False),
        after=tuple(getattr(module, "AFTER", {}).items()),
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
    """What the rule finds in its own example."""
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
    lines += ["", "## What it prints", "", "In a made-up run:", ""]
    lines += [f"> {shown.summary}", ">", *(f"> → {line}" for line in shown.fix.text.splitlines())]
    if rule.after:
        lines += ["", "## What comes first, where it is found too", ""]
        lines += [f"- {find(code).code} {find(code).name}: {why}." for code, why in rule.after]
    if rule.predicts:
        lines += [
            "",
            f"Reported only if the fix can win {NOISE_FLOOR_FRAC:.0%} of the step or more.",
        ]
    if rule.thresholds():
        lines += ["", "## Thresholds", ""]
        lines += [_line(threshold) for threshold in rule.thresholds()]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The table of all rules and the numbers that several of them share, Markdown."""
    rows = [f"| [{r.code}]({r.code}.md) | {r.name} | {r.cls} | {r.title} |" for r in all_rules()]
    head = ["# Rules", "", "| code | name | class | pattern |", "|---|---|---|---|"]
    shared = [_line(threshold) for threshold in shared_thresholds()]
    return "\n".join([*head, *rows, "", "## Thresholds that rules share", "", *shared]) + "\n"


def shared_thresholds() -> list[Named]:
    """The constants of the helper modules, by module."""
    names = sorted(found.name for found in pkgutil.iter_modules(tdiag.rules.__path__))
    helpers = [n for n in names if not _RULE_FILE.fullmatch(n) and n not in _NO_THRESHOLDS]
    modules = [importlib.import_module(f"tdiag.rules.{name}") for name in helpers]
    return [t for module in modules for t in declared_in(module)]


def _line(threshold: Named) -> str:
    return f"- `{threshold.name} = {threshold.value}`: {threshold.provenance}"


def speaking_of(words: str) -> list[Rule]:
    """Rules whose page holds every one of these words, most mentions of them first."""
    wanted = words.lower().split()
    pages = [(rule, page(rule).lower()) for rule in all_rules()]
    found = [(rule, text) for rule, text in pages if all(word in text for word in wanted)]
    found.sort(key=lambda pair: -sum(pair[1].count(word) for word in wanted))
    return [rule for rule, _ in found] if wanted else []


def explain(words: str) -> str:
    """What ``tdiag explain`` prints: the page of the rule of this code or name, else a list of the
    rules that speak of these words; :class:`UsageError` if none does."""
    try:
        return page(find(words))
    except UsageError:
        found = speaking_of(words)
        if not found:
            raise
    rows = "\n".join(f"- {rule.code} {rule.name}: {rule.title}" for rule in found)
    return f"Rules that speak of `{words}`:\n\n{rows}\n"
