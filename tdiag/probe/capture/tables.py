"""Embedding tables: how many rows the counted steps look up, and what else uses the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..by_tensor import ByTensor
from ..models import plain

if TYPE_CHECKING:
    from ..inspection import Inspection

LOOKUPS = {"embedding", "embedding_bag"}


class _Table:
    __slots__ = ("distinct", "elsewhere", "highest", "looked_up", "place", "sparse")

    def __init__(self, place: Any, sparse: bool) -> None:
        self.place, self.sparse = place, sparse
        self.looked_up = 0
        self.distinct: int | None = 0  # None on a device, which would have to be waited for
        self.elsewhere = False
        self.highest: torch.Tensor | None = None


class Tables:
    """One per window ``ops``."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.tables: ByTensor[_Table] = ByTensor()

    def seen(self, name: str, args: Any, kwargs: Any, place: Any) -> None:
        """A call returned a tensor that records gradients."""
        if name in LOOKUPS:
            self._looked_up(args, kwargs, place)
        elif len(self.tables):  # an output layer that shares the weight, a penalty on its norm
            for value in (*args, *kwargs.values()):
                if (table := self.tables.get(value)) is not None:
                    table.elsewhere = True

    def _looked_up(self, args: Any, kwargs: Any, place: Any) -> None:
        rows = kwargs.get("input", args[0] if args else None)
        weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
        if not (isinstance(rows, torch.Tensor) and isinstance(weight, torch.Tensor)):
            return
        if weight.dim() != 2 or not weight.is_leaf or not weight.requires_grad:
            return
        table = self.tables.get(weight)
        if table is None:
            table = _Table(place, bool(kwargs.get("sparse")))
            self.tables.keep(weight, table)
        table.looked_up += rows.numel()
        if rows.numel() and plain(rows):  # kept as a tensor: reading it would wait for a device
            highest = rows.detach().max()
            known = table.highest
            table.highest = highest if known is None else torch.maximum(known, highest)
        if table.distinct is not None:
            readable = plain(rows) and rows.device.type == "cpu"
            table.distinct = table.distinct + rows.unique().numel() if readable else None

    def report(self) -> list[dict[str, Any]]:
        """The field ``tables`` of the `ops` record; ``looked_up``: in the whole window;
        ``distinct``: the same, a row counted once in each call; ``highest``: the largest row number
        looked up in it."""
        names = self.inspection.weight_names()
        return [
            {
                "name": names.get(id(weight), ("", ""))[0],
                "at": table.place,
                "rows": weight.shape[0],
                "bytes": weight.numel() * weight.element_size(),
                "looked_up": table.looked_up,
                "distinct": table.distinct,
                "sparse": table.sparse,
                "elsewhere": table.elsewhere,
                "highest": None if table.highest is None else int(table.highest),
            }
            for weight, table in self.tables.alive()
        ]
