"""Calls that record gradients, or are made within a module's forward, and whose results nothing
uses: passes for a figure that no one reads, branches of a model whose results are dropped.

A call is used if one of its results is read by Python (``item()``, printed, as numpy), is written
into a tensor that the counted steps did not make, is differentiated, or goes into a call that is
used. Tensors are known by their storage, so a view is its base. What a backward reaches counts as
used too: custom autograd functions take tensors unseen. While Python can still reach a result,
nothing is known of it. Of the calls that record no gradients only those of modules count, in a run
of one rank: other results may go to extensions and to other ranks unseen.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import places
from ..by_tensor import MOST_TRACKED
from ..models import node_of, nodes_below
from ..wire import GRAD_OF_ELEMENT, MOST_GRAPH_NODES
from .flow import NORMS
from .frozen_weights import changes, flat, tensors_in
from .lines import LineCalls

# These ask for a tensor's form, not for its values.
OF_FORM = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size",
    "__len__", "__hash__", "is_contiguous", "is_floating_point", "is_complex", "is_signed",
    "is_same_size", "get_device", "retain_grad",
}  # fmt: skip
DIFFERENTIATE = {"grad", GRAD_OF_ELEMENT}
NEVER, KEPT, USED = range(3)


class Call:
    """``node``: the number of its result's node in the graph, None if it recorded none;
    ``counts``: whether it counts if nothing uses its results; if so, ``stack``: the user's lines
    that led to it, innermost first; ``storages``: of its results; ``of``: what it took; ``fate``:
    of its results, ``KEPT`` if Python could still use them at the end."""

    __slots__ = ("counts", "fate", "line", "node", "of", "stack", "storages", "took")

    def __init__(self, line: LineCalls, took: int, node: int | None, counts: bool) -> None:
        self.line, self.took, self.node, self.counts = line, took, node, counts
        frames = places.user_frames() if counts else ()
        self.stack = tuple((places.of_function(frame).f_code, frame.f_lineno) for frame in frames)
        self.storages: list[Any] = []
        self.of: list[Value] = []
        self.fate = NEVER


class Value:
    """What a storage holds. ``reference``: a weak one to the storage, which keeps its address from
    being used again; ``makers``: the calls that made or changed it, all at least of this
    ``fate``."""

    __slots__ = ("fate", "makers", "reference")

    def __init__(self, reference: Any) -> None:
        self.reference, self.fate = reference, NEVER
        self.makers: list[Call] = []


class UnusedResults:
    """One per window ``ops``."""

    def __init__(self, alone: bool) -> None:
        """``alone``: there are no other ranks."""
        self.alone = alone
        self.calls: list[Call] = []
        self.values: dict[int, Value] = {}  # by the address of the storage
        self.lost = False  # too much to follow: nothing is known
        # Place → ns. The outermost line that leads to nothing used, for what it calls may also be
        # called from elsewhere.
        self.lines: dict[Any, int] = {}

    def seen(
        self, name: str, args: Any, kwargs: Any, result: Any, line: LineCalls, took: int,
        used: bool, in_module: bool,
    ) -> None:  # fmt: skip
        """A call of this line returned after ``took`` ns. ``used``: it counts as used, whatever
        becomes of its results; ``in_module``: it was made while a module was called."""
        if self.lost or name in OF_FORM:
            return
        given = list(tensors_in(args, kwargs))
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        taken = {_address(value) for value in given} - {0}
        in_place = changes(name) or "out" in kwargs
        if made and not in_place and all(_address(value) in taken for value in made):
            return  # a view: its base is known
        node = next((n for n in map(_node, made) if n is not None), None)
        call = Call(line, took, node, node is not None or (in_module and self.alone))
        self.calls.append(call)
        call.of = [value for value in map(self._known, given) if value is not None]
        if in_place:
            made = list(tensors_in((kwargs.get("out", args[0] if args else None),), {}))
        # A pass without gradients may be there for the running statistics alone.
        used = used or not made or (node is None and _counts_batches(name, args, kwargs))
        for tensor in made:
            value = self._known(tensor) if in_place else self._made(tensor, taken)
            # Nothing shows what becomes of it, or it is used, or older than these steps.
            if value is None or value.fate == USED:
                used = used or in_place or _address(tensor) not in taken
            else:
                value.makers.append(call)
                call.storages.append(value.reference)
        if name in DIFFERENTIATE:
            self.differentiated(args[0] if args else kwargs.get("outputs"))
            used = True
        self.lost = len(self.calls) > MOST_TRACKED
        if used:
            _mark([call], USED)

    def differentiated(self, roots: Any) -> None:
        """Gradients of these are computed."""
        roots = [root for root in flat((roots,)) if isinstance(root, torch.Tensor)]
        _mark(_makers((value for root in roots if (value := self._known(root))), USED), USED)
        nodes = nodes_below(roots)
        self.lost = self.lost or len(nodes) >= MOST_GRAPH_NODES
        reached = {node._sequence_nr() for node in nodes}
        _mark((call for call in self.calls if call.node in reached), USED)

    def spent(self, nodes: Mapping[int | None, bool]) -> tuple[int, int]:
        """The time of the calls that made these nodes of the graph, ns: of those that are true, and
        of all. The nodes are given by their sequence numbers."""
        known = [(nodes[x.node], x.took) for x in self.calls if x.node in nodes]
        return sum(took for chosen, took in known if chosen), sum(took for _, took in known)

    def settle(self) -> None:
        """The window ends. Of calls whose results may still be used, as many count as of those
        that the same lines led to in other steps."""
        if not self.lost:
            _mark((call for call in self.calls if call.fate == NEVER and _alive(call)), KEPT)
            spent: dict[tuple[LineCalls, Any], Counter[int]] = {}
            of_used = {place for call in self.calls if call.fate == USED for place in call.stack}
            counted = [call for call in self.calls if call.counts]
            for call in counted:
                key = call.line.final, call.stack
                spent.setdefault(key, Counter())[call.fate] += call.took
            for (line, _), by_fate in spent.items():
                known = by_fate[NEVER] + by_fate[USED]
                share = by_fate[NEVER] / known if known else 0.0
                line.never_used += round(by_fate[NEVER] + share * by_fate[KEPT])
            for call in counted:
                if call.fate == NEVER and call.stack:
                    place = next((x for x in call.stack[::-1] if x not in of_used), call.stack[0])
                    self.lines[place] = self.lines.get(place, 0) + call.took
        self.calls, self.values = [], {}

    def report(self) -> dict[str, Any]:
        """The field `never_used` of the `ops` record."""
        found = [
            [[os.path.abspath(code.co_filename), number, code.co_name], took]
            for (code, number), took in self.lines.items()
        ]
        return {"never_used": found}

    def _known(self, tensor: torch.Tensor) -> Value | None:
        return self.values.get(_address(tensor))

    def _made(self, tensor: torch.Tensor, taken: set[int]) -> Value | None:
        """None for a tensor whose use nothing shows, and for a view of one that is older.
        ``taken``: the storages of what the call took."""
        address = _address(tensor)
        if address and address not in taken and address not in self.values:
            self.values[address] = Value(StorageWeakRef(tensor.untyped_storage()))
        return self.values.get(address)


def _counts_batches(name: str, args: Any, kwargs: Any) -> bool:
    """Whether it is a norm that updates its running statistics."""
    if name not in NORMS:
        return False
    running = kwargs.get("running_mean", args[1] if len(args) > 1 else None)
    return running is not None and bool(kwargs.get("training") or kwargs.get("use_input_stats"))


def _address(tensor: torch.Tensor) -> int:
    """0 for one without a storage: sparse, or within a transform of functions."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def _node(tensor: torch.Tensor) -> int | None:
    node = node_of(tensor)
    return None if node is None else node._sequence_nr()


def _alive(call: Call) -> bool:
    return any(not reference.expired() for reference in call.storages)


def _mark(calls: Iterable[Call], fate: int) -> None:
    """These calls, and those that they took results of."""
    left = list(calls)
    while left:
        call = left.pop()
        if call.fate < fate:
            call.fate = fate
            left += _makers(call.of, fate)


def _makers(values: Iterable[Value], fate: int) -> list[Call]:
    """Of those that do not have this fate yet. Each value is gone through once, however many calls
    take it."""
    found: list[Call] = []
    for value in values:
        if value.fate < fate:
            value.fate = fate
            found += value.makers
    return found
