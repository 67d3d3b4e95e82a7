"""Defaults of the command line from ``[tool.tdiag.COMMAND]`` in the nearest pyproject.toml.

    [tool.tdiag.run]
    time-budget = 30

The keys are the options' long names. The command line overrides them.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdiag.errors import UsageError

if TYPE_CHECKING:
    import typer
    from typer.core import TyperCommand

FILE = "pyproject.toml"
PATHS = ("FILE", "DIR")  # metavars of options that are paths


def defaults(folder: Path, commands: dict[str, TyperCommand]) -> dict[str, dict[str, Any]]:
    """The default of each parameter by command, in the format of click's ``default_map``. The file
    is the nearest from ``folder`` upward that has a ``[tool.tdiag]`` table; paths in it are
    relative to it. Raises UsageError if the file is not TOML or has an unknown name."""
    for parent in (folder, *folder.parents):
        file = parent / FILE
        if file.is_file() and (table := _table(file)) is not None:
            return {
                name: _options(file, f"tool.tdiag.{name}", values, commands[name])
                for name, values in table.items()
                if _known(file, "tool.tdiag", name, commands)
            }
    return {}


def typed(context: typer.Context, parameter: str) -> bool:
    """Whether the option was given on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _table(file: Path) -> dict[str, Any] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = file.read_text(encoding="utf-8")
        if "tdiag" not in text:  # another project's file may even be broken
            return None
        found = tomllib.loads(text).get("tool", {}).get("tdiag")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if found is not None and not isinstance(found, dict):
        raise UsageError(f"{file}: tool.tdiag is not a table")
    return found


def _options(file: Path, table: str, values: Any, command: TyperCommand) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UsageError(
            f"{file}: {table} is not a table", "Write [tool.tdiag.run] above the options."
        )
    options = {
        name.removeprefix("--"): parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in parameter.opts
        if name.startswith("--") and name != "--help"
    }
    found = {}
    for key, value in values.items():
        _known(file, table, key, options)
        option = options[key]
        if getattr(option, "metavar", "") in PATHS and isinstance(value, str):
            value = str(file.parent / value)
        assert option.name
        found[option.name] = value
    return found


def _known(file: Path, table: str, name: str, names: dict[str, Any]) -> bool:
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Valid names: {', '.join(sorted(names))}."
        raise UsageError(f"{file}: [{table}] has no {name}", hint)
    return True
