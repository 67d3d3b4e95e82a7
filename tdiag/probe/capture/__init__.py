"""One profiler a file. Each is switched on and off at step boundaries by the windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core import Probe
    from ..plan import Window


class Capture:
    """``start`` (may take time) → ``ready``? → ``begin`` → ``step``… → ``end`` or ``abort``."""

    slow_start = False  # switching it on holds the process up: settle again once it is ready

    def __init__(self, probe: Probe, window: Window) -> None:
        self.probe, self.window = probe, window

    def start(self) -> str:
        """Switch on; returns why it cannot be done, or an empty string."""
        return ""

    def ready(self) -> bool:
        return True

    def begin(self) -> None:
        """The window begins here."""

    def step(self) -> None:
        """A step of the window ended."""

    def end(self, steps: int) -> None:
        """Switch off, and write down what ``steps`` steps gave."""

    def abort(self) -> None:
        """Switch off and keep nothing."""


def make_capture(probe: Probe, window: Window) -> Any:
    """The capture of a window; None for ``baseline``, where only the hooks are on."""
    from .calls import CallsCapture
    from .ops import OpsCapture
    from .sample import SampleCapture
    from .trace import TraceCapture

    kinds = {
        "sample": SampleCapture,
        "trace": TraceCapture,
        "calls": CallsCapture,
        "ops": OpsCapture,
    }
    return kinds[window.name](probe, window) if window.name in kinds else None
