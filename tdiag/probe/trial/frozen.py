"""A user function that returns its earlier results instead of running.

Its code object is replaced, so every reference to the function is frozen: a global, a method, a
function handed to a DataLoader, and, after a fork, the workers' copy. A decorated function is
frozen together with its decorators.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from ..patches import FILE, hidden
from .change import Trial

MOST_KEPT = 256  # results of different indices; two large batches of samples
DEEPEST = 4  # nesting levels of a result searched for gradients

# What the new code of a replaced function calls, by number.
replaced: list[Callable[[Any, Any], Any]] = []

_TEMPLATE = """
def outer({free}):
    def {name}(*args, **kwargs):
        return __import__("sys").modules[{module!r}].replaced[{number}](args, kwargs)
        lambda: ({free})
    return {name}
"""


class Frozen:
    """One function. ``reason``: why it is not frozen after all."""

    def __init__(self, trial: Trial, change: str, function: Any, name: str) -> None:
        self.trial, self.change, self.name = trial, change, name
        self.function = function
        self.indexed = function.__name__ == "__getitem__"
        self.kept: dict[Any, Any] = {}
        self.busy = 0
        self.code = getattr(function, "__code__", None)
        self.reason = replace(function, self.called)
        if self.reason:
            trial.refused(change, f"{name} {self.reason}")

    def called(self, original: Any, args: Any, kwargs: Any) -> Any:
        if self.reason or self.busy:  # a recursive call
            return original(*args, **kwargs)
        key = self.trial.probe.guard(_key)(args, kwargs, self.indexed)
        if key is None:
            return original(*args, **kwargs)
        if key in self.kept or (self.indexed and len(self.kept) >= MOST_KEPT):
            self.trial.answer(self.change)
            if key not in self.kept:  # a new index: another sample
                key = list(self.kept)[hash(key) % len(self.kept)]
            return self.kept[key]
        before = self.trial.boundary.optimizer_steps, self.trial.backwards
        self.busy += 1
        try:
            result = original(*args, **kwargs)
        finally:
            self.busy -= 1
        if (self.trial.boundary.optimizer_steps, self.trial.backwards) != before:
            return self.give_up(result, "trains: training steps happen inside it")
        if _has_gradients(result, 0):
            return self.give_up(result, "returns tensors that carry gradients: without them"
                                " nothing before it would be trained")  # fmt: skip
        if isinstance(result, types.GeneratorType) or inspect.isawaitable(result):
            return self.give_up(result, "returns a generator")
        self.kept[key] = result
        self.trial.applied(self.change, f"{self.name} returns earlier results")
        return result

    def give_up(self, result: Any, why: str) -> Any:
        self.reason = why
        self.kept.clear()
        self.function.__code__ = self.code
        self.trial.refused(self.change, f"{self.name} {why}")
        return result


def replace(function: Any, answer: Callable[[Any, Any, Any], Any]) -> str:
    """Calls of ``function`` become ``answer(original, args, kwargs)``. Returns why that is
    impossible, or an empty string."""
    reason = _never(function)
    if reason:
        return reason
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    original.__kwdefaults__ = function.__kwdefaults__
    replaced.append(functools.partial(answer, original))
    function.__code__ = _trampoline(function.__code__, len(replaced) - 1)
    return ""


def replace_by_name(
    trial: Trial, change: str, spec: str, answer: Callable[[Any, Any, Any], Any]
) -> Callable[[], bool]:
    """:func:`replace` the function as soon as it is defined. Returns a function that says whether
    it is."""
    done: list[str] = []

    def look() -> bool:
        function = None if done else find(spec)
        if function is not None:
            done.append(replace(function, answer))
            if done[0]:
                trial.refused(change, f"{spec} {done[0]}")
        return bool(done)

    when_code_is_there(trial, look)
    return look


def freeze_by_name(trial: Trial, change: str, spec: str) -> None:
    """Freeze the function as soon as it is defined. Looks at the end of each step, when a
    DataLoader is read (before its workers start), and when an optimizer is made."""
    found: list[Frozen] = []

    def look() -> bool:
        if not found:
            function = find(spec)
            if function is not None:
                found.append(Frozen(trial, change, function, spec))
        return bool(found)

    when_code_is_there(trial, look)
    trial.waits[change] = lambda: look() and bool(found[0].kept or found[0].reason)


def when_code_is_there(trial: Trial, look: Callable[[], Any]) -> None:
    """Call ``look`` at moments at which the user's functions are defined."""
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch

    looked = trial.probe.guard(look)
    for owner, name in (
        (DataLoader, "__iter__"),
        (Optimizer, "_patch_step_function"),
        (fetch._BaseDatasetFetcher, "__init__"),
    ):
        trial.patches.set(owner, name, _after(looked, getattr(owner, name)))


