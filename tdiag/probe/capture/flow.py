"""Follows tensors from the call that made them to the calls that use them, over one or two steps.

This gives exact answers that a scan of the modules could only guess from their order: whether a
batch norm's input *is* a convolution's output, whether an activation's input was still held when
the backward began, whether the same tensor was also sent to the device in the previous step.
Attention that is written out, softmax(q @ k.T) @ v, is followed from product to product: a softmax
between products is not enough, because a graph network's scores are sums, and contrastive scores do
not weight anything.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ..by_tensor import MOST_TRACKED
from ..models import nbytes, node_of, nodes_below
from ..places import place_of
from ..wire import is_user_file
from .padding import Padding
from .tables import Tables

if TYPE_CHECKING:
    from ..core import Probe
    from ..inspection import Inspection


PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
SOFTMAXES = {"softmax", "_softmax"}
# Scaling, masking and casting, after which scores are still scores and weights still weights.
PASSED_ON = {
    "div", "__truediv__", "true_divide", "mul", "__mul__", "__rmul__", "add", "__add__", "__radd__",
    "sub", "__sub__", "masked_fill", "where", "dropout", "to", "float", "half", "type_as",
    "contiguous",
}  # fmt: skip
FUSED_ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
SCORES, WEIGHTS = "scores", "weights"


def stage_of(name: str, taken: str, result: Any) -> str:
    """What the result of this call is; ``taken``: what the first such argument was, "" if none was.

    Scores are the product of two matrices with more than one row and more than one column each.
    """
    if name in PRODUCTS and not taken:
        return SCORES if result.dim() >= 2 and min(result.shape[-2:]) > 1 else ""
    if name in SOFTMAXES:
        return WEIGHTS if taken == SCORES else ""
    return taken if name in PASSED_ON else ""


ONLY_FOUR = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
DROPOUT, GRADIENT, DIMENSIONS, SIZES = "dropout", "mask with gradient", "dimensions", "sizes"
ASKED = "weights"  # MultiheadAttention must return them, which no fused kernel does


def unfused(name: str, args: Any, kwargs: Any) -> list[str]:
    """Why this call of fused attention may not get a fused kernel: dropout (on a CPU), a mask that
    needs a gradient, not four dimensions (before torch 2.14), values not as wide as keys, weights
    to return."""
    if name == "multi_head_attention_forward":
        if kwargs.get("need_weights", args[15] if len(args) > 15 else True):
            return [ASKED]
        dropout = kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)
        return [DROPOUT] if dropout and kwargs.get("training", True) else []
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p"), args), **kwargs)
    query, key, value, mask = (given.get(n) for n in ("query", "key", "value", "attn_mask"))
    if not all(isinstance(x, torch.Tensor) for x in (query, key, value)):
        return []
    found = {
        DROPOUT: bool(given.get("dropout_p")),
        GRADIENT: isinstance(mask, torch.Tensor) and mask.requires_grad,
        DIMENSIONS: query.dim() != 4 and ONLY_FOUR,  # type: ignore[union-attr]
        SIZES: key.shape[-1] != value.shape[-1],  # type: ignore[union-attr]
    }
    return [why for why, true in found.items() if true]


MOST_GRAPHS = 16
MOST_FRAMES = 60  # frames searched upwards for a caller
AFFINE = {
    "linear", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
NORMS = {"batch_norm", "instance_norm"}
# Their backward needs only their result, so in place loses nothing.
ACTIVATIONS = {"relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "celu", "threshold"}
# The backward of these does not need their own result, so it may be overwritten.
RESULT_NOT_NEEDED = AFFINE | NORMS | {"add", "__add__", "__radd__", "group_norm", "layer_norm"}
MOVES = {"to", "cuda", "copy_", "cpu"}
CLIPPING = {"clip_grad_norm_", "clip_grad_value_"}
_CLIP_FILE = os.path.join("torch", "nn", "utils", "clip_grad.py")
_CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")


class Made:
    """A tensor that a call returned. ``weight``: id of the weight of an affine call that adds a
    bias, ``features``: numbers in that bias; ``uses``: calls that have taken the tensor since."""

    __slots__ = ("features", "graph", "name", "place", "ref", "stage", "uses", "weight")

    def __init__(self, tensor: Any, name: str, place: Any) -> None:
        self.ref = weakref.ref(tensor)
        self.name, self.place = name, place
        self.graph = node_of(tensor) is not None
        self.weight: int | None = None
        self.features = self.uses = 0
        self.stage = ""  # of attention


class Flow:
    """One per window ``ops``. Totals over the window, by the user's line."""

    def __init__(self, probe: Probe, inspection: Inspection) -> None:
        self.probe, self.inspection = probe, inspection
        self.made: dict[int, Made] = {}
        self.in_place: dict[int, Made] = {}  # results of calls that changed them in place
        self.normed: list[Made] = []  # affine results that a norm in training mode took
        # (place, name) → calls, bytes of results, bytes of inputs still held when backward began
        self.activations: dict[Any, list[int]] = {}
        self.inputs: list[tuple[Any, Made, int]] = []
        self.clips: dict[Any, dict[str, Any]] = {}
        self.clip_frame: FrameType | None = None
        self.checkpoints: dict[Any, bool | None] = {}
        self.module_moves: dict[Any, int] = {}
        self.tables = Tables(inspection)
        self.padding = Padding()
        self.attention: dict[Any, int] = {}  # place of the weights → how often
        self.fused_calls: dict[Any, int] = {}  # (place, why not fused, …) → how often
        self.backwards = 0
        self.synced: int | None = None

    def seen(self, name: str, args: Any, kwargs: Any, result: Any, place: Any) -> None:
        """A call returned."""
        if not isinstance(result, (torch.Tensor, tuple, list)):
            return  # it read a size or a device and used no values
        if name in FUSED_ATTENTION:
            key = place, *unfused(name, args, kwargs)
            self.fused_calls[key] = self.fused_calls.get(key, 0) + 1
        if torch.is_grad_enabled():
            self.padding.seen(name, args, kwargs, result, place)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                taken = self._known(value)
                if taken is not None:
                    taken.uses += 1
        if not isinstance(result, torch.Tensor):
            return
        if any(result is value for value in args):
            if node_of(result) is not None:
                self.in_place[id(result)] = Made(result, name, place)
            return
        if result.requires_grad:
            self.tables.seen(name, args, kwargs, place)
        if name in NORMS:
            self._norm(args, kwargs)
        elif name in ACTIVATIONS and result.requires_grad:
            self._activation(name, args, result, place)
        if len(self.made) < MOST_TRACKED:
            made = self.made[id(result)] = Made(result, name, place)
            made.stage = self._attend(name, args, kwargs, result)
            bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
            if name in AFFINE and isinstance(bias, torch.Tensor):
                made.weight = id(kwargs.get("weight", args[1] if len(args) > 1 else None))
                made.features = bias.numel()

    def _attend(self, name: str, args: Any, kwargs: Any, result: Any) -> str:
        """Count attention that is written out, where its weights were made; returns what ``result``
        is."""
        values = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        taken = [made for made in map(self._known, values) if made is not None and made.stage]
        of = taken[0] if taken else None
        if name in PRODUCTS and of is not None and of.stage == WEIGHTS:
            self.attention[of.place] = self.attention.get(of.place, 0) + 1
        return stage_of(name, of.stage if of else "", result)

    def _known(self, tensor: Any) -> Made | None:
        made = self.made.get(id(tensor))
        return made if made is not None and made.ref() is tensor else None

    def _norm(self, args: Any, kwargs: Any) -> None:
        name = "use_input_stats" if "use_input_stats" in kwargs else "training"
        if not kwargs.get(name, args[5] if len(args) > 5 else False):
            return
        made = self._known(args[0]) if args else None
        if made is not None and made.weight is not None:
            self.normed.append(made)

    def _activation(self, name: str, args: Any, result: Any, place: Any) -> None:
        taken = self.activations.setdefault((place, name), [0, 0, 0])
        taken[0] += 1
        taken[1] += nbytes(result)
        made = self._known(args[0]) if args else None
        if made is not None and made.name in RESULT_NOT_NEEDED:
            self.inputs.append(((place, name), made, nbytes(result)))

    def backward_begins(self) -> None:
        self.backwards += 1
        for key, made, size in self.inputs:
            if made.ref() is not None and made.uses == 1:
                self.activations[key][2] += size
        self.inputs.clear()
        ddp = self.inspection.ddp and self.inspection.ddp()
        if ddp is not None:
            self.synced = (self.synced or 0) + bool(ddp.require_backward_grad_sync)

    def moved(self, name: str, args: Any, result: Any) -> tuple[int, int]:
        """(times, bytes) of unchanged tensors that are sent to another device again."""
        source = args[1] if name == "copy_" and len(args) > 1 else args[0] if args else None
        if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor):
            return 0, 0
        if source.device == result.device or source.is_inference():
            return 0, 0
        return self.inspection.sent.seen(self.probe.step, source, result)

    # --- who called -----------------------------------------------------------------------------

    def clipping(self, place: Any, began: int, ended: int) -> None:
        """Note this call if ``torch.nn.utils``'s gradient clipping made it."""
        frame = _above(_CLIP_FILE, CLIPPING)
        if frame is None:
            return
        clip = self.clips.setdefault(
            place, {"name": frame.f_code.co_name, "calls": 0, "elapsed": 0, "began": began}
        )
        if frame is not self.clip_frame:
            self.clip_frame = frame  # kept, so that no other frame gets its address
            clip["calls"] += 1
            clip["began"] = began
            clip["done"] = clip["elapsed"]
            clip["foreach"] = frame.f_locals.get("foreach")
            clip["tensors"] = len(frame.f_locals.get("grads") or ())
        clip["elapsed"] = clip["done"] + ended - clip["began"]

    def checkpointing(self) -> None:
        """If this call runs inside ``torch.utils.checkpoint``, note the caller of that."""
        frame = _above(_CHECKPOINT_FILE, {"checkpoint"})
        if frame is None:
            return
        caller = frame.f_back
        while caller is not None and not is_user_file(caller.f_code.co_filename):
            caller = caller.f_back
        place = None
        if caller is not None:
            place = tuple(place_of(caller))
        self.checkpoints[place] = frame.f_locals.get("use_reentrant")

    # --- in the end -----------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The fields that it adds to the `ops` record."""
        self.clip_frame = None
        names = self.inspection.weight_names()
        biases: dict[Any, int] = {}
        for made in self.normed:
            if made.uses == 1:  # only the norm sees the bias
                key = (*names.get(made.weight or 0, ("", "")), made.place, made.features)
                biases[key] = biases.get(key, 0) + 1
        return {
            "bias_before_norm": [[*key, times] for key, times in biases.items()],
            "out_of_place": [[name, at, *sums] for (at, name), sums in self.activations.items()],
            "clips": [
                {"at": at, **{k: clip.get(k) for k in ("name", "calls", "elapsed", "foreach",
                                                      "tensors")}}
                for at, clip in self.clips.items()
            ],
            "checkpoints": [[at, reentrant] for at, reentrant in self.checkpoints.items()],
            "module_moves": [[at, times] for at, times in self.module_moves.items()],
            "tables": self.tables.report(),
            **self.padding.report(),
            "graphs": [[made.place, len(nodes_below([t]))] for made, t in self._graphs()],
            "attention": [[at, times] for at, times in self.attention.items()],
            "fused_attention": [
                [key[0], list(key[1:]), times] for key, times in self.fused_calls.items()
            ],
            "backwards": self.backwards,
            "synced": self.synced,
        }  # fmt: skip

    def _graphs(self) -> list[tuple[Made, Any]]:
        """Tensors that hold a graph when the step has ended, one per line, the last one made."""
        found: dict[Any, tuple[Made, Any]] = {}
        for made in (*self.made.values(), *self.in_place.values()):
            tensor = made.ref() if made.graph else None
            if tensor is not None:
                found[made.place] = made, tensor
        return list(found.values())[-MOST_GRAPHS:]

    def alive(self) -> list[tuple[Any, Any, int]]:
        """(reference, place, bytes) of the made tensors that are still alive."""
        found = [(made, made.ref()) for made in self.made.values()]
        return [(made.ref, made.place, nbytes(t)) for made, t in found if t is not None]


def _above(file: str, names: set[str]) -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name in names and code.co_filename.endswith(file):
            return frame
        frame = frame.f_back
    return None
