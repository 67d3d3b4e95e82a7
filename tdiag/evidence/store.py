"""The facts of one run or trace, by kind, and why the others are absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from tdiag.model.kind import Kind
from tdiag.model.notes import Captured, Note, Severity

K = TypeVar("K", bound=Kind)


@dataclass
class Evidence:
    """``missing``: for each absent kind the reason, for the report; ``otherwise``: the reason for
    kinds it does not list. ``capture``: source → how far it was captured. ``perturbation``: window
    → its median step ÷ the baseline's − 1."""

    facts: dict[type[Kind], Kind] = field(default_factory=dict)
    missing: dict[type[Kind], str] = field(default_factory=dict)
    otherwise: str = "not captured"
    capture: dict[str, Captured] = field(default_factory=dict)
    perturbation: dict[str, float] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def note(self, code: str, text: str, severity: Severity = "info") -> None:
        """Add a :class:`Note`."""
        self.notes.append(Note(code, text, severity))

    def add(self, *kinds: Kind) -> Evidence:
        """Store each under its own type; returns self, so that an example fits one line."""
        for kind in kinds:
            self.facts[type(kind)] = kind
        return self

    def get(self, kind: type[K]) -> K | None:
        found = self.facts.get(kind)
        return found if isinstance(found, kind) else None

    def why_missing(self, kind: type[Kind]) -> str:
        """Why ``get`` returns None for this kind."""
        return self.missing.get(kind, self.otherwise)
