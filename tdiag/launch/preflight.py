"""Checks before the user's program is started: one clear message each, no guesses.

A launcher command brings its own Python, which cannot be asked; for it only the program itself and
flags that prevent injection are checked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdiag.errors import LaunchError, UsageError
from tdiag.launch.target import Target
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import RUN_VARIABLE

ASK = Path(__file__).with_name("ask.py")
ASK_TIMEOUT_S = Threshold(
    30.0,
    "s",
    "Heuristic: starting a Python takes about 50 ms, from a cold network file system seconds. After"
    " that the check is skipped and the program started: the check must never stop a run.",
)
CANNOT_EXECUTE, NOT_FOUND = 126, 127  # POSIX shell exit codes

PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*(\.exe)?$")
# Python options that take the next word as a value (`python --help`), and that end the options.
WITH_VALUE, LAST = "WX", "cm"
# -I ignores PYTHONPATH and the user's site, -E every PYTHON* variable, -S skips `site`, which
# imports the probe's sitecustomize.
DEFEATS_INJECTION = "IES"


@dataclass(frozen=True)
class Checked:
    """What the user's Python answered; a field is None if the Python could not be asked."""

    python: str | None = None
    python_version: str | None = None
    torch_version: str | None = None


def check(target: Target, python: str | None) -> Checked:
    """Refuse what cannot work, before anything is written or started.

    Raises UsageError (exit 2) for a wrong script, LaunchError for a program that does not exist
    (127) or cannot be executed (126).
    """
    if target.kind == "launcher":
        _executable(target.name, "command")
        _refuse_isolated(target.command(""))
        return Checked()
    if target.kind == "script":
        _script(target.name)
    interpreter = _executable(python or sys.executable, "--python")
    answer = ask(interpreter, target.kind, target.name)
    if answer is None:
        return Checked(interpreter)
    if target.kind == "module" and answer["source"] is None:
        raise UsageError(
            f"no module {target.name} to run in {interpreter}",
            "run from the folder that holds the package, as with python -m",
        )
    if answer["syntax_error"]:
        line, message, text = answer["syntax_error"]
        raise UsageError(
            f"{answer['source']}:{line}: {message}" + (f"\n    {text}" if text else ""),
            f"Python {answer['python']} cannot compile this file",
        )
    if answer["torch"] is None:
        raise UsageError(
            f"no torch in the environment of {interpreter}",
            "name the interpreter that your training uses: tdiag run --python PATH …",
        )
    return Checked(interpreter, answer["python"], answer["torch_version"])


def ask(python: str, kind: str, name: str) -> dict[str, Any] | None:
    """Run ``ask.py`` in that Python; None if it took too long. Raises UsageError if it is not a
    Python."""
    environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
    try:
        done = subprocess.run(
            [python, str(ASK), kind, name], capture_output=True, text=True,
            timeout=ASK_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise LaunchError(f"cannot execute {python}: {error.strerror}", "",
                          CANNOT_EXECUTE) from None  # fmt: skip
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = None
    if not isinstance(answer, dict):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"{python} does not answer as a Python interpreter: {last}",
                         "--python takes the path of a python executable")  # fmt: skip
    return answer


def _executable(name: str, what: str) -> str:
    """The path that a shell would execute. Raises LaunchError with the shell's exit code."""
    found = shutil.which(name)
    if found:
        return found
    path = Path(name)
    if path.exists() and (os.sep in name or what == "command"):
        why = "is a directory" if path.is_dir() else "is not executable"
        raise LaunchError(f"{name} {why}", "" if path.is_dir() else "chmod +x it", CANNOT_EXECUTE)
    raise LaunchError(f"{what}: {name} not found" if what != "command" else
                      f"{name}: command not found", "", NOT_FOUND)  # fmt: skip


def _script(name: str) -> None:
    path = Path(name)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{name} is a directory without a __main__.py",
                             "name the training script inside it")  # fmt: skip
        return
    if not path.exists():
        hint = f"tdiag run -- {name} …" if shutil.which(name) else "check the path"
        raise UsageError(f"no such script: {name}", hint)
    if path.suffix == ".ipynb":
        raise UsageError(f"{name} is a notebook, not a script",
                         f"jupyter nbconvert --to script {name}, then run that")  # fmt: skip
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from None
    first = head.split(b"\n", 1)[0]
    shebang = first.startswith(b"#!") and not re.search(rb"python|pypy", first)
    if shebang or (b"\0" in head and not zipfile.is_zipfile(path)):
        raise UsageError(
            f"{name} is not a Python script",
            f"a launcher or shell script goes after --: tdiag run -- {name} …",
        )


def _refuse_isolated(command: Sequence[str]) -> None:
    """Refuse ``python -I/-E/-S`` anywhere in the command: it would start without the probe."""
    for position, word in enumerate(command):
        if PYTHON_NAME.search(Path(word).name):
            flags = _python_flags(command[position + 1 :])
            bad = sorted(set(flags) & set(DEFEATS_INJECTION))
            if bad:
                raise UsageError(
                    f"`{Path(word).name} -{bad[0]}` prevents the probe from loading: it ignores"
                    " PYTHONPATH or sitecustomize",
                    f"leave out -{bad[0]} for the diagnosis",
                )


def _python_flags(words: Sequence[str]) -> str:
    """A Python's one-letter flags, up to its script."""
    flags, rest = "", list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                rest[:1] = []
            continue
        for place, letter in enumerate(word[1:], start=2):
            flags += letter
            if letter in LAST:
                return flags
            if letter in WITH_VALUE:
                if not word[place:]:
                    rest[:1] = []
                break
    return flags
