"""Which optimizers' parameters each call of backward computes gradients for, what part of its graph
that takes, and which of these gradients are gone before that optimizer steps: fakes that are not
detached from their generator.

Watched while stacks are sampled, for that window has the most steps and none of its times count.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import dynamo, places
from .graph_parts import ComputedFor, parts
from .models import class_name, node_of, watched_by_script
from .patches import Patches, hidden
from .wire import MOST_GRAPH_NODES, NO_OPTIMIZER

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe

MOST_LINES = 64  # that call backward
READ = 4  # the smallest parameters, whose gradients tell whether all are gone


@dataclass
class Written:
    """What calls of backward at one line write for one optimizer. ``depth``: the furthest of its
    parameters from the loss, in nodes of the graph; ``module``: the class of the outermost module
    that has them; ``gone``: the calls whose gradients were deleted or zero before the optimizer
    stepped."""

    values: int
    depth: int
    module: str
    read: list[Any]  # weak references
    calls: int = 0
    gone: int = 0


class GradientUse:
    def __init__(
        self,
        probe: Probe,
        boundary: Boundary,
        optimizers: Iterable[Any],
        modules: Iterable[torch.nn.Module],
    ) -> None:
        self.probe, self.boundary = probe, boundary
        self.patches = Patches()
        # id of a parameter → id of the first optimizer that has it; id of an optimizer → those of
        # its parameters.
        self.owners: dict[int, int] = {}
        self.uses: dict[int, set[int]] = {}
        for optimizer in optimizers:
            mine = [id(p) for group in optimizer.param_groups for p in group["params"]]
            self.uses[id(optimizer)] = {self.owners.setdefault(p, id(optimizer)) for p in mine}
        # id of a parameter → the class of its outermost module.
        self.modules: dict[int, str] = {}
        self.without_optimizer = False  # some of their parameters get gradients and have none
        for module in modules:
            name = class_name(module)
            for parameter in module.parameters():
                self.modules[id(parameter)] = name
                self.without_optimizer |= (
                    parameter.requires_grad and id(parameter) not in self.owners
                )
        self.hook: Any = None
        # By the user's line and the line that called it, for several losses may share a helper.
        self.lines: dict[Any, dict[int, Written]] = {}
        # The parts of each line's graph, by the optimizers that they are for.
        self.parts: dict[Any, dict[frozenset[Any], ComputedFor]] = {}
        self.now: dict[int, Written] = {}  # the line whose call runs
        self.before: dict[int, Any] = {}  # by optimizer: the gradients before that call
        self.stepped: set[int] = set()  # optimizers that stepped since it began, in a hook perhaps
        self.waiting: dict[int, list[Written]] = {}  # by optimizer, since it last stepped

    def begin(self) -> None:
        # Which parameters no optimizer has: Inspection._unused_gradients. Compiled graphs would
        # notice the hooks, and the script's own modes would see what reads the gradients.
        if not (len(self.uses) > 1 or self.without_optimizer):
            return
        if dynamo.compiled_frames() or watched_by_script():
            return
        original: Any = torch.Tensor.backward
        boundary, guard, thread = self.boundary, self.probe.guard, self.probe.marks.thread

        @functools.wraps(original)
        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            # A closure's calls belong to the step that runs it.
            if boundary.depth or boundary.backward_depth or threading.get_ident() != thread:
                return original(self, *args, **kwargs)
            guard(watch._begins)(self, kwargs)
            result = original(self, *args, **kwargs)
            guard(watch._ended)()
            return result

        watch = self
        self.patches.set(torch.Tensor, "backward", hidden(backward))
        self.hook = register_optimizer_step_pre_hook(
            lambda optimizer, args, kwargs: guard(self._steps)(optimizer)
        )

    def end(self) -> None:
        """Take the hooks off."""
        self.patches.undo()
        if self.hook is not None:
            self.hook.remove()

    def write(self) -> None:
        """The `backwards` record, if the hooks were on."""
        if self.hook is None:
            return
        self.probe.recorder.write(
            "backwards",
            lines=[
                [
                    self._place(place),
                    [self._row(owner, w) for owner, w in line.items()],
                    self._parts(place),
                ]
                for place, line in self.lines.items()
            ],
        )

    def _place(self, chain: tuple[Any, ...]) -> Any:
        """The line that calls backward; where that is a helper of several losses, its caller."""
        alike = [other for other in self.lines if other[:1] == chain[:1]]
        return list(chain[-1 if len(alike) > 1 else 0]) if chain else None

    def _row(self, optimizer: int, w: Written) -> list[Any]:
        _, made_at = self.boundary.known.get(optimizer, (0, None))
        return [made_at, w.module, w.values, w.depth, w.calls, w.gone]

    def _parts(self, place: Any) -> list[list[Any]]:
        """With the numbers of the line's rows, null for leaves that are no parameters."""
        number = {owner: k for k, owner in enumerate(self.lines[place])} | {NO_OPTIMIZER: -1}
        return [
            [[number.get(x) for x in owners], part.nodes, part.products, part.numbers]
            for owners, part in self.parts.get(place, {}).items()
        ]

    def _begins(self, loss: Any, kwargs: Any) -> None:
        for owner, written in list(self.waiting.items()):
            if all(map(_is_gone, written[0].read)):
                for each in self.waiting.pop(owner):
                    each.gone += 1
        place = calling()
        if place not in self.lines and len(self.lines) < MOST_LINES and not kwargs.get("inputs"):
            self.lines[place], self.parts[place] = self._reached(node_of(loss))
        self.now = self.lines.get(place, {})
        self.before = {owner: _gradients(written) for owner, written in self.now.items()}
        self.stepped.clear()

    def _ended(self) -> None:
        for owner, written in self.now.items():
            # The same line may call backward of another loss.
            if owner in self.stepped:
                written.calls += 1
            elif _gradients(written) != self.before[owner]:
                written.calls += 1
                self.waiting.setdefault(owner, []).append(written)

    def _steps(self, optimizer: Any) -> None:
        for owner in self.uses.get(id(optimizer), ()):
            self.stepped.add(owner)
            self.waiting.pop(owner, None)

    def _owner(self, leaf: Any) -> int | None:
        known = self.owners.get(id(leaf))
        return NO_OPTIMIZER if known is None and id(leaf) in self.modules else known

    def _reached(self, node: Any) -> tuple[dict[int, Written], dict[frozenset[Any], ComputedFor]]:
        """By optimizer, and the parts of the graph; empty if it is too large to walk through."""
        found: dict[int, Written] = {}
        parameters: dict[int, list[Any]] = {}
        try:
            for leaf, depth in leaves(node):
                if (owner := self.owners.get(id(leaf))) is not None:
                    parameters.setdefault(owner, []).append(leaf)
                    found[owner] = Written(0, depth, self.modules.get(id(leaf), ""), [])
            parts_of = parts(node, self._owner)
        except OverflowError:
            return {}, {}
        for owner, mine in parameters.items():
            mine.sort(key=torch.Tensor.numel)
            found[owner].values = sum(map(torch.Tensor.numel, mine))
            found[owner].read = [weakref.ref(leaf) for leaf in mine[:READ]]
        return found, parts_of


