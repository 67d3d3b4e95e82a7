"""The outcome as JSON: the fields of :class:`tdiag.gate.outcome.Outcome`, and the exit code."""

from __future__ import annotations

import msgspec

from tdiag.gate.outcome import Outcome
from tdiag.report.json import jsonable
from tdiag.report.page import Page


def render(outcome: Outcome, page: Page) -> str:
    """Indented; fields in the model's order."""
    plain = msgspec.to_builtins(outcome, enc_hook=str)
    plain["exit_code"] = outcome.exit_code
    return msgspec.json.format(msgspec.json.encode(jsonable(plain)), indent=2).decode() + "\n"
