"""Inspects the training between two windows, outside every step's time: one `inspection` record
each time.

It reads what changes slowly or is expensive to read: learning rates, gradients, parameters without
a gradient. It writes to nothing; on a device reading costs a synchronisation or two.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler

from . import dynamo, places
from .contents import of_arguments
from .models import (
    MOST_LOOKS,
    FrozenValues,
    class_name,
    ddp_settings,
    describe,
    find_ddp,
    learning_rate,
    nbytes,
    node_of,
    plain,
    scan,
    sent_buffers,
    updated,
    watched_by_script,
)
from .only_added import OnlyAdded
from .patches import hidden
from .registered_hooks import repeated_hooks
from .sent_again import SentAgain
from .settings import SettingsWatch

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe


MOST_SCHEDULERS = 32  # a scheduler created every step must not fill the disk


class Schedules:
    """torch's schedulers that were made; another library's show only in the rates."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.alive: list[Any] = []  # weak references, by number

    def install(self) -> None:
        base = getattr(lr_scheduler, "LRScheduler", None) or lr_scheduler._LRScheduler
        # ReduceLROnPlateau does not call its base's __init__.
        for kind in {base, lr_scheduler.ReduceLROnPlateau}:
            self.probe.patches.set(kind, "__init__", self._watched(kind.__init__))

    def _watched(self, original: Any) -> Any:
        schedules = self

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            schedules.probe.guard(schedules._made)(self)

        return hidden(init)

    def _made(self, scheduler: Any) -> None:
        known = any(scheduler is reference() for reference in self.alive)
        if known or len(self.alive) >= MOST_SCHEDULERS:
            return
        self._know(scheduler, places.caller())

    def _know(self, scheduler: Any, at: Any) -> None:
        self.probe.recorder.write(
            "scheduler", id=len(self.alive), name=type(scheduler).__name__, at=at
        )
        self.alive.append(weakref.ref(scheduler))

    def adopt(self, scheduler: Any) -> None:
        """Adopt a scheduler made before the probe was loaded."""
        if len(self.alive) < MOST_SCHEDULERS:
            self._know(scheduler, None)

    def steps(self) -> list[int | None]:
        """By number: how often each has stepped; None if it is gone or does not count."""
        found = (reference() for reference in self.alive)
        return [getattr(scheduler, "last_epoch", None) for scheduler in found]


MOST_MODULES = 64  # to remember; losses created every step have no parameters
VALUES_READ = 4  # one value of each of four parameters, to see whether anything updates them
# Heuristic: gradients that were added to so often without being cleared are not accumulated for an
# update, which would be rarer than every eighth of the others'.
TIMES_ADDED = 8
MOST_GROUPS = 8  # learning rates written down for one optimizer
# Reading 512 MB of gradients takes 50 to 100 ms on one core; larger models are not read there.
MOST_BYTES_ON_CPU = 1 << 29


