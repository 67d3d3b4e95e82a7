"""What to launch, parsed from `tdiag run`'s command line.

Three forms: ``script.py args…``, ``-m package.module args…`` and ``-- any launcher …``. After
``--`` a Python file that cannot be executed is a script, and ``-m`` a module, as without it.
tdiag's own options may appear anywhere before ``--``; every other word after the script is the
script's. Of three ambiguous cases, two are decided by the script's own source:

* ``--profiling``, if the script also declares it, goes to both;
* ``--help`` after a script goes to the script;
* any other tdiag option *after* a script that declares the same option is the script's (a training
  with its own ``--steps`` keeps it). Before the script it is tdiag's.
"""

from __future__ import annotations

import ast
import difflib
import shutil
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tdiag.errors import UsageError
from tdiag.model.threshold import Threshold

ALIKE = Threshold(
    0.86,
    "of the letters in common (difflib's ratio)",
    "By arithmetic: one letter omitted, doubled or swapped in an option of six letters or more"
    " stays above it; options that only begin alike (--output-dir, --steps-per-epoch) stay below.",
)
PROFILING, HELP = "--profiling", "--help"


@dataclass(frozen=True)
class Target:
    """The user's program. ``name``: script path, dotted module, or the launcher's program."""

    kind: Literal["script", "module", "launcher"]
    name: str
    args: tuple[str, ...] = ()

    def command(self, python: str) -> list[str]:
        """The words to execute; a launcher is run as given and brings its own Python."""
        if self.kind == "launcher":
            return [self.name, *self.args]
        return [python, *(["-m"] if self.kind == "module" else []), self.name, *self.args]

    def label(self) -> str:
        """A short name for the run directory and for messages: ``train``, ``pkg.train``."""
        script = self.script()
        return script if self.kind == "module" else Path(script).resolve().stem or "run"

    def script(self) -> str:
        """The script or module as the user wrote it; for a launcher the first ``.py`` word."""
        if self.kind != "launcher":
            return self.name
        return next((w for w in self.args if w.endswith(".py")), self.name)

    def source_file(self) -> Path | None:
        """The file to search for declared options; None if it is unknown."""
        if self.kind == "script":
            path = Path(self.name)
            return path / "__main__.py" if path.is_dir() else path
        if self.kind == "launcher":
            return None
        base = Path(*self.name.split("."))
        found = (base.with_suffix(".py"), base / "__main__.py")
        return next((path for path in found if path.is_file()), None)


def split(
    words: Sequence[str], own: Mapping[str, bool], usual: str = "tdiag run"
) -> tuple[list[str], Target]:
    """Split a command line into tdiag's words and the target.

    ``own`` maps each tdiag option to whether it takes a value. Unknown options before the target
    stay among tdiag's words, so that the parser can report them. ``usual``: how the command begins
    in the examples of an error message. Raises UsageError if no target is named.
    """
    mine: list[str] = []
    target: Target | None = None
    declared: frozenset[str] = frozenset()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            target = _after_dashes(target, rest, usual)
            break
        if name in own and not (target and _the_scripts(name, declared)):
            mine.append(word)
            if own[name] and not equals and rest:
                mine.append(rest.pop(0))
            if target and name in declared:
                target = _with(target, word)
        elif target is not None:
            target = _with(target, word)
        elif word == "-m":
            if not rest:
                raise UsageError("-m needs the name of a module", f"{usual} -m package.train")
            target = Target("module", rest.pop(0))
            declared = declared_options(target.source_file())
        elif word.startswith("-"):
            mine.append(word)
        else:
            target = Target("script", word)
            declared = declared_options(target.source_file())
    if target is None and HELP in mine:
        target = Target("script", "")
    if target is None:
        raise UsageError("nothing to run", f"{usual} train.py, {usual} -m pkg.train, or "
                         f"{usual} -- torchrun train.py")  # fmt: skip
    if PROFILING in mine and PROFILING in declared and PROFILING not in target.args:
        target = replace(target, args=(PROFILING, *target.args))
    return mine, target


def near_misses(
    words: Sequence[str], target: Target, own: Mapping[str, bool]
) -> list[tuple[str, str]]:
    """Words of the script that look like a misspelt tdiag option, with that option; none that the
    script declares or that come after ``--``."""
    known = [option for option in own if option.startswith("--")]
    before = words[: words.index("--")] if "--" in words else words
    found = []
    for word in before:
        name = word.partition("=")[0]
        if word in target.args and name.startswith("--") and name not in own:
            found += [(name, o) for o in difflib.get_close_matches(name, known, 1, ALIKE)]
    declared = declared_options(target.source_file()) if found else frozenset()
    return [(name, option) for name, option in found if name not in declared]


def _the_scripts(name: str, declared: frozenset[str]) -> bool:
    """Whether a tdiag option that comes after the script is nevertheless the script's."""
    return name == HELP or (name in declared and name != PROFILING)


def _with(target: Target, word: str) -> Target:
    return replace(target, args=(*target.args, word))


def _after_dashes(target: Target | None, rest: list[str], usual: str) -> Target:
    if target is not None:
        return replace(target, args=(*target.args, *rest))
    if not rest:
        raise UsageError("nothing to run after --", f"{usual} -- torchrun train.py")
    name, *args = rest
    if name == "-m" and args:
        return Target("module", args[0], tuple(args[1:]))
    if name.endswith(".py") and not shutil.which(name):
        return Target("script", name, tuple(args))
    return Target("launcher", name, tuple(args))


MOST_FILES = 100  # a parser is near its script; a whole monorepo is not searched


def declared_options(source: Path | None) -> frozenset[str]:
    """String constants that look like options, in this file and in the modules it imports.

    Follows only modules next to the file or in the working directory, where a program keeps its
    parser, not installed packages. Empty if the file cannot be read.
    """
    if source is None:
        return frozenset()
    found: set[str] = set()
    waiting, seen = [source], set[Path]()
    while waiting and len(seen) < MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree = _parse(path)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Constant) and str(node.value).startswith("-"):
                found.add(str(node.value))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                waiting += _local(node, path)
    return frozenset(found)


def _parse(path: Path) -> ast.Module | None:
    try:
        with tokenize.open(path) as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _local(node: ast.Import | ast.ImportFrom, importer: Path) -> Iterator[Path]:
    """The user's own files that an import statement can mean."""
    bases = [importer.parent, Path()]
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        if node.level:
            bases = [[importer.parent, *importer.parent.parents][node.level - 1]]
        stem = f"{node.module}." if node.module else ""
        names = [node.module or "", *(stem + alias.name for alias in node.names)]
    for base in bases:
        for name in filter(None, names):
            path = base.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file.resolve()
