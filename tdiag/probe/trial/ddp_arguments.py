"""Changes an argument of every DistributedDataParallel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..patches import hidden
from ..places import caller
from .change import Trial, at

DEFAULT_CAP_MB = 25  # torch's own, where bucket_cap_mb is None


def argument(name: str, given: Any = None) -> Callable[[Trial, Any], None]:
    """Installs a change that sets this argument to the change's own value, or to ``given``."""
    change = f"ddp.{name}"

    def install(trial: Trial, value: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        wanted = value if given is None else given
        original = DistributedDataParallel.__init__
        signature = inspect.signature(original)

        def changed(args: Any, kwargs: Any) -> Any:
            bound = signature.bind_partial(*args, **kwargs)
            before = bound.arguments.get(name, signature.parameters[name].default)
            before = DEFAULT_CAP_MB if before is None else before
            line = caller()
            place = f"DistributedDataParallel{at(line)}"
            if before == wanted:
                trial.refused(change, f"{place} has {name}={wanted} already", line)
            else:
                bound.arguments[name] = wanted
                trial.applied(change, f"{place}: {name} {before} → {wanted}", line)
            return bound

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = trial.probe.guard(changed)((self, *args), kwargs)
            if bound is not None:
                args, kwargs = bound.args[1:], bound.kwargs
            original(self, *args, **kwargs)

        trial.patches.set(DistributedDataParallel, "__init__", hidden(init))

    return install
