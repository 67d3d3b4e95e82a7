"""Replaces attributes by hidden wrappers, and puts the originals back.

A Python wrapper is a Python frame. ``hidden`` gives it a file name that the ``warnings`` module
skips when it counts stack levels (as it does for the import system), and ``install_filter`` removes
such frames from a traceback before it is formatted.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# warnings skips frames whose file name contains both "importlib" and "_bootstrap".
FILE = "<tdiag importlib._bootstrap>"

# What happens to a patch after the last window: it goes, comes back in each late window, or stays.
GOES, RETURNS, STAYS = range(3)
# Owner, name, wrapper, whether the owner itself had the name, the original, and one of these.
Patch = tuple[Any, str, Any, bool, Any, int]


def hidden(function: F) -> F:
    """Mark a wrapper so that tracebacks and warnings skip it, and dynamo compiles what it calls, as
    without it, instead of the wrapper."""
    function.__code__ = function.__code__.replace(co_filename=FILE)
    _let_dynamo_pass(function.__code__)
    return function


def _let_dynamo_pass(code: Any) -> None:
    """Like ``torch._dynamo.decorators.skip``, without importing dynamo: compile no frame of this
    code, only the frames that it calls. If torch's names have changed, dynamo compiles the
    wrapper."""
    torch = sys.modules.get("torch")
    frames: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        frames.set_code_exec_strategy(code, strategy)
    elif hasattr(frames, "skip_code"):  # before about torch 2.7
        frames.skip_code(code)


def hide_from_dynamo(package: str) -> None:
    """Make dynamo compile no function of this package: after a graph break, or for a function that
    was given up, it would otherwise compile the functions that a wrapper calls like the user's."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for holder in (module, *vars(module).values()):
                if holder is module or getattr(holder, "__module__", None) == name:
                    for value in list(getattr(holder, "__dict__", {}).values()):
                        function = getattr(value, "fget", getattr(value, "__func__", value))
                        if isinstance(function, FunctionType) and function.__module__ == name:
                            _pass_all(function.__code__)


def _pass_all(code: CodeType) -> None:
    """Also for the functions defined inside; all their closures share one code."""
    _let_dynamo_pass(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _pass_all(inner)


def strip(error: BaseException | None) -> None:
    """Remove hidden frames from the tracebacks of ``error`` and of its causes, in place."""
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


def install_filter() -> Patches:
    """Filter where tracebacks are shown: the except hooks and the ``traceback`` module. The
    returned patches undo it, once no frame of a wrapper can be left."""
    # inspect.stack() looks for the source of each frame: through all modules for a file that does
    # not exist, a millisecond for each wrapper, unless this cache says that no module is from it.
    inspect.modulesbyfile[FILE] = ""
    patches = Patches()
    patches.set(sys, "excepthook", _filtered_hook(sys.excepthook))
    patches.set(threading, "excepthook", _filtered_thread_hook(threading.excepthook))
    original = traceback.TracebackException.__init__

    @functools.wraps(original)
    def init(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any, **kwargs: Any) -> None:
        if isinstance(exc_value, BaseException):
            strip(exc_value)
            exc_traceback = _without_hidden(exc_traceback)
        original(self, exc_type, exc_value, exc_traceback, **kwargs)

    patches.set(traceback.TracebackException, "__init__", hidden(init))
    return patches


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


class Patches:
    """Every attribute that the probe has replaced, so that it leaves no trace when it is done."""

    def __init__(self) -> None:
        self.made: list[Patch] = []
        self.resting: list[Patch] = []  # oldest first

    def set(self, owner: Any, name: str, wrapper: Any, afterwards: int = GOES) -> None:
        """``owner.name = wrapper``; remembers whether ``owner`` itself had the name before."""
        own = name in vars(owner)
        original = vars(owner)[name] if own else None
        setattr(owner, name, wrapper)
        self.made.append((owner, name, wrapper, own, original, afterwards))

    def undo(self) -> None:
        """Undo, newest first. Leaves attributes that other code has wrapped since."""
        self._take_off(self.made)
        self.made.clear()
        self.resting.clear()

    def rest(self) -> None:
        """Undo all but those that stay."""
        moved = [patch for patch in self.made if patch[-1] != STAYS]
        self.made = [patch for patch in self.made if patch[-1] == STAYS]
        self.resting += [patch for patch in self._take_off(moved) if patch[-1] == RETURNS]

    def pause(self) -> list[Patch]:
        """Undo those that stay, too; returns them for ``put_back``."""
        paused, self.made = self._take_off(self.made), []
        return paused

    def put_back(self, patches: list[Patch]) -> list[Patch]:
        """Put them back, but not over what other code has put there since; returns those that
        could not be."""
        left = []
        for patch in patches:
            owner, name, wrapper, own, original, _ = patch
            mine = vars(owner)
            if mine.get(name) is original if own else name not in mine:
                setattr(owner, name, wrapper)
                self.made.append(patch)
            else:
                left.append(patch)
        return left

    def _take_off(self, patches: list[Patch]) -> list[Patch]:
        """Take them off; returns those that were still in place, oldest first."""
        found = []
        for patch in reversed(patches):
            owner, name, wrapper, own, original, _ = patch
            if vars(owner).get(name) is not wrapper:
                continue
            found.append(patch)
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        return found[::-1]

    def resume(self, chosen: Callable[[Any], bool]) -> None:
        """Put back the patches of the chosen owners that return, but not over what other code has
        put there since."""
        wanted = [patch for patch in self.resting if chosen(patch[0])]
        others = [patch for patch in self.resting if not chosen(patch[0])]
        self.resting = others + self.put_back(wanted)
