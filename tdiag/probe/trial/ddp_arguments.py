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


def argument(
    name: str, given: Any = None, unset: Any = DEFAULT_CAP_MB, newer: str = ""
) -> Callable[[Trial, Any], None]:
    """Installs a change that sets this argument to the change's own value, or to ``given``.
    ``unset``: what None stands for; ``newer``: its name in later versions of torch."""
    change = f"ddp.{name}"

    def install(trial: Trial, value: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        wanted = value if given is None else given
        original = DistributedDataParallel.__init__
        signature = inspect.signature(original)
        latest = newer if newer in signature.parameters else name

        def changed(args: Any, kwargs: Any) -> Any:
            bound = signature.bind_partial(*args, **kwargs)
            here = name if name in bound.arguments else latest
            before = bound.arguments.get(here, signature.parameters[here].default)
            before = unset if before is None else before
            line = caller()
            place = f"DistributedDataParallel{at(line)}"
            if before == wanted:
                trial.refused(change, f"{place} has {here}={wanted} already", line)
            else:
                bound.arguments[here] = wanted
                trial.applied(change, f"{place}: {here} {before} → {wanted}", line)
            return bound

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = trial.probe.guard(changed)((self, *args), kwargs)
            if bound is not None:
                args, kwargs = bound.args[1:], bound.kwargs
            original(self, *args, **kwargs)

        trial.patches.set(DistributedDataParallel, "__init__", hidden(init))

    return install
