"""Messages to and from a paused program: named pipes in its run directory (docs/run-directory.md).

Each rank of a distributed job reads from its own pipe and answers into a common one. Every rank
counts the same steps, so all pause at the same step boundary, where no collective is running: the
job runs and pauses as a whole.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from tdiag.errors import UsageError
from tdiag.probe.wire import TURNS_DONE, turns_go

POLL_S = 0.2
# Ranks that train together are at most a step apart; a rank not held by then takes no steps.
RANKS_WITHIN_S = 60.0


class Talk:
    """``alive()`` is called while no message comes, and raises if the program ended. ``pids``: of
    the ranks, by rank, once each has answered; for one process, rank 0."""

    def __init__(self, control: Path, alive: Callable[[], None]) -> None:
        self.control, self.alive = control, alive
        self.pids: dict[int, int] = {}
        for name in (turns_go(0), TURNS_DONE):
            os.mkfifo(control / name, 0o600)
        self._done = _open(control / TURNS_DONE)
        self._go = [_open(control / turns_go(0))]
        self._unread = b""

    def ready(self) -> dict[str, Any]:
        """Wait until all ranks are held; returns rank 0's message. Raises UsageError if they are on
        several machines, or not at one step."""
        first = self._message()
        world = int(first["world_size"])
        if world != int(first["local"]):
            raise UsageError(
                "the ranks of this job are on several machines: they cannot be held from here",
                "check a job on one machine, or compare two finished runs: tdiag compare A B",
            )
        # Made by rank 0; a rank waits in its `open` until we open our end.
        for rank in range(len(self._go), world):
            self._go.append(_open(self.control / turns_go(rank)))
        return self._all(first, world)[0]

    def say(self, words: str) -> None:
        """Send to every rank."""
        for pipe in self._go:
            os.write(pipe, words.encode() + b"\n")

    def hear(self) -> dict[int, dict[str, Any]]:
        """The next message of every rank."""
        return self._all(self._message(), len(self._go))

    def close(self) -> None:
        for pipe in (self._done, *self._go):
            os.close(pipe)

    def _all(self, first: dict[str, Any], world: int) -> dict[int, dict[str, Any]]:
        _keeps_step(first)
        heard = {int(first["rank"]): first}
        until = monotonic() + RANKS_WITHIN_S
        while len(heard) < world:
            message = self._message(until)
            if not message:
                silent = ", ".join(str(r) for r in range(world) if r not in heard)
                raise UsageError(
                    f"the ranks of this job are not at one step: rank {silent} takes none",
                    "only jobs whose ranks all train step by step can take turns; compare two"
                    " finished runs instead: tdiag compare A B",
                )
            _keeps_step(message)
            heard[int(message["rank"])] = message
        for rank, message in heard.items():
            self.pids[rank] = int(message.get("pid", self.pids.get(rank, 0)))
        return heard

    def _message(self, until: float = float("inf")) -> dict[str, Any]:
        """The next line of any rank; empty after ``until``."""
        while b"\n" not in self._unread:
            if select.select([self._done], [], [], POLL_S)[0]:
                self._unread += os.read(self._done, 1 << 16)
            elif monotonic() > until:
                return {}
            else:
                self.alive()
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _keeps_step(message: dict[str, Any]) -> None:
    """Raises UsageError for a rank that was beyond the step at which all should be held."""
    if "apart" in message:
        raise UsageError(
            f"the ranks of this job do not keep step: rank {message['rank']} was"
            f" {message['apart']} steps ahead of rank 0",
            "compare two finished runs instead: tdiag compare A B",
        )


def _open(pipe: Path) -> int:
    """Open both ends: then there is no SIGPIPE, and no end of file before the program opens its
    own."""
    return os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
