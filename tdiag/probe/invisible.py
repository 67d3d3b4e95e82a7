"""Keeps the probe's wrappers out of the user's tracebacks and warnings.

A wrapper in Python is a frame in Python. ``hidden`` gives it a file name that the ``warnings``
module skips when it counts stack levels (as it does for the import system), and
``install_filter`` takes such frames out of a traceback before anybody formats it.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# warnings skips frames whose file name holds both "importlib" and "_bootstrap".
FILE = "<tdiag importlib._bootstrap>"


def hidden(function: F) -> F:
    """Mark a wrapper so that tracebacks and warnings pass over it, and dynamo compiles what it
    calls, as without it, instead of the wrapper."""
    function.__code__ = function.__code__.replace(co_filename=FILE)
    _let_dynamo_pass(function.__code__)
    return function


def _let_dynamo_pass(code: Any) -> None:
    """As ``torch._dynamo.decorators.skip`` does, without importing dynamo: compile no frame of this
    code, but those that it calls. Where torch's names have gone, dynamo compiles the wrapper."""
    torch = sys.modules.get("torch")
    frames: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        frames.set_code_exec_strategy(code, strategy)
    elif hasattr(frames, "skip_code"):  # before torch 2.7 or so
        frames.skip_code(code)


def strip(error: BaseException | None) -> None:
    """Take hidden frames out of the tracebacks of ``error`` and of what caused it, in place."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_hidden(error.__traceback__)
        if error.__cause__ is not None and error.__context__ is not error.__cause__:
            strip_one = error.__context__
            if strip_one is not None:
                strip_one.__traceback__ = _without_hidden(strip_one.__traceback__)
        error = error.__cause__ or error.__context__


def _without_hidden(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == FILE:
        trace = trace.tb_next
    current = trace
    while current is not None:
        after = current.tb_next
        while after is not None and after.tb_frame.f_code.co_filename == FILE:
            after = after.tb_next
        current.tb_next = after
        current = after
    return trace


def install_filter() -> None:
    """Filter where tracebacks come to light: the except hooks and the ``traceback`` module."""
    sys.excepthook = _filtered_hook(sys.excepthook)
    threading.excepthook = _filtered_thread_hook(threading.excepthook)
    original = traceback.TracebackException.__init__

    @functools.wraps(original)
    def init(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any, **kwargs: Any) -> None:
        if isinstance(exc_value, BaseException):
            strip(exc_value)
            exc_traceback = _without_hidden(exc_traceback)
        original(self, exc_type, exc_value, exc_traceback, **kwargs)

    traceback.TracebackException.__init__ = hidden(init)  # type: ignore[method-assign]


def _filtered_hook(original: Any) -> Any:
    @functools.wraps(original)
    def excepthook(kind: Any, value: Any, trace: Any) -> Any:
        strip(value)
        return original(kind, value, _without_hidden(trace))

    return hidden(excepthook)


def _filtered_thread_hook(original: Any) -> Any:
    @functools.wraps(original)
    def excepthook(args: Any) -> Any:
        strip(args.exc_value)
        return original(args)

    return hidden(excepthook)
