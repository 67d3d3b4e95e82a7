"""What is known of tensors, each without being kept alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

MOST_TRACKED = 50_000  # about 200 bytes each


class ByTensor(Generic[Value]):
    """Like a dict, but a tensor is itself alone, whatever it holds. Another that gets the id of one
    that is gone is not known. Beyond ``most`` new ones are not kept."""

    __slots__ = ("_known", "most")

    def __init__(self, most: int = MOST_TRACKED) -> None:
        self.most = most
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, tensor: Any) -> Value | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def get_or_base(self, tensor: Any) -> Value | None:
        """The same; of a view that is not known, what is known of the tensor it is a view of."""
        known = self.get(tensor)
        return self.get(getattr(tensor, "_base", None)) if known is None else known

    def __contains__(self, tensor: Any) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known[0]() is tensor

    def keep(self, tensor: Any, value: Value) -> None:
        if len(self._known) < self.most or id(tensor) in self._known:
            self._known[id(tensor)] = weakref.ref(tensor), value

    def drop(self, tensor: Any) -> None:
        self._known.pop(id(tensor), None)

    def clear(self) -> None:
        self._known.clear()

    def alive(self) -> list[tuple[Any, Value]]:
        """Those that still exist."""
        pairs = ((reference(), value) for reference, value in self._known.values())
        return [(tensor, value) for tensor, value in pairs if tensor is not None]

    def __len__(self) -> int:
        return len(self._known)
