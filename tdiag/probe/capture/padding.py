"""Padding among the tokens that the counted steps look up in embedding tables.

Sequences of one batch are made equally long. The padded positions are visible where tokens become
vectors: an index of batch × sequence, together with either the table's ``padding_idx`` or a mask of
the same shape. Without either nothing counts as padding, because a token may repeat at the end of
rows (the background of a picture). Values are read when the steps are over.
"""

from __future__ import annotations

from typing import Any

import torch

from ..models import plain

MOST_LOOKUPS, MOST_MASKS = 64, 64
MOST_TOKENS = 1 << 22  # of one lookup; more are not read
# After these calls a recurrent layer leaves padding out.
PACKING = {"_pack_padded_sequence", "_nested_tensor_from_mask"}
# The tokens that end or begin a sequence may be the padding token, too (GPT-2's).
MOST_ENDS = 2
INTEGERS = {torch.int64, torch.int32, torch.int16, torch.uint8}


class Padding:
    """One per window ``ops``."""

    def __init__(self) -> None:
        self.lookups: list[tuple[Any, int, Any]] = []  # tokens, padding_idx or −1, place
        self.masks: dict[int, Any] = {}  # kept, so that no other tensor gets its id
        self.packed = False

    def seen(self, name: str, args: Any, kwargs: Any, result: Any, place: Any) -> None:
        """A call returned, in training mode."""
        if name in PACKING:
            self.packed = True
        if name == "embedding":
            self._looked_up(args, kwargs, place)
            return
        for value in (*args, *kwargs.values(), result):
            if type(value) is torch.Tensor and len(self.masks) < MOST_MASKS and _may_mask(value):
                self.masks.setdefault(id(value), value)

    def _looked_up(self, args: Any, kwargs: Any, place: Any) -> None:
        tokens = kwargs.get("input", args[0] if args else None)
        index = kwargs.get("padding_idx", args[2] if len(args) > 2 else None)
        if not (isinstance(tokens, torch.Tensor) and plain(tokens) and tokens.dim() == 2):
            return
        sizes = tokens.shape[1] > 1 and 0 < tokens.numel() <= MOST_TOKENS
        if sizes and tokens.dtype in INTEGERS and len(self.lookups) < MOST_LOOKUPS:
            self.lookups.append((tokens, -1 if index is None else index, place))

    def report(self) -> dict[str, Any]:
        """The fields `padding` of the `ops` record, [[place, how padding is recognised, sequences,
        positions, positions if each batch were as long as its longest sequence, tokens], …], and
        `packed`."""
        found: dict[Any, list[int]] = {}
        with torch.no_grad():
            for tokens, index, place in self.lookups:
                by, lengths = self._lengths(tokens, index)
                if not lengths:
                    continue
                sums = found.setdefault((place, by), [0, 0, 0, 0])
                rows = len(lengths)
                for n, more in enumerate((rows, tokens.numel(), rows * max(lengths), sum(lengths))):
                    sums[n] += more
        self.lookups, self.masks = [], {}
        return {"padding": [[*key, *sums] for key, sums in found.items()], "packed": self.packed}

    def _lengths(self, tokens: Any, index: int) -> tuple[str, list[int]]:
        """How padding is recognised, and the sequences' lengths; none if it cannot be
        recognised."""
        tokens = tokens.cpu()
        for mask in self.masks.values():
            if (given := _as_shape(mask, tokens.shape)) is not None:
                given = given.cpu()
                yes = given != 0
                if not bool((yes == given).all()):
                    continue  # numbers, not a mask
                for real in (yes, ~yes):
                    if _is_mask(real, tokens):
                        return "mask", real.sum(1).tolist()
        real = tokens != index
        if index < 0 or bool(real.all()) or not bool(real.any()):
            return "", []
        return "padding_idx", _extents(real)


def _may_mask(tensor: torch.Tensor) -> bool:
    """Whether it has shape batch × sequence, perhaps with size-1 dimensions between; reads no
    values."""
    whole = tensor.dtype is torch.bool or tensor.dtype in INTEGERS
    dims = tensor.dim()
    return whole and 2 <= dims <= 4 and all(n == 1 for n in tensor.shape[1:-1]) and plain(tensor)


def _as_shape(mask: torch.Tensor, shape: Any) -> torch.Tensor | None:
    same = (mask.shape[0], mask.shape[-1]) == tuple(shape)
    return mask.detach().reshape(shape) if same else None


def _is_mask(real: torch.Tensor, tokens: torch.Tensor) -> bool:
    """Whether each row's real tokens are contiguous and all others are one token that is seldom
    real."""
    kept, rest = tokens[real], tokens[~real]
    if not kept.numel() or not rest.numel():
        return False
    seldom = int((kept == rest[0]).sum()) <= MOST_ENDS * len(tokens)
    one, various = bool((rest == rest[0]).all()), bool((kept != kept[0]).any())
    return seldom and one and various and _extents(real) == real.sum(1).tolist()


def _extents(real: torch.Tensor) -> list[int]:
    """The distance from the first to the last true value of each row, inclusive; 0 without any."""
    width = real.shape[1]
    ones = real.to(torch.uint8)
    first, after = ones.argmax(1), ones.flip(1).argmax(1)
    return ((width - after - first) * real.any(1)).tolist()
