"""Whether backward alone writes to a parameter's gradient.

A script that updates a parameter by hand, from its gradient, clears the gradient afterwards. One
that sets it to something else, such as an average of other weights, need not: then each backward
adds to a gradient that nobody uses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


class OnlyAdded:
    """Watches a parameter that has a gradient until backward has added to it ``times`` times.

    ``verdict``: True if nothing else wrote to the gradient meanwhile; False once something did, or
    it was replaced, and from the start if backward writes to it no more; None until then. A hook
    on the parameter is on for that long. ``guard``: makes it a function that never raises."""

    def __init__(self, parameter: Any, times: int, guard: Guard) -> None:
        self.times, self.seen = times, 0
        self.gradient = weakref.ref(parameter.grad)
        self.version = parameter.grad._version
        self.verdict: bool | None = None
        self.handle: Any = None
        if parameter.requires_grad and parameter.is_leaf:
            self.handle = parameter.register_post_accumulate_grad_hook(guard(self._added))
        else:
            self.verdict = False

    def _added(self, parameter: Any) -> None:
        self.seen += 1
        # Adding in place counts one version; so does clearing.
        alone = parameter.grad is self.gradient()
        if not alone or parameter.grad._version != self.version + self.seen:
            self.verdict = False
        elif self.seen >= self.times:
            self.verdict = True
        if self.verdict is not None:
            self.end()

    def end(self) -> None:
        """Take the hook off."""
        if self.handle is not None:
            self.handle.remove()
