"""What a report says about its own evidence: notes, and how far each source was captured."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["info", "warning"]
State = Literal["captured", "partial", "failed", "not requested"]


class Note(msgspec.Struct, frozen=True):
    """``code``: the kind of note, e.g. ``crowded-machine``; stable, for programs. ``text``: one
    sentence. ``severity``: a ``warning`` means that numbers of the report may be wrong; ``info``
    says what the report is about."""

    code: str
    text: str
    severity: Severity = "info"


class Captured(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a source of evidence (a window, a sampler) was captured. ``why``: the reason if it
    was ``partial`` or ``failed``, else empty."""

    state: State
    why: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else self.state
