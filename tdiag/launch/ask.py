"""Questions to the *user's* Python: is torch installed, does the script compile, is the module
there?

Runs as a file in that interpreter (``python ask.py script|module|none NAME``), so it uses only the
standard library, works on any Python from 3.8 on, and imports none of the user's code:
``PathFinder`` finds a package without executing it, unlike ``importlib.util.find_spec("a.b")``.
"""

from __future__ import annotations

import json
import platform
import sys
import tokenize
import warnings
import zipfile
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def find(name: str) -> ModuleSpec | None:
    """The spec of a dotted name, without importing its parents; None if there is none."""
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(len(parts)):
        path = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
    return spec


def module_file(name: str) -> str | None:
    """The source that ``python -m name`` would run, "" where it has none, None where missing."""
    spec = find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find(name + ".__main__")
    return None if spec is None else spec.origin or ""


def compile_error(source: str) -> list[object] | None:
    """``[line, message, text]`` of a syntax error, or None."""
    try:
        with tokenize.open(source) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own run will show them
            compile(file.read(), source, "exec", dont_inherit=True)
    except SyntaxError as error:
        return [error.lineno or 0, error.msg, (error.text or "").strip()]
    except (UnicodeDecodeError, ValueError) as error:
        return [0, str(error), ""]
    return None


def version(distribution: str) -> str | None:
    """The installed version, or None; reads metadata only."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def main(kind: str, name: str) -> None:
    """Answer for one target; with ``kind`` "none" only for the environment."""
    source = module_file(name) if kind == "module" else name if kind == "script" else ""
    if source and Path(source).is_dir():
        source = str(Path(source) / "__main__.py")
    torch = find("torch")
    # An extension module and a zip application have no source to compile.
    text = kind == "script" or (source or "").endswith(".py")
    print(json.dumps({
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": torch.origin if torch else None,
        "torch_version": version("torch"),
        "source": source,
        "syntax_error": compile_error(source)
        if source and text and not zipfile.is_zipfile(source)
        else None,
    }))  # fmt: skip


if __name__ == "__main__":
    kind, name = sys.argv[1:3]
    sys.path[0] = str(Path(name).resolve().parent) if kind == "script" else str(Path.cwd())
    main(kind, name)
