"""What a sampled stack was doing: one activity per sample, from its frames."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from pathlib import Path

from tdiag.evidence.from_run.sampled_frames import MODULE_FILE, SampledFrame
from tdiag.evidence.from_run.stack_files import Stack
from tdiag.evidence.sampled import WRITES
from tdiag.probe.wire import is_user_file

TRAINING = ("data_wait", "forward", "backward", "optimizer")
# Start-up: neither training nor a part of the budget.
IMPORTS, COMPILING = "imports", "compiling"
LOADER_START = "loader start"
_COMPILES = re.compile(r"torch/(_dynamo/(convert_frame|output_graph)|_inductor/compile_fx)\.py$")

# Names of functions that evaluate, the user's and frameworks': Hugging Face's `evaluate` and
# `evaluation_loop`, Lightning's `validation_step`, a loop's own `validate` or `test_epoch`.
_EVALUATES = re.compile(
    r"_*(run_)?(eval(uate|uation)?|valid(ate|ation)?|test)(_(step|loop|epoch|one_epoch|model))?"
)
# The first match applies to the whole stack: a transform that calls a module makes a batch. A
# closure called by `optimizer.step` counts as what it calls; recomputation in backward is backward.
_FIRST = (
    "data_wait",
    LOADER_START,
    "checkpoint",
    "comm",
    "logging",
    "backward",
    "forward",
    "optimizer",
)
_FRAMEWORKS = re.compile(r"/(transformers|accelerate|lightning|pytorch_lightning)/")
_STARTS = ("__init__", "__iter__", "_reset", "_get_iterator")
_WAITS = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|wait)\(")


def waits_for_device(text: str) -> bool:
    """Whether this line of source makes the host wait for the device."""
    return bool(_WAITS.search(text))


class Activities:
    """``of`` gives a stack's activity. ``device``: the process computes on one, so reading a value
    waits for it. ``started_unix_ns``: a file changed after it is not read, because other lines
    ran."""

    def __init__(self, stacks: Sequence[Stack], device: bool, started_unix_ns: int) -> None:
        self.device = device
        self.started_unix_ns = started_unix_ns
        self.unchanged: dict[str, bool] = {}
        trains = [frames for frames, _ in stacks if _phases(frames) & {"backward", "optimizer"}]
        self.training = {_function(frame) for frames in trains for frame in frames}

    def of(self, frames: Sequence[SampledFrame]) -> str:
        """A budget component, ``logging``, ``imports``, or ``other`` (the user's lines, and what
        they call, outside all phases that a stack shows)."""
        for frame in frames:
            if (frame.file or "").startswith("<frozen importlib"):
                return IMPORTS
            if _COMPILES.search(frame.file or ""):
                return COMPILING
        phases = _phases(frames)
        if self._evaluates(frames):
            return "evaluation"
        found = next((name for name in _FIRST if name in phases), "other")
        if found not in ("other", "forward", "optimizer"):
            return found
        text = self._text(frames)
        if self.device and waits_for_device(text):
            return "sync"
        return "logging" if found == "other" and WRITES.search(text) else found

    def own_line(self, frames: Sequence[SampledFrame]) -> bool:
        """Whether the innermost frame is the user's."""
        inner = next((frame for frame in reversed(frames) if not frame.tdiags()), None)
        return inner is not None and is_user_file(inner.file or "")

    def _evaluates(self, frames: Sequence[SampledFrame]) -> bool:
        """Whether it is below a function with such a name, not a dataset's, in which no sample
        trained."""
        for frame in frames:
            if frame.phase() == "data_wait":
                return False
            file = frame.file or ""
            known = is_user_file(file) or _FRAMEWORKS.search(file)
            if known and _EVALUATES.fullmatch(frame.name.rpartition(".")[2]):
                return _function(frame) not in self.training
        return False

    def _text(self, frames: Sequence[SampledFrame]) -> str:
        """The innermost frame's line of source, if it is the user's."""
        if not self.own_line(frames):
            return ""
        inner = next(frame for frame in reversed(frames) if not frame.tdiags())
        file = inner.file or ""
        if file not in self.unchanged:
            self.unchanged[file] = _unchanged(file, self.started_unix_ns)
        return linecache.getline(file, inner.line or 0) if self.unchanged[file] else ""


def _phases(frames: Sequence[SampledFrame]) -> set[str]:
    return {phase for frame in frames if (phase := frame.phase() or _more(frame))}


def _more(frame: SampledFrame) -> str:
    file = frame.file or ""
    if file.endswith(MODULE_FILE) and frame.name.endswith("_call_impl"):
        return "forward"
    if file.endswith("torch/utils/data/dataloader.py"):  # everything except ``__next__``
        return LOADER_START if frame.name.endswith(_STARTS) else ""
    if file.endswith("torch/nn/functional.py"):  # mostly a loss, outside the model's own call
        return "forward"
    if file.endswith(("distributed/distributed_c10d.py", "distributed/_functional_collectives.py")):
        return "comm"
    return "logging" if frame.writes_logs() else ""


def _function(frame: SampledFrame) -> tuple[str, str]:
    return frame.file or "", frame.name


def _unchanged(file: str, since_unix_ns: int) -> bool:
    try:
        return Path(file).stat().st_mtime_ns <= since_unix_ns
    except OSError:
        return False
