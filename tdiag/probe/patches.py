"""Replaces attributes by wrappers and puts the originals back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Every attribute the probe has replaced, so that it can leave no trace when it is done."""

    def __init__(self) -> None:
        # (owner, name, wrapper, whether ``owner`` itself had the name, what it was)
        self.made: list[tuple[Any, str, Any, bool, Any]] = []

    def set(self, owner: Any, name: str, wrapper: Any) -> None:
        """``owner.name = wrapper``; remembers whether ``owner`` itself had the name before."""
        own = name in vars(owner)
        original = vars(owner)[name] if own else None
        setattr(owner, name, wrapper)
        self.made.append((owner, name, wrapper, own, original))

    def undo(self) -> None:
        """Newest first. Leaves alone what somebody else has wrapped since."""
        for owner, name, wrapper, own, original in reversed(self.made):
            if vars(owner).get(name) is not wrapper:
                continue
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self.made.clear()
