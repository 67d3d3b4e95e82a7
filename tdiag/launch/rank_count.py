"""The same job with another number of ranks: replaces the launcher's option for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath

from tdiag.errors import UsageError
from tdiag.launch.target import Target

HOW = "tdiag run --scaling 1,2 -- torchrun train.py"
NODES_VARIABLE = "PET_NNODES"  # torchrun reads it if --nnodes is not given
ONE = ("1", "1:1")  # the second is torchrun's form of a range
LEAST_PREFIX = len("--np")  # shortest abbreviation of an option; shorter ones are ambiguous


@dataclass(frozen=True)
class Launcher:
    """``names``: names of the program, each as a tuple of words; ``modules``: names after ``python
    -m``. ``ranks``: the option for the number of ranks on this machine; ``nodes``: the option for
    the number of machines."""

    names: tuple[tuple[str, ...], ...]
    modules: tuple[str, ...]
    ranks: str
    nodes: str


LAUNCHERS = (
    Launcher(
        (("torchrun",),),
        ("torch.distributed.run", "torch.distributed.launch"),
        "--nproc-per-node",
        "--nnodes",
    ),
    Launcher(
        (("accelerate", "launch"), ("accelerate-launch",)),
        ("accelerate.commands.launch",),
        "--num-processes",
        "--num-machines",
    ),
)


def parse_counts(text: str) -> tuple[int, ...]:
    """``1,2,4``, sorted. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if not word.isdecimal() or int(word) < 1), None)
    if wrong is not None:
        raise UsageError(f"--scaling {text}: {wrong!r} is not a number of ranks", HOW)
    counts = sorted(int(word) for word in words)
    twice = next((a for a, b in pairwise(counts) if a == b), None)
    if twice is not None:
        raise UsageError(f"--scaling {text}: {twice} is given twice", HOW)
    if len(counts) < 2:
        raise UsageError(f"--scaling {text}: give at least two numbers of ranks to compare", HOW)
    return tuple(counts)


def with_ranks(target: Target, count: int, environment: Mapping[str, str] = os.environ) -> Target:
    """The same target with ``count`` ranks. Raises UsageError if its launcher is unknown, or if it
    starts ranks on several machines."""
    words = [target.name, *target.args]
    if target.kind == "module":
        words.insert(0, "-m")
    found = _launcher(words) if target.kind != "script" else None
    if found is None:
        raise UsageError(
            "--scaling needs a launcher whose number of ranks it can set: torchrun,"
            " python -m torch.distributed.run, or accelerate launch",
            HOW,
        )
    launcher, begin = found
    end = _own_end(words, begin)
    _alone(launcher, words[begin:end], environment)
    at = next((i for i in range(begin, end) if _is(words[i], launcher.ranks)), None)
    if at is None:
        words[begin:begin] = [launcher.ranks, str(count)]
    elif "=" in words[at]:
        words[at] = f"{words[at].partition('=')[0]}={count}"
    else:
        words[at + 1 : at + 2] = [str(count)]
    if target.kind == "module":
        words = words[1:]
    return replace(target, name=words[0], args=tuple(words[1:]))


def _launcher(words: Sequence[str]) -> tuple[Launcher, int] | None:
    """The launcher, and where its options begin: other programs may wrap it."""
    for at, word in enumerate(words):
        for launcher in LAUNCHERS:
            if at and words[at - 1] == "-m" and word in launcher.modules:
                return launcher, at + 1
            for name in launcher.names:
                here = (PurePath(word).name, *words[at + 1 : at + len(name)])
                if here == name:
                    return launcher, at + len(name)
    return None


def _own_end(words: Sequence[str], begin: int) -> int:
    """The index of the script's name: all words after it are the script's."""
    for at in range(begin, len(words)):
        if words[at].endswith(".py") or words[at] in ("-m", "--module"):
            return at
    return len(words)


def _is(word: str, option: str) -> bool:
    """Whether argparse reads the word as this option: abbreviated, or with ``_`` for ``-``."""
    name = word.partition("=")[0].replace("_", "-")
    return len(name) >= LEAST_PREFIX and option.startswith(name)


def _alone(launcher: Launcher, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises UsageError for a job on several machines."""
    said = NODES_VARIABLE, environment.get(NODES_VARIABLE, "1")
    for at, word in enumerate(words):
        if _is(word, launcher.nodes):
            name, equals, value = word.partition("=")
            said = name, value if equals else "".join(words[at + 1 : at + 2])
    if said[1] not in ONE:
        raise UsageError(f"--scaling works on one machine only, but {said[0]} is {said[1]}", HOW)
