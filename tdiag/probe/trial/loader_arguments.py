"""Changes arguments of every DataLoader, all at once: some need others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..patches import hidden
from ..places import caller
from .change import Trial, at

NEED_WORKERS = ("prefetch_factor", "persistent_workers", "in_order")
# torch refuses these without workers.
WITHOUT_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0,
                   "multiprocessing_context": None}  # fmt: skip


def argument(name: str) -> Callable[[Trial, Any], None]:
    """Installs a change that sets this argument of each DataLoader."""

    def install(trial: Trial, value: Any) -> None:
        if "loader" not in trial.shared:
            trial.shared["loader"] = {}
            _wrap(trial)
        trial.shared["loader"][name] = value

    return install


def _wrap(trial: Trial) -> None:
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = trial.probe.guard(_changed)(trial, signature, (self, *args), kwargs)
        if bound is not None:
            args, kwargs = bound.args[1:], bound.kwargs
        original(self, *args, **kwargs)

    trial.patches.set(DataLoader, "__init__", hidden(init))


def _changed(trial: Trial, signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    bound = signature.bind_partial(*args, **kwargs)
    given, wanted = bound.arguments, trial.shared["loader"]
    line = caller()
    place = at(line)
    workers = wanted.get("num_workers", given.get("num_workers", 0))
    for name, value in wanted.items():
        change = f"loader.{name}"
        before = given.get(name, signature.parameters[name].default)
        if before is None and name == "prefetch_factor":
            before = 2  # DataLoader's default with workers
        if name in NEED_WORKERS and not workers:
            trial.refused(change, f"the DataLoader{place} has no workers", line)
        elif before == value:
            trial.refused(change, f"the DataLoader{place} has {name}={value} already", line)
        else:
            given[name] = value
            trial.applied(change, f"DataLoader{place}: {name} {before} → {value}", line)
    if not workers:
        given.update({k: v for k, v in WITHOUT_WORKERS.items() if k in given})
    return bound
