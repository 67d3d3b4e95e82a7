"""The user's lines that make settings: where a torch switch was last set, and to which value.

Each name of :data:`SWITCHES`, and each class of :data:`CLASSES` that is made once to set something
up, is replaced by a wrapper that calls it and remembers the user's innermost line above. That costs
the call a few microseconds and changes nothing else. A setting made by a library's import or the
environment has no line.
"""

from __future__ import annotations

import cProfile  # noqa: F401 - so that the script's use of it is seen
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import places
from .patches import hidden
from .wire import MADE

if TYPE_CHECKING:
    from .core import Probe

# Setting → the functions (in torch, or in another module) that set it to their first argument.
SWITCHES = {
    "num_threads": ("torch.set_num_threads",),
    "anomaly": ("torch.set_anomaly_enabled",),
    "deterministic": ("torch.use_deterministic_algorithms", "torch.set_deterministic_debug_mode"),
    "float32_matmul_precision": ("torch.set_float32_matmul_precision",),
    # Called where torch.backends.cuda.matmul's allow_tf32 and fp32_precision are assigned; of the
    # latter the value is the name of the backend.
    "cuda.matmul.allow_tf32": ("torch._C._set_cublas_allow_tf32",),
    "fp32_precision": ("torch._C._set_fp32_precision_setter",),
    "default_dtype": ("torch.set_default_dtype", "torch.set_default_tensor_type"),
    "empty_cache": ("torch.cuda.empty_cache",),
    "gc.collect": ("gc.collect",),
}
# Attributes of torch.backends.cudnn whose assignment sets something.
CUDNN = ("benchmark", "deterministic", "allow_tf32")
# Classes whose objects are a setting; its value means that one was made.
CLASSES = (
    "torch.profiler.profile",
    "torch.autograd.profiler.profile",
    "cProfile.Profile",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
)
MOST = 64  # a number of threads that changes every step must not fill the disk


class SettingsWatch:
    """One per process. ``set``: (setting, value) → [the user's line, how often it was set]."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.set: dict[tuple[str, Any], list[Any]] = {}
        # The counts before the current window began, at this step.
        self.counted: dict[tuple[str, Any], int] = {}
        self.began_step = 0

    def install(self) -> None:
        for setting, paths in SWITCHES.items():
            for path in paths:
                owner, name = _find(path)
                if owner is not None:
                    self._watch(owner, name, functools.partial(self._called, setting))
        for name in CUDNN:
            # Class attributes with their own `setter` (torch.backends.ContextProp).
            switch = vars(type(torch.backends.cudnn)).get(name)
            if hasattr(switch, "setter"):
                self._watch(switch, "setter", functools.partial(self._called, f"cudnn.{name}"))
        for path in CLASSES:
            owner, name = _find(path)
            if owner is not None:
                self._watch(getattr(owner, name), "__init__", functools.partial(self._made, path))

    def begin_window(self) -> None:
        """From here on :meth:`write` counts settings."""
        self.counted = {key: times for key, (_, times) in self.set.items()}
        self.began_step = self.probe.step

    def write(self) -> None:
        """The `settings` record: rows of setting, value, place, times since the window began."""
        rows = [
            [setting, value, place, times - self.counted.get((setting, value), 0)]
            for (setting, value), (place, times) in self.set.items()
        ]
        if rows:
            steps = self.probe.step - self.began_step
            self.probe.recorder.write("settings", rows=rows, steps=steps)

    def _watch(self, owner: Any, name: str, note: Callable[..., Any]) -> None:
        original, guarded = getattr(owner, name), self.probe.guard(note)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            guarded(*args, **kwargs)
            return result

        self.probe.patches.set(owner, name, hidden(call))

    def _called(self, setting: str, *args: Any, **kwargs: Any) -> None:
        given = args or tuple(kwargs.values())
        value = given[0] if given else MADE
        self._keep(setting, value if isinstance(value, (bool, int, str)) else str(value)[:80])

    def _made(self, setting: str, *args: Any, **kwargs: Any) -> None:
        self._keep(setting, MADE)

    def _keep(self, setting: str, value: Any) -> None:
        place = places.caller_of_wrapper()
        if place is None:
            return
        key = (setting, value)
        if key in self.set or len(self.set) < MOST:
            entry = self.set.pop(key, [None, 0])  # the last one set comes last
            self.set[key] = [place, entry[1] + 1]


def _find(path: str) -> tuple[Any, str]:
    """The module that contains the last name of ``path``, and that name; (None, …) if torch does
    not have it, or the module was not imported."""
    module, name = path.rsplit(".", 1)
    owner = sys.modules.get(module)
    return (owner, name) if hasattr(owner, name) else (None, name)
