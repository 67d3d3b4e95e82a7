"""What frozen weights compute from the batch: the same numbers whenever a sample occurs again.

Results are followed from call to call. A result is frozen if no gradient is recorded for it and it
comes from a weight that nothing trains, directly or through other frozen results. If random numbers
reach such a weight, its results differ from epoch to epoch; they also differ if the script changes
the weight by hand (an average of the trained ones).
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..by_tensor import ByTensor
from ..models import nbytes

if TYPE_CHECKING:
    from ..inspection import Inspection

RANDOM = {
    "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "normal",
    "normal_", "bernoulli", "bernoulli_", "uniform_", "multinomial", "exponential_", "poisson",
}  # fmt: skip
BRANCHES = {"item", "__bool__", "__float__", "__int__", "__index__", "tolist", "numpy"}
DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"}
NORMS = {"batch_norm": ("training", 5), "instance_norm": ("use_input_stats", 5)}
_CHANGING = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}


class FrozenWeights:
    """One per window ``ops``."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self.trained = inspection.trained_parameters()
        self.weights: set[int] = set()
        self.results: ByTensor[bool] = ByTensor()
        self.drawn: ByTensor[bool] = ByTensor()  # tensors made from random numbers
        self.taken = 0  # bytes of frozen results that other calls took
        self.modes: set[str] = set()
        self.random = self.branched = self.in_step = self.written = False
        self.state = random.getstate()

    def seen(self, name: str, args: Any, kwargs: Any, result: Any) -> bool:
        """A call returned. Returns whether its result is frozen."""
        given = list(tensors_in(args, kwargs))
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        drawn = name in RANDOM or any(value in self.drawn for value in given)
        if drawn:
            self.branched = self.branched or name in BRANCHES
            keep(self.drawn, made)
        weights = [v for v in given if isinstance(v, torch.nn.Parameter)]
        taken = [v for v in given if v in self.results]
        if not made or not (weights or taken):
            return False
        others = [v for v in given if not isinstance(v, torch.nn.Parameter)]
        recorded = any(value.requires_grad for value in (*made, *others))
        if recorded or any(id(weight) in self.trained for weight in weights):
            for value in taken:
                self.taken += nbytes(value) if value in self.results else 0  # not twice
                self.results.drop(value)
            return False
        if weights:
            changed = changes(name) and any(m is w for m in made for w in weights)
            self.written = self.written or changed
            self._weights(weights)
            self.random = self.random or drawn or self.branched
        self._mode(name, args, kwargs)
        keep(self.results, made)
        return True

    def _weights(self, weights: list[Any]) -> None:
        if not self.in_step:
            self.in_step = True
            self.random = self.random or random.getstate() != self.state
        for weight in weights:
            self.weights.add(id(weight))
            self.inspection.frozen.note(weight)

    def backward_begins(self) -> None:
        """Calls after this belong to another step."""
        self.branched = self.in_step = False
        self.state = random.getstate()

    def _mode(self, name: str, args: Any, kwargs: Any) -> None:
        """Note a call that gives different numbers in training and in evaluation."""

        def given(key: str, at: int, otherwise: Any) -> Any:
            return kwargs.get(key, args[at] if len(args) > at else otherwise)

        if name in NORMS:
            active = given(*NORMS[name], False)
        elif name in DROPOUTS:
            active = given("p", 1, 0.5) and given("training", 2, True)
        elif name == "scaled_dot_product_attention":
            active = given("dropout_p", 4, 0.0)
        elif name == "multi_head_attention_forward":
            active = given("dropout_p", 10, 0.0) and given("training", 13, True)
        else:
            return
        if active:
            self.modes.add(name.replace("_", " ") if name in NORMS else "dropout")

    def report(self) -> dict[str, Any]:
        """The field `frozen` of the `ops` record; null if no frozen weight was used."""
        if not self.weights:
            return {"frozen": None}
        return {
            "frozen": {
                "names": self._names(),
                "features": self.taken,
                "modes": sorted(self.modes),
                "random": self.random,
                "changed": self.written or self.inspection.frozen.changed(),
            }
        }

    def _names(self) -> list[str]:
        """The smallest module that contains all of them, for each outermost module."""
        found = []
        for _, module in self.inspection.alive():
            named = module.named_parameters()
            inside = [name.rpartition(".")[0] for name, p in named if id(p) in self.weights]
            if inside:
                shared = posixpath.commonpath(name.replace(".", "/") for name in inside)
                found.append(f"{type(module).__name__}/{shared}".rstrip("/").replace("/", "."))
        return found


def changes(name: str) -> bool:
    """Whether a call of this name changes its first argument in place."""
    return name in _CHANGING or (name.endswith("_") and not name.endswith("__"))


def keep(known: ByTensor[bool], tensors: list[Any]) -> None:
    for tensor in tensors:
        known.keep(tensor, True)


def tensors_in(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in flat((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            yield value


def flat(values: Any) -> Iterator[Any]:
    """The values, including those in lists and tuples (a recurrent layer's weights, tensors to
    join)."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value
