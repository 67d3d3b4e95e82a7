"""What to try: one change or several together, parsed from the command line."""

from __future__ import annotations

import ast
import difflib
import functools
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tdiag.errors import UsageError
from tdiag.model.place import Place
from tdiag.probe.trial.change import CEILING, Change
from tdiag.probe.trial.changes import load, names

FREEZE = "freeze"


@dataclass(frozen=True)
class Patched:
    """The user's program in a copy of its folder with a patch applied. ``outside``: the folder from
    which it must not import anything; ``files``: those that the patch names."""

    name: str
    command: Sequence[str]
    cwd: Path
    variables: Mapping[str, str]
    outside: str
    files: Sequence[str]


@dataclass(frozen=True)
class Candidate:
    """``changes``: (name, text of the value), all in one program. ``patched``: a patch instead.
    ``sweep``: the sweep that it belongs to, if its values have an order."""

    changes: tuple[tuple[str, str], ...]
    patched: Patched | None = None
    sweep: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        if self.patched:
            return self.patched.name
        return " + ".join(f"{name}={text}" if text else name for name, text in self.changes)

    @property
    def loaded(self) -> list[Change]:
        return [load(name) for name, _ in self.changes]

    @property
    def ceiling(self) -> bool:
        """Whether it leaves out a part of the step, so that the training is useless."""
        return any(change.kind == CEILING for change in self.loaded)

    @property
    def safety(self) -> str:
        """The safety of all changes, each kind once; for a patch its files."""
        if self.patched:
            return f"changes {', '.join(self.patched.files)}"
        return ", ".join(dict.fromkeys(change.safety for change in self.loaded))

    def environment(self) -> Mapping[str, str]:
        """Environment variables for the program. Raises UsageError if a change is impossible on
        this machine."""
        found = dict(self.patched.variables) if self.patched else {}
        try:
            for name, text in self.changes:
                found.update(load(name).environment(text))
        except ValueError as error:
            raise UsageError(f"{self.label}: {error}") from None
        return found


def parse(text: str) -> Candidate:
    """``NAME=VALUE``; ``NAME=VALUE+NAME=VALUE``: together. Raises UsageError."""
    return Candidate(tuple(_change(part.strip()) for part in text.split("+")))


def sweep(text: str) -> list[Candidate]:
    """``NAME=V,V,V``: one candidate for each value. Raises UsageError."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise UsageError(f"--sweep {text} has no values", "tdiag try train.py --sweep"
                         " loader.num_workers=0,1,2,4")  # fmt: skip
    found = [parse(f"{name}={value.strip()}") for value in dict.fromkeys(values.split(","))]
    numbers = all(one.changes[0][1].isdigit() for one in found)
    return [replace(one, sweep=name) for one in found] if numbers else found


def freeze(spec: str) -> Candidate:
    """The candidate that freezes a user's function. Raises UsageError if the file has no such
    function."""
    found = parse(f"{FREEZE}={spec}")
    file, colon, name = spec.rpartition(":")
    if colon:
        there = functions(Path(file))
        if name not in there:
            near = difflib.get_close_matches(name, there, 3, 0.5) or list(there)[:5]
            raise UsageError(f"{file} has no function {name}", f"it has {', '.join(near)}")
    return found


def function_at(place: Place, cwd: Path) -> str:
    """``FILE.py:FUNCTION`` for the function that the place is in, the file relative to ``cwd`` if
    it lies below it; "" for code outside functions, or in a file that cannot be read."""
    try:
        there = functions(Path(place.file)).items()
    except UsageError:
        return ""
    file = Path(place.file)
    shown = file.relative_to(cwd) if file.is_relative_to(cwd) else file
    return next((f"{shown}:{name}" for name, lines in there if place.line in lines), "")


def ceilings() -> list[Candidate]:
    """Every part that can be left out of any script; parts of each step first, because a short time
    budget measures only the first ones."""
    parts = [load(name) for name in names() if name != FREEZE]
    found = sorted((p for p in parts if p.kind == CEILING), key=lambda part: part.rare)
    return [Candidate(((part.name, ""),)) for part in found]


def together(candidates: list[Candidate]) -> Candidate:
    """All of them at once, best first; if one change occurs twice, its first value."""
    changes: dict[str, str] = {}
    for candidate in candidates:
        for name, text in candidate.changes:
            changes.setdefault(name, text)
    return Candidate(tuple(changes.items()))


def _change(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    try:
        change = load(name)
    except KeyError:
        near = difflib.get_close_matches(name, names(), 3, 0.4) or names()
        raise UsageError(f"no change {name!r} to try", f"nearest: {', '.join(near)};"
                         " tdiag try --list names all") from None  # fmt: skip
    try:
        change.parse(value)
    except ValueError as error:
        raise UsageError(f"--set {text}: {name} {error}") from None
    return name, value


@functools.lru_cache
def functions(file: Path) -> Mapping[str, range]:
    """The lines of each ``function`` and ``Class.method`` of a source file, in order; those inside
    another function belong to it. Raises UsageError if the file cannot be read."""
    try:
        with tokenize.open(file) as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"cannot read the functions of {file}: {error}") from None
    return dict(_defined(tree.body, ""))


def _defined(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, range]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inside + node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1)
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined(node.body, inside)
