"""How a training framework spells a fix. One file a framework, one line here for each.

A framework is recognised by who calls ``optimizer.step()`` (``probe/frameworks.py``); none is
imported. Where one drives the loop, a setting of torch is usually made through its own objects, so
the fix begins with that. Its parts that write logs are recognised by their functions, because
samples in them are counted at the user's line that started the training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from tdiag.frameworks import accelerate, hugging_face, lightning
from tdiag.frameworks.framework import Framework
from tdiag.model.diagnosis import Fix

FRAMEWORKS: tuple[Framework, ...] = (
    hugging_face.TRAINER,
    lightning.LIGHTNING,
    lightning.PYTORCH_LIGHTNING,
    accelerate.ACCELERATE,
)
_BY_PACKAGE = {framework.package: framework for framework in FRAMEWORKS}
_ARGUMENT = re.compile(r"[(\s](\w+)=")
_LAST_NUMBER = re.compile(r"\d[\d,.]*(?!.*\d)")
_SETTING = re.compile(r"\w=(\d+)")


def in_its_terms(fix: Fix, code: str, driver: str, parts: Sequence[str] = ()) -> Fix:
    """The fix of rule ``code`` as the framework spells it, torch's own way behind it. ``driver``:
    the package whose code calls the optimizer, "" for the user's own loop. ``parts``: names of the
    framework's parts that the finding is about, most time first."""
    framework = _BY_PACKAGE.get(driver)
    if framework is None or not (way := _way(framework, code, parts)):
        return fix
    text = way.replace("{value}", _value(fix))
    plain = f"In plain torch: {fix.text}"
    return msgspec.structs.replace(fix, text=f"{framework.name}: {text}. {plain}")


def settings(code: str, driver: str, parts: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The name of the method that trains, and of the arguments that its fix of rule ``code`` sets,
    in their order. For the other arguments see :func:`in_its_terms`."""
    framework = _BY_PACKAGE.get(driver)
    if framework is None:
        return "", []
    return framework.runs, _ARGUMENT.findall(_way(framework, code, parts))


def is_framework(package: str) -> bool:
    """Whether this top-level package belongs to a framework (``lightning``,
    ``lightning_utilities``)."""
    return any(package in (x.package, f"{x.package}_utilities") for x in FRAMEWORKS)


def _way(framework: Framework, code: str, parts: Sequence[str]) -> str:
    """The settings of these parts; without parts, the framework's fix for the rule."""
    ways = {part.name: part.fix for part in framework.logging}
    return "; ".join(ways[name] for name in parts if name in ways) or framework.fixes.get(code, "")


@cache
def logging_part(frame: str) -> str:
    """Name of the framework's part that writes logs and contains this frame, else "". A frame is
    ``path/to/file.py:function``."""
    parts = (part for framework in FRAMEWORKS for part in framework.logging)
    return next((part.name for part in parts if part.frames.search(frame)), "")


@cache
def evaluates(frame: str) -> bool:
    """Whether this frame runs a framework's evaluation."""
    known = (framework.evaluates for framework in FRAMEWORKS)
    return any(one is not None and one.search(frame) for one in known)


@cache
def collects(frame: str) -> bool:
    """Whether this frame of a framework collects the outputs of an evaluation's batches."""
    known = (framework.collects for framework in FRAMEWORKS)
    return any(one is not None and one.search(frame) for one in known)


@cache
def prepares(frame: str) -> bool:
    """Whether this frame of a framework asks the user's code for the training data."""
    known = (framework.prepares for framework in FRAMEWORKS)
    return any(one is not None and one.search(frame) for one in known)


def follows(name: str) -> bool:
    """Whether a framework calls the user's function of this name after each step."""
    return any(name in framework.follows for framework in FRAMEWORKS)


def _value(fix: Fix) -> str:
    """The number that the fix sets: that of its intervention, else the last of its action, else
    the first that its text sets."""
    _, _, value = (fix.intervention or "").partition("=")
    last, setting = _LAST_NUMBER.search(fix.action), _SETTING.search(fix.text)
    return value or (last[0].replace(",", "") if last else setting[1] if setting else "…")
