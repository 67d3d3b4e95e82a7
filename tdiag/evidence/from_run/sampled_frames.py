"""What one frame of a sampled stack shows: its phase, and whose function it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tdiag.evidence.sampled import WRITERS
from tdiag.frameworks import collects, evaluates, follows, is_framework, logging_part, prepares
from tdiag.probe.wire import COMPREHENSIONS, SAVES, is_user_file

_INSTALLED = re.compile(r"/(?:site|dist)-packages/(\w+)")

_PHASE_OF_FRAME = (
    ("torch/utils/data/dataloader.py", "__next__", "data_wait"),
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "grad", "backward"),
    ("torch/optim/", "step", "optimizer"),
    ("torch/serialization.py", "save", "checkpoint"),
    *(
        (f"{module.replace('.', '/')}.py", function.rpartition(".")[2], "checkpoint")
        for module, functions in SAVES.items()
        for function in functions
    ),
)


MODULE_FILE = "torch/nn/modules/module.py"
_WALKING = re.compile(r"_?(named_)?(modules|parameters|buffers|children|members)\b")


class SampledFrame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None

    def phase(self) -> str:
        file = self.file or ""
        for part, name, phase in _PHASE_OF_FRAME:
            if part in file and self.name.endswith(name):
                return phase
        return ""

    def comprehends(self) -> bool:
        return self.name.rpartition(".")[2] in COMPREHENSIONS

    def walks(self) -> bool:
        """``model.named_parameters()`` and the like, and their lambdas: a walk over modules."""
        name = self.name.removeprefix("Module.")
        return (self.file or "").endswith(MODULE_FILE) and bool(_WALKING.match(name))

    def tdiags(self) -> bool:
        """Whether it is a hook of the probe, or py-spy's line with the process's name."""
        file = self.file or ""
        hook = "/tdiag/probe/" in file or file.startswith("<tdiag ")
        return hook or self.name.startswith("process ")

    def works_for_tdiag(self) -> bool:
        """Whether it is the probe's own work. A wrapper is not: it may call the user's C code."""
        return "/tdiag/probe/" in (self.file or "")

    def writes_logs(self) -> bool:
        """Whether the function belongs to a library or a framework's part that writes logs."""
        file = self.file or ""
        return not is_user_file(file) and bool(WRITERS.search(file) or self.logging_part())

    def logging_part(self) -> str:
        return logging_part(f"{self.file or ''}:{self.name}")

    def evaluates(self) -> bool:
        return evaluates(f"{self.file or ''}:{self.name}")

    def collects(self) -> bool:
        return collects(f"{self.file or ''}:{self.name}")

    def prepares(self) -> bool:
        return prepares(f"{self.file or ''}:{self.name}")

    def is_workers(self) -> bool:
        file = self.file or ""
        return file.endswith("torch/utils/data/_utils/worker.py") and self.name == "_worker_loop"

    def fetches(self) -> bool:
        file = self.file or ""
        return file.endswith("torch/utils/data/_utils/fetch.py") and self.name.endswith("fetch")


def package_of(file: str) -> str:
    """``pandas`` for a file of ``…/site-packages/pandas/…``; "" if it is in no package."""
    found = _INSTALLED.search(file)
    return found[1] if found else ""


def phase_shown(stack: Sequence[SampledFrame]) -> str:
    """The key of Phases that the innermost frame with a phase shows. A closure within
    ``optimizer.step``, of a framework or of the user, does not count as the update. What a
    framework calls to get its data prepares; the user's function that it calls after a step comes
    after it."""
    called = False
    for frame in reversed(stack):
        phase = frame.phase()
        if phase:
            return "" if called and phase == "optimizer" else phase
        file = frame.file or ""
        called = called or is_user_file(file) or is_framework(package_of(file))
    if any(map(SampledFrame.prepares, stack)):
        return "prepare"
    return "after_step" if any(map(_follows, stack[1:], stack)) else ""


def _follows(frame: SampledFrame, caller: SampledFrame) -> bool:
    named = is_user_file(frame.file or "") and follows(frame.name.rpartition(".")[2])
    return named and is_framework(package_of(caller.file or ""))


def runs_framework(called: Sequence[SampledFrame]) -> bool:
    """Whether, in the frames that the user's line called, a framework's function is further in than
    torch's functions, which may do the step's work."""
    packages = (package_of(frame.file or "") for frame in reversed(called))
    return is_framework(next((x for x in packages if x == "torch" or is_framework(x)), ""))