class Inspection:
    """One per process. ``optimizers``: weak references by number, ``ddp``: one to the last
    DistributedDataParallel seen."""

    def __init__(self, probe: Probe, boundary: Boundary) -> None:
        self.probe, self.boundary = probe, boundary
        self.schedules, self.settings = Schedules(probe), SettingsWatch(probe)
        self.written: set[str] = set()  # records written once
        self.optimizers: dict[int, Any] = {}
        # Weak references to the outermost modules with parameters, by number.
        self.modules: dict[int, Any] = {}
        # For each, the parameters with a gradient that no optimizer has: how many, and a few
        # values.
        self.without_optimizer: dict[int, tuple[Any, list[Any]]] = {}
        self.added_to: dict[int, list[OnlyAdded]] = {}  # a few of these parameters, by module
        self.with_parameters: set[int] = set()
        self.looked: dict[int, int] = {}  # module → calls whose inputs were inspected
        self.ddp: Any = None
        self.buffers: dict[int, Any] = {}  # what its buffers hold, by id
        # Tensors that one or two steps made and that were alive when these ended: (weak reference,
        # place, bytes); the step after them, and the number of these steps.
        self.kept: tuple[list[tuple[Any, Any, int]], int, int] = [], 0, 0
        self.frozen = FrozenValues()
        self.constants: Any = (
            None  # facts that one counted step is compared with (capture/constants.py)
        )
        self.sent = SentAgain()

    def install(self) -> None:
        self.schedules.install()
        self.settings.install()

    def made(self, number: int, optimizer: Any) -> None:
        """An optimizer has been made."""
        self.optimizers[number] = weakref.ref(optimizer)

    def called(self, number: int, module: torch.nn.Module) -> dict[str, Any]:
        """An outermost module with parameters is called for the first time; returns what it is made
        of."""
        self.with_parameters.add(number)
        if len(self.modules) < MOST_MODULES:
            self.modules[number] = weakref.ref(module)
        if (ddp := find_ddp(module)) is not None:
            self.ddp = weakref.ref(ddp)
        self.frozen.note_all(module)
        return scan(module)

    def inputs(self, number: int, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """The outermost module ``number`` is called while warming up."""
        looks = self.looked.get(number, 0)
        if looks < MOST_LOOKS and number in self.with_parameters and module.training:
            self.looked[number] = looks + 1
            for about in describe(args, kwargs):
                self.probe.recorder.write("input", module=number, **about)

    def weight_names(self) -> dict[int, tuple[str, str]]:
        """id of each layer's weight → the layer's name in its outermost module, and its class."""
        names: dict[int, tuple[str, str]] = {}
        for _, module in self.alive():
            for name, layer in module.named_modules():
                weight = dict(layer.named_parameters(recurse=False)).get("weight")
                if weight is not None:
                    names.setdefault(id(weight), (name, class_name(layer)))
        return names

    def alive(self) -> list[tuple[int, torch.nn.Module]]:
        known = [(number, reference()) for number, reference in self.modules.items()]
        return [(number, module) for number, module in known if module is not None]

    def trained_parameters(self) -> set[int]:
        """Ids of the parameters that some optimizer has and that get gradients."""
        optimizers = [o for o in (reference() for reference in self.optimizers.values()) if o]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        return {id(p) for group in groups for p in group["params"] if p.requires_grad}

    def _unused_gradients(self, optimizers: list[Any]) -> list[tuple[int, int, int, str]]:
        """``[module, numbers, of them with state, within]``, for each module the numbers in
        parameters that have a gradient and that no optimizer updates: they belong to none, or their
        group's learning rate is 0; the latter are those whose state an optimizer still updates.
        ``within``: the part of the module that has them all and no others, "" if itself. Left
        out: gradients that stay as they are (of an earlier training), parameters that a script
        may update by hand (their values change, and something clears their gradients), those that
        did not exist at the last look, and 16-bit parameters and parameters if none of the
        modules' is in an optimizer, because the optimizer may have copies."""
        held = updated(optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        theirs = {id(p) for group in groups for p in group["params"]}
        models = self.alive()
        if watched_by_script() or not any(id(p) in held for _, m in models for p in m.parameters()):
            return []
        rows = []
        for number, module in models:
            mine = [p for p in module.parameters() if id(p) not in held and _has_gradient(p)]
            held |= {id(p) for p in mine}
            values = len(mine), [_first(p.detach()) for p in mine[:VALUES_READ]]
            gradients = [_written(p.grad) for p in mine[:VALUES_READ]]
            before, old = self.without_optimizer.get(number, (None, gradients))
            by_script = values != before and not self._never_cleared(number, mine)
            if mine and gradients != old and not by_script:
                idle = [p for p in mine if id(p) in theirs]
                within = _part(module, mine)
                rows.append((number, _numbers(mine), _numbers(idle), within))
            self.without_optimizer[number] = values, gradients
        return rows

    def _never_cleared(self, number: int, changing: list[Any]) -> bool:
        """Whether backward alone writes to the gradients of these parameters of module ``number``,
        whose values may change. Watched from the first call on."""
        if number not in self.added_to and changing:
            # A compiled graph would notice the hooks.
            watched = [] if dynamo.compiled_frames() else changing[:VALUES_READ]
            guard = self.probe.guard
            self.added_to[number] = [OnlyAdded(p, TIMES_ADDED, guard) for p in watched]
        seen = self.added_to.get(number, [])
        return bool(seen) and all(each.verdict for each in seen)

    def end(self) -> None:
        """Take the hooks off."""
        for watched in self.added_to.values():
            for each in watched:
                each.end()

    def _frozen_by_name(self, numbers: Iterable[int]) -> dict[int, str]:
        """Of these modules, those in which a module has an attribute `requires_grad` that is False:
        a plain attribute, which freezes nothing. With the name of the first such module."""
        found, alive = {}, dict(self.alive())
        for number in numbers:
            modules = alive[number].named_modules() if number in alive else ()
            for name, module in modules:
                if vars(module).get("requires_grad") is False:
                    found[number] = name or class_name(module)
                    break
        return found

    def look(self, window: str) -> None:
        """Write the `inspection` record at the end of ``window``."""
        alive = {n: o for n, o in ((n, r()) for n, r in self.optimizers.items()) if o is not None}
        record: dict[str, Any] = {
            "window": window,
            "step": self.probe.step,
            "rates": {n: _rates(optimizer) for n, optimizer in alive.items()},
            "scheduled": self.schedules.steps(),
            "states": {n: _state_bytes(optimizer) for n, optimizer in alive.items()},
        }
        with torch.no_grad():
            for optimizer in alive.values():
                if id(optimizer) == self.boundary.lead:
                    record["gradient"] = gradient_norm(optimizer)
            with torch._C.DisableTorchFunction():
                unused = self._unused_gradients(list(alive.values()))
        record["unused_gradients"] = unused
        record["hooks"] = repeated_hooks(module for _, module in self.alive())
        record["frozen_by_name"] = self._frozen_by_name([row[0] for row in unused])
        if self.kept[2]:
            record.update(self._kept())
        if self.ddp is not None and (ddp := self.ddp()) is not None:
            if "ddp" not in self.written:
                self.written.add("ddp")
                self.probe.recorder.write("ddp", **ddp_settings(ddp))
            record["unused"] = sum(p.requires_grad and p.grad is None for p in ddp.parameters())
            record["buffers"] = self._buffers(ddp)
        self.probe.recorder.write("inspection", **record)

    def _buffers(self, ddp: Any) -> tuple[int, int]:
        """Bytes that are sent before each forward, and of them those of buffers that have not
        changed since the last look. Batch norms count no new version of their averages; of a
        large buffer only a sample is read."""
        buffers = sent_buffers(ddp)
        now = {id(x): (x._version, of_arguments([x], {})) for x in buffers}
        before, self.buffers = self.buffers, now
        kept = (x for x in buffers if before.get(id(x)) == self.buffers[id(x)])
        return sum(map(nbytes, buffers)), sum(map(nbytes, kept))

    def _kept(self) -> dict[str, Any]:
        """`kept` [[place, tensors, bytes, tensors that hold a graph], …] of the tensors made in
        `kept_of` steps, which ended `kept_since` steps ago."""
        made, step, steps = self.kept
        lines: dict[Any, list[int]] = {}
        storages: set[int] = set()
        for reference, place, size in made:
            tensor = reference()
            if tensor is None:
                continue
            line = lines.setdefault(place, [0, 0, 0])
            line[0] += 1
            storage = tensor.untyped_storage().data_ptr() if plain(tensor) else id(tensor)
            line[1] += size if storage not in storages else 0
            line[2] += node_of(tensor) is not None
            storages.add(storage)
        rows = [[place, *line] for place, line in lines.items()]
        return {"kept": rows, "kept_of": steps, "kept_since": self.probe.step - step}


def _numbers(parameters: list[Any]) -> int:
    return sum(p.numel() for p in parameters)


def _first(tensor: Any) -> float:
    return float(tensor[(0,) * tensor.dim()])


def _written(gradient: Any) -> tuple[int, int, float]:
    """Differs if the gradient was computed again."""
    first = 0.0 if gradient.is_sparse else _first(gradient)
    return id(gradient), gradient._version, first


def _has_gradient(parameter: Any) -> bool:
    """Whether a parameter has a gradient, its values can be read, and it has no copy in another
    precision."""
    return (
        plain(parameter)
        and parameter.grad is not None
        and parameter.numel() > 0
        and parameter.dtype in (torch.float32, torch.float64)
    )


def _part(module: Any, parameters: list[Any]) -> str:
    """The name of the largest module within this one that has all these parameters and no other
    that gets gradients; "" if that is the module itself, or if there is none."""
    theirs = {id(p) for p in parameters}
    for name, part in module.named_modules():
        graded = {id(p) for p in part.parameters() if p.grad is not None}
        if graded == theirs:
            return str(name)
    return ""


def _rates(optimizer: Any) -> list[float | None]:
    return [learning_rate(group) for group in optimizer.param_groups[:MOST_GROUPS]]


def _state_bytes(optimizer: Any) -> int | None:
    """Of its tensors of 32 or 64 bits a number; None if some are sharded, quantised or no plain
    tensors, so that less of them is here than they show."""
    tensors = [x for state in optimizer.state.values() if isinstance(state, dict)
               for x in state.values() if isinstance(x, torch.Tensor)]  # fmt: skip
    if not all(map(plain, tensors)):
        return None
    return sum(nbytes(x) for x in tensors if x.is_floating_point() and x.element_size() >= 4)


def gradient_norm(optimizer: Any) -> float | str | None:
    """Total L2 norm of the gradients as the step used them, after any clipping.

    ``"not finite"`` if it is inf or NaN. None if it cannot be read at little cost: no gradients
    left, sharded, sparse or very many of them, a graph being captured, or the script's own profiler
    or dispatch mode, which would see the reading.
    """
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    gradients = [g for g in gradients if g is not None]
    if not gradients or not all(map(plain, gradients)) or watched_by_script():
        return None
    if gradients[0].device.type == "cpu" and sum(map(nbytes, gradients)) > MOST_BYTES_ON_CPU:
        return None
    with torch._C.DisableTorchFunction():
        norms = [torch.linalg.vector_norm(g.detach(), dtype=_wide(g)) for g in gradients]
        total = math.sqrt(sum(float(norm) ** 2 for norm in norms))
    return total if math.isfinite(total) else "not finite"


def _wide(tensor: torch.Tensor) -> torch.dtype | None:
    """A wider dtype, because sums of squares overflow in 16 bits; None keeps the tensor's own."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
