"""The profilers, one per file; they are listed here by their window in :mod:`..wire`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wire import AGAIN, BASELINE, CALLS, OPS, SAMPLE, SYSCALLS, TRACE, TURNS

if TYPE_CHECKING:
    from ..core import Probe
    from ..plan import PlannedWindow
    from ..windows import Windows
    from .switched import Capture


def make_capture(windows: Windows, window: PlannedWindow, *more: Any) -> Capture | None:
    """The capture of a window; None for ``baseline``, in which only the hooks are on, unless the
    program is one of two that run in turns."""
    from .calls import CallsCapture
    from .ops import OpsCapture
    from .same_input import SameInputCapture
    from .sample import SampleCapture
    from .syscalls import SyscallsCapture
    from .trace import TraceCapture
    from .turns import TurnsCapture

    kinds: dict[str, type[Capture]] = {
        SAMPLE: SampleCapture,
        TRACE: TraceCapture,
        CALLS: CallsCapture,
        OPS: OpsCapture,
        AGAIN: SameInputCapture,
        SYSCALLS: SyscallsCapture,
    }
    if windows.probe.config.get("plan") == TURNS:
        kinds[BASELINE] = TurnsCapture
    return kinds[window.name](windows, window, *more) if window.name in kinds else None


def watch_fetches(probe: Probe) -> Any:
    """What compares the inputs of functions in a worker's first fetches."""
    from .same_input import InFetches

    return InFetches(probe)
