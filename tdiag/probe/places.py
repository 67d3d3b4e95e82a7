"""Finds the user's own line behind a call."""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType, FrameType
from typing import Any

from .patches import FILE
from .wire import COMPREHENSIONS, is_user_file

_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
# Files with torch's functions and methods that a function mode sees as one call.
_ONE_CALL = tuple(
    os.path.join("torch", *name)
    for name in (("_tensor.py",), ("functional.py",), ("nn", "functional.py"), ("overrides.py",))
)
_MODULE = os.path.join("torch", "nn", "modules", "module.py")
_FORMATS = tuple(os.path.join("torch", name) for name in ("_tensor.py", "_tensor_str.py"))


def caller() -> list[Any] | None:
    """``[file, line, function]`` of the innermost user frame above this call, or None.

    None if only libraries called (a launcher, a framework's own loop).
    """
    return caller_and_callee()[0]


def caller_and_callee() -> tuple[list[Any] | None, FrameType | None]:
    """:func:`caller`, and the frame of the library's function that the user's line called. None if
    that is torch's own name for one call (``x.norm()``): then the line itself made it."""
    frame: FrameType | None = sys._getframe(1)
    callee = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename != FILE and not code.co_filename.startswith(_PROBE):
            if is_user_file(code.co_filename):
                return place_of(frame), callee
            callee = None if code.co_filename.endswith(_ONE_CALL) else frame
        frame = frame.f_back
    return None, callee


def caller_outside_models() -> list[Any] | None:
    """:func:`caller`; where that is a model's own method, the user's line that called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    innermost = frame
    while frame is not None and is_users(frame) and _is_models(frame):
        frame = frame.f_back
    if frame is None or not is_users(frame):
        frame = innermost  # a framework called the method
    return place_of(frame) if frame is not None else None


def caller_of_modules() -> list[Any] | None:
    """The user's line that called the outermost module which this call runs in; :func:`caller`
    without one."""
    frame: FrameType | None = sys._getframe(1)
    found, inside = None, False
    while frame is not None:
        if frame.f_code.co_filename.endswith(_MODULE):
            inside = True
        elif inside and is_users(frame):
            found, inside = frame, False
        frame = frame.f_back
    return place_of(found) if found is not None else caller()


def is_users_module(name: str) -> bool:
    """Whether the module's code is the user's. A ``__main__`` without a file was typed into a
    notebook."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_user_file(file) if file else name == "__main__"


def is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name != FILE and not name.startswith(_PROBE) and is_user_file(name)


def _is_models(frame: FrameType) -> bool:
    """Whether it runs a method of a module."""
    import torch  # not above: tdiag's commands also read this file, and they need no torch

    frame = of_function(frame)
    code = frame.f_code
    first = type(frame.f_locals.get(code.co_varnames[0])) if code.co_argcount else object
    method = getattr(first, code.co_name, None)
    return issubclass(first, torch.nn.Module) and getattr(method, "__code__", None) is code


def of_function(frame: FrameType) -> FrameType:
    """The frame of the function that its line is written in; a comprehension, for which Python may
    run a function of its own, is in the one around it."""
    code = frame.f_code
    if code.co_name not in COMPREHENSIONS:
        return frame
    around = frame.f_back
    while around is not None and not any(const is code for const in around.f_code.co_consts):
        around = around.f_back
    return frame if around is None else of_function(around)  # None: its function has returned


def place_of(frame: FrameType) -> list[Any]:
    """``[file, line, function]`` of what it runs now."""
    code = of_function(frame).f_code
    return [os.path.abspath(code.co_filename), frame.f_lineno, code.co_name]


def user_frames() -> list[FrameType]:
    """The user's frames above this call, innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def running() -> set[int]:
    """The ids of the frames that run now; the frames themselves would keep each other alive."""
    found = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def calls_through(file: str) -> bool:
    """Whether a function of a file whose name ends like this runs above this call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def reader(frame: FrameType | None, torchs: str) -> FrameType | None:
    """The frame that asks for a tensor's value, found from the frame that calls torch's method. A
    line that formats a tensor asks for it through torch. None if torch, whose folder is ``torchs``,
    or the probe asks."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name != FILE and not name.endswith(_FORMATS):
            return None if name.startswith((torchs, _PROBE)) else frame
        frame = frame.f_back
    return None


def caller_of_wrapper() -> list[Any] | None:
    """:func:`caller` of a hidden wrapper, or None if the probe itself called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_PROBE):
            return None
        frame = frame.f_back
    return caller()


def definition(function: Any) -> list[Any] | None:
    """Where a function or method was written, or the one that runs when an object is called; None
    for builtins and for torch's own."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    if not isinstance(code, CodeType) or "/torch/" in code.co_filename:
        return None
    return [os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name]
