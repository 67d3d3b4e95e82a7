"""The time of backward by the user's line whose calls made its nodes.

A hook reads the clock before each node that is seen. From there to the next one, backward works for
that line: sums of gradients go with the node before them. Not with a device, where backward only
issues work, nor in a job of several ranks, where it also waits for the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..models import node_of
from ..wire import MOST_GRAPH_NODES
from .frozen_weights import flat
from .lines import KNOWN_AT_ONCE, LineCalls

# Calls that change their first argument, beside those whose names end in one underscore.
_CHANGING = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
_LEAF = 1 << 63  # the sequence numbers of nodes that add gradients up are larger


class _MadeBy(NamedTuple):
    """The line whose call made a node, and the parts of that call's time, 0..1."""

    line: LineCalls
    parts: tuple[tuple[str, float], ...]


class BackwardTimes:
    """One per window ``ops``, for its thread. Nodes are known by their sequence numbers, which no
    two of a thread share. ``other``: the time of nodes that no counted call made, ns.
    ``incomplete``: some nodes could not be hooked, so that their time went to others."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.known: set[int] = set()
        self.most = MOST_GRAPH_NODES  # of one graph
        self.running = 0  # backward passes that run, one within another
        self.maker: _MadeBy | None = None
        self.since: int | None = None  # None before the first node: the engine orders the graph
        self.other = 0
        self.incomplete = False

    def begins(self) -> None:
        if threading.get_ident() != self.thread:
            return
        if not self.running:
            self.since = None
        self.running += 1

    def ends(self) -> None:
        if threading.get_ident() != self.thread:
            return
        self.running -= 1
        if not self.running:
            self._count(time.perf_counter_ns())
            self.most = len(self.known) + MOST_GRAPH_NODES

    @staticmethod
    def parts_of(line: LineCalls) -> tuple[int, ...]:
        """For ``made``, before the call is counted."""
        return tuple(getattr(line, name) for name in KNOWN_AT_ONCE)

    def made(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        results: Sequence[Any],
        line: LineCalls,
        took: int,
        before: tuple[int, ...],
    ) -> None:
        """A call of this line returned after ``took`` ns."""
        given = (*args, *kwargs.values())
        if name in _CHANGING or (name.endswith("_") and not name.endswith("__")):
            results, given = (*results, *given[:1]), given[1:]
        self.unknown(flat(given))
        grown = zip(KNOWN_AT_ONCE, self.parts_of(line), before, strict=True)
        parts = tuple((part, min(1.0, (now - was) / took)) for part, now, was in grown if now > was)
        self._hook(results, _MadeBy(line, parts))

    def unknown(self, values: Iterable[Any]) -> None:
        """Tensors that a call or a backward got: no counted call made their new nodes."""
        self._hook(values, None)

    def report(self) -> dict[str, Any]:
        return {} if self.incomplete else {"backward_other": self.other}

    def _hook(self, values: Iterable[Any], maker: _MadeBy | None) -> None:
        """The nodes of these tensors' graphs, down to known ones."""
        waiting = [node_of(x) for x in values if isinstance(x, torch.Tensor)]
        while waiting:
            node = waiting.pop()
            if node is None:
                continue
            if not hasattr(node, "_sequence_nr") or len(self.known) >= self.most:
                self.incomplete = True  # old versions of torch number no function written in Python
                return
            number = node._sequence_nr()
            if number in self.known or number >= _LEAF:
                continue
            self.known.add(number)
            node.register_prehook(self._hook_of(maker))
            waiting += [following for following, _ in node.next_functions]

    def _hook_of(self, maker: _MadeBy | None) -> Any:
        def begins(_: Any) -> None:
            try:
                if self.running and threading.get_ident() == self.thread:
                    self._count(time.perf_counter_ns())
                    self.maker, self.since = maker, time.perf_counter_ns()
            except Exception:  # it must not reach the user's backward
                self.incomplete = True

        return begins

    def _count(self, now: int) -> None:
        if self.since is None:
            return
        spent = now - self.since
        if self.maker is None:
            self.other += spent
            return
        times = self.maker.line.final.backward
        times["elapsed"] += spent
        for name, part in self.maker.parts:
            times[name] += round(spent * part)