def calling() -> tuple[Any, ...]:
    """The user's line that calls now, and the line that called that one."""
    return tuple(tuple(places.place_of(frame)) for frame in places.user_frames()[:2])


def leaves(node: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """The tensors that backward from this node writes gradients to, and how many nodes from it they
    are. OverflowError in a graph of more than ``MOST_GRAPH_NODES``."""
    seen, level, depth = {node}, [node], 0
    while level:
        depth += 1
        following = []
        for node in (n for x in level if x is not None for n, _ in x.next_functions):
            if node is None or node in seen:
                continue
            seen.add(node)
            following.append(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                yield leaf, depth
        if len(seen) > MOST_GRAPH_NODES:
            raise OverflowError(f"more than {MOST_GRAPH_NODES} nodes")
        level = following


def _gradients(written: Written) -> list[Any]:
    """What changes when backward writes them."""
    parameters = [reference() for reference in written.read]
    gradients = [None if parameter is None else parameter.grad for parameter in parameters]
    return [None if x is None else (id(x), x._version) for x in gradients]


def _is_gone(reference: Any) -> bool:
    parameter = reference()
    gradient = None if parameter is None else parameter.grad
    if gradient is None:
        return True
    # Reading a value from a device would wait for it.
    return gradient.device.type == "cpu" and not gradient.is_sparse and not gradient.any()