def _after(look: Any, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        look()
        return original(*args, **kwargs)

    return hidden(call)


def find(spec: str) -> Any:
    """The function that ``FILE.py:a.b`` or ``module.a.b`` names; None if it is not defined yet."""
    file, colon, name = spec.rpartition(":")
    if colon:
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and _same_file(path, file):
                found = _attribute(module, name)
                if found is not None:
                    return found
        return None
    parts = spec.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        owner = sys.modules.get(".".join(parts[:cut]))
        if owner is not None:
            return _attribute(owner, ".".join(parts[cut:]))
    return None


def _same_file(path: str, wanted: str) -> bool:
    return path.endswith(os.path.basename(wanted)) and os.path.realpath(path) == os.path.realpath(
        wanted
    )


def _attribute(owner: Any, name: str) -> Any:
    for part in name.split("."):
        value = inspect.getattr_static(owner, part, None)
        if value is None and isinstance(owner, types.ModuleType):
            return None
        owner = value
    for inner in ("__func__", "fget"):  # a static or class method; a property
        owner = getattr(owner, inner, owner)
    return owner


def _never(function: Any) -> str:
    """Why this function can never be frozen."""
    if not isinstance(function, types.FunctionType):
        return "is not a Python function"
    flags = function.__code__.co_flags
    if flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "is a generator or a coroutine"
    if function.__name__ in ("__iter__", "__next__", "__init__", "__len__"):
        return "is called for its effect: a loop over its last result would not end"
    return ""


def _trampoline(code: types.CodeType, number: int) -> types.CodeType:
    """Code with as many free variables as ``code``; assigning ``function.__code__`` requires
    that."""
    free = ", ".join(f"v{i}" for i in range(len(code.co_freevars)))
    free += "," if free else ""
    name = code.co_name if code.co_name.isidentifier() else "frozen"
    space: dict[str, Any] = {}
    text = _TEMPLATE.format(free=free, name=name, module=__name__, number=number)
    exec(compile(text, FILE, "exec"), space)
    made = space["outer"](*code.co_freevars)
    return made.__code__  # type: ignore[no-any-return]


def _key(args: Any, kwargs: Any, indexed: bool) -> Any:
    """The key of a kept result: shapes of tensors (a last batch may be smaller), indices, and the
    object a method belongs to."""
    return tuple(_part(value, indexed) for value in (*args, *kwargs.values()))


def _part(value: Any, indexed: bool) -> Any:
    if indexed and type(value) is int:
        return value
    if hasattr(value, "shape"):
        return tuple(value.shape)
    if isinstance(value, (list, tuple, dict, set)):
        return type(value), len(value)
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return type(value)
    return id(value) if type(value).__hash__ is not None else type(value)


def _has_gradients(value: Any, depth: int) -> bool:
    if depth > DEEPEST:
        return False
    if getattr(value, "requires_grad", False) is True:
        return True
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, (list, tuple)) or type(value).__name__ == "dict_values":
        return any(_has_gradients(part, depth + 1) for part in value)
    return False
