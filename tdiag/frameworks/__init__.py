"""How a training framework spells a fix. One file a framework, one line here for each.

A framework is recognised by who calls ``optimizer.step()`` (``probe/frameworks.py``); none is
imported. Where one drives the loop, a setting of torch is usually made through its own objects, so
the fix begins with that.
"""

from __future__ import annotations

import re

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
_LAST_NUMBER = re.compile(r"\d[\d,.]*(?!.*\d)")


def in_its_terms(fix: Fix, code: str, driver: str) -> Fix:
    """The fix of rule ``code`` as the framework spells it, torch's own way behind it. ``driver``:
    the package whose code calls the optimizer, "" for the user's own loop."""
    for framework in FRAMEWORKS:
        if framework.package == driver and (way := framework.fixes.get(code)):
            text = way.replace("{value}", _value(fix))
            plain = f"In plain torch: {fix.text}"
            return msgspec.structs.replace(fix, text=f"{framework.name}: {text}. {plain}")
    return fix


def _value(fix: Fix) -> str:
    """The number that the fix sets: that of its intervention, else the last of its action."""
    _, _, value = (fix.intervention or "").partition("=")
    found = _LAST_NUMBER.search(fix.action)
    return value or (found[0].replace(",", "") if found else "…")
