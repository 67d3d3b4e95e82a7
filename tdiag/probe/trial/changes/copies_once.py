"""A tensor that does not change is copied to the device once."""

import functools
import weakref
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, switch

NAME = "copies.once"


class Sent:
    """A host tensor: how often it was copied unchanged, to which device, and, from its second copy
    on, that copy. Batches are sent once, so their copies are not kept."""

    def __init__(self, tensor: Any, key: Any) -> None:
        self.version, self.key = tensor._version, key
        self.copy: Any = None
        self.copy_version = 0
        self.said = False

    def answer(self, tensor: Any, key: Any) -> Any:
        same = self.version == tensor._version and self.key == key
        unwritten = self.copy is not None and self.copy._version == self.copy_version
        return self.copy if same and unwritten else None

    def keep(self, copy: Any) -> None:
        self.copy, self.copy_version = copy, copy._version


def install(trial: Trial, value: bool) -> None:
    import torch

    known: dict[int, tuple[Any, Sent]] = {}  # by id of the tensor, with a weak reference to it
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)
        trial.patches.set(torch.Tensor, name, _once(trial, torch, original, known))


def _once(trial: Trial, torch: Any, original: Any, known: dict[int, tuple[Any, Sent]]) -> Any:
    @functools.wraps(original)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu" or self.requires_grad or self.is_inference():
            return original(self, *args, **kwargs)
        key = (args, *sorted(kwargs.items()))
        if any(isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
            return original(self, *args, **kwargs)
        reference, sent = known.get(id(self), (None, None))
        if reference is None or reference() is not self:
            sent = None
        kept = sent.answer(self, key) if sent is not None else None
        if sent is not None and kept is not None:
            if not sent.said:
                sent.said = True
                line = caller()
                trial.applied(NAME, f"{original.__name__}(){at(line)} returns its last copy",
                              line)  # fmt: skip
            return kept
        result = original(self, *args, **kwargs)
        if result.device.type != "cpu":
            if sent is None or (sent.version, sent.key) != (self._version, key):
                number = id(self)
                known[number] = (
                    weakref.ref(self, lambda _: known.pop(number, None)), Sent(self, key)
                )  # fmt: skip
            elif not result.requires_grad:
                sent.keep(result)
        return result

    return hidden(copied)


CHANGE = Change(
    name=NAME,
    does="A host tensor that does not change is copied to the device once.",
    safety=SAME,
    parse=switch,
    absent="no tensor was copied to a device more than twice without a change",
    limits="a tensor changed through NumPy or .data counts as unchanged; one that is made again in"
    " each step is still copied",
    edit="copy it once before the loop, or register_buffer() it in the module",
    install=install,
)
