"""A group of fresh processes that run in turns; the order is swapped every turn."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from tdiag.duel.side import BoundaryChanged, Program, ProgramEnded, ProgramFailed, Ready, Side
from tdiag.errors import UsageError

# A turn is long compared with the cost of swapping (two signals, cold caches: well under 1 ms) and
# short compared with a machine's drift (other programs come and go in seconds).
TURN_NS = 50_000_000
FEWEST_STEPS, MOST_STEPS = 3, 100
# On a device a turn lasts from one synchronisation to the next. Its first step finds the device
# idle and its last is waited for, which lengthens the turn by up to one step: a tenth of ten.
FEWEST_ON_DEVICE = 10
# A step of this length or more is a turn by itself: its caches are warm for most of it.
LONG_STEP_NS = 200_000_000
WARM_UP_TURNS = 3
FEWEST_TURNS = 3  # per side; fewer have no useful median


@dataclass(frozen=True)
class Pace:
    """How long a group is watched: ``turns`` per side, or ``most_s`` seconds of turns if that comes
    first (but at least ``FEWEST_TURNS``)."""

    turns: int = 40
    most_s: float = 10.0


@dataclass
class Taken:
    """One program's turns. ``typical_ns``: the median step of each turn; ``mean_ns``: the mean.
    ``start_ns``: from its start until it was warm; ``peak_bytes``: of its main process. ``alone``:
    no other program was alive at the same time."""

    run_dir: Path
    start_ns: int = 0
    peak_bytes: int | None = None
    alone: bool = False
    typical_ns: list[float] = field(default_factory=list)
    mean_ns: list[float] = field(default_factory=list)

    def add(self, turn: Sequence[int]) -> None:
        self.typical_ns.append(statistics.median(turn))
        self.mean_ns.append(statistics.fmean(turn))


def take_turns(
    programs: Sequence[Program], folder: Path, pace: Pace, alone: bool = False
) -> list[Taken]:
    """Start the programs, run them in turns, end them.

    If the device has no room for all of them, or with ``alone``, each takes all its turns while no
    other is alive. Each gets a run directory below ``folder``. A program that runs out of steps
    ends the group early. Raises UsageError if that is too early, if the ranks of a distributed job
    cannot be held at one step, or if a program imports from ``Program.outside``;
    :class:`ProgramFailed` if a program fails.
    """
    if not alone:
        try:
            return _together(programs, folder, pace)
        except ProgramFailed as failed:
            if not failed.no_room or len(programs) == 1:
                raise
    pace = replace(pace, most_s=pace.most_s / len(programs))
    found = [_together([p], folder / "alone", pace)[0] for p in programs]
    _cut(found)
    for mine in found:
        mine.alone = True
    return found


def _together(programs: Sequence[Program], folder: Path, pace: Pace) -> list[Taken]:
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(p, folder / p.name)) for p in programs]
        taken = [Taken(side.run_dir) for side in sides]
        try:
            least = FEWEST_STEPS
            for side, mine in zip(sides, taken, strict=True):
                ready = _ready(side)
                mine.start_ns = ready.start_ns
                least = FEWEST_ON_DEVICE if ready.device else least
            while not _play(sides, taken, pace, least):
                pass
            for side, mine in zip(sides, taken, strict=True):
                mine.peak_bytes = side.peak_bytes()
            for side in sides:  # all at once, because ending a process takes a second
                side.stop()
        except ProgramEnded:
            if min(len(mine.typical_ns) for mine in taken) < FEWEST_TURNS:
                raise UsageError(
                    "the script ends too soon to be measured: a few hundred steps are needed",
                    "let it run longer (more epochs or steps); tdiag ends it when it has enough",
                ) from None
    _cut(taken)
    return taken


def _cut(taken: Sequence[Taken]) -> None:
    """Remove the turn in which one program ended, because it has no counterpart."""
    shortest = min(len(mine.typical_ns) for mine in taken)
    for mine in taken:
        del mine.typical_ns[shortest:], mine.mean_ns[shortest:]


def _ready(side: Side) -> Ready:
    ready = side.ready()
    if ready.outside:
        raise UsageError(
            f"the side {side.program.name!r} imports {ready.outside[0]}, which is not its own"
            " revision: both sides would run the same code",
            "the package seems to be installed in editable mode; name its source folder, e.g."
            " PYTHONPATH=src tdiag …",
        )
    return ready


def _play(sides: list[Side], taken: list[Taken], pace: Pace, least: int) -> bool:
    """Take the turns. Returns False if all turns must be taken again."""
    for mine in taken:
        mine.typical_ns.clear()
        mine.mean_ns.clear()
    try:
        _turns(sides, taken, pace, least)
    except BoundaryChanged:
        return False
    return True


def _turns(sides: list[Side], taken: list[Taken], pace: Pace, least: int) -> None:
    steps = least
    for _ in range(WARM_UP_TURNS):
        step_ns = min(statistics.median(side.turn(steps)) for side in sides)
        steps = steps_of_a_turn(step_ns, least)
    began, turn = monotonic(), 0
    while turn < FEWEST_TURNS or (turn < pace.turns and monotonic() - began < pace.most_s):
        pairs = list(zip(sides, taken, strict=True))
        for side, mine in pairs if turn % 2 else reversed(pairs):
            mine.add(side.turn(steps_of_turn(turn, steps)))
        turn += 1


def steps_of_turn(turn: int, steps: int) -> int:
    """The steps of this turn, at random up to half more than ``steps`` and the same for all sides.

    In turns of one length, work of every n-th step (a checkpoint, a log) may always be in a turn's
    first step, which is left out, or never.
    """
    return random.Random(turn).randint(steps, steps + max(1, steps // 2))


def steps_of_a_turn(step_ns: float, least: int = FEWEST_STEPS) -> int:
    """As many steps as fill ``TURN_NS``, within limits."""
    if step_ns >= LONG_STEP_NS and least < FEWEST_ON_DEVICE:
        return 1
    return max(least, min(MOST_STEPS, round(TURN_NS / max(1.0, step_ns))))
