"""What a report says of its own evidence: notes, and how far each source was captured."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["info", "warning"]
State = Literal["captured", "partial", "failed", "not requested"]


class Note(msgspec.Struct, frozen=True):
    """``code``: what kind of note it is, e.g. ``crowded-machine``; stable, for programs.
    ``text``: one sentence. ``severity``: a ``warning`` says that numbers of the report may be off,
    and lowers the reader's trust in the verdict; ``info`` says what the report is about."""

    code: str
    text: str
    severity: Severity = "info"


class Captured(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a source of evidence (a window, a sampler) was captured. ``why``: the reason where it
    was ``partial`` or ``failed``, else empty."""

    state: State
    why: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state
