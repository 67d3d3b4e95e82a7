"""Requests of `tdiag attach` for a pass of windows in a training that runs already.

A request is a file in ``control/`` of a run directory: of the `tdiag run` that started the training
and whose windows are over, or, if none did, of the pass itself. All ranks of the job find it,
because a pass needs all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from . import dynamo, facts
from .wire import CONTROL, REFUSED, VISIT_ACCEPTED, VISIT_ASKED, visit_answer

COMPILED = "it runs code compiled by torch.compile, which hooks put back now might recompile"


class Declined(Exception):
    """No pass can be measured here; the text says why."""


class Visits:
    """``begin``: starts a pass; takes the run directory to write, and what to call at its end with
    the number of steps it lasted."""

    def __init__(self, run_dir: str, begin: Callable[[str, Callable[[int], None]], None]) -> None:
        self.folder = os.path.join(run_dir, CONTROL)
        self.begin = begin
        self.taken = -1  # the last request answered: when its file was written, ns

    def asked(self) -> dict[str, Any] | None:
        """A request that this process has not answered: its ``run_dir`` and ``written``."""
        file = os.path.join(self.folder, VISIT_ASKED)
        try:
            written = os.stat(file).st_mtime_ns
            if written == self.taken:
                return None
            with open(file, encoding="utf-8") as found:
                return {**json.load(found), "written": written}
        except (OSError, ValueError):
            return None

    def receive(self, asked: dict[str, Any], over: Callable[[int], None]) -> bool:
        """Begin the pass and answer. False if it is refused; then ``over`` is not called."""
        self.taken = asked["written"]
        why = COMPILED if dynamo.compiled_frames() else ""
        if not why:
            try:
                self.begin(asked["run_dir"], over)
            except Declined as declined:
                why = str(declined)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        self._answer(f"{REFUSED}{why}" if why else f"{VISIT_ACCEPTED} {facts.ranks()[0]}")
        return not why

    def _answer(self, text: str) -> None:
        file = os.path.join(self.folder, visit_answer(os.getpid()))
        with open(file + ".part", "w", encoding="utf-8") as part:
            part.write(text)
        os.replace(file + ".part", file)
