"""Calls of ``torch.autograd.grad`` that differentiate one output again, with respect to other
inputs: each goes through the graph from the output, most of which they share."""

from __future__ import annotations

from typing import Any

import torch

from ..wire import GRAD_OF_ELEMENT, MOST_GRAPH_NODES
from .lines import LineCalls

GRADS = {"grad", GRAD_OF_ELEMENT}
MOST_OUTPUTS = 64
_SUM = "SumBackward"  # the gradient of a sum is that of all its elements


class SeparateGradients:
    """One per window ``ops``. Nodes are known by their sequence numbers, which no two of a thread
    share."""

    def __init__(self) -> None:
        self.walked: dict[int, set[int]] = {}  # by output: nodes that earlier calls went through

    def seen(self, name: str, args: Any, kwargs: Any, line: LineCalls, took: int) -> None:
        """A call of this line returned after ``took`` ns."""
        if name not in GRADS:
            return
        output = _only(args[0] if args else kwargs.get("outputs"))
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        node = getattr(output, "grad_fn", None)
        if node is not None and output.numel() == 1 and node.name().startswith(_SUM):
            node = node.next_functions[0][0]
        if node is None:
            return
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs or ())
        path = _between(node, wanted)
        number = node._sequence_nr()
        earlier = self.walked.get(number)
        if earlier is None:
            if len(self.walked) >= MOST_OUTPUTS:
                self.walked.clear()
            self.walked[number] = path
        elif path:
            line.separate += round(took * len(path & earlier) / len(path))
            earlier |= path


def _only(outputs: Any) -> Any:
    if isinstance(outputs, (list, tuple)):
        return outputs[0] if len(outputs) == 1 else None
    return outputs


def _between(output: Any, inputs: list[Any]) -> set[int]:
    """The nodes that lead from the output to any of the inputs; none in too large a graph."""
    leaves = {id(x) for x in inputs if x.grad_fn is None}
    ends = {x.grad_fn._sequence_nr() for x in inputs if x.grad_fn is not None}
    leads: dict[Any, bool] = {}
    found: set[int] = set()
    waiting = [output]
    while waiting:
        node = waiting[-1]
        following = [n for n, _ in node.next_functions if n is not None]
        if node not in leads:
            leads[node] = False
            if len(leads) > MOST_GRAPH_NODES:
                return set()
            waiting += [n for n in following if n not in leads]
            continue
        waiting.pop()
        variable = getattr(node, "variable", None)
        leads[node] = (
            id(variable) in leaves
            or (variable is None and node._sequence_nr() in ends)
            or any(leads.get(n, False) for n in following)
        )
        if leads[node] and variable is None:
            found.add(node._sequence_nr())
    return found
