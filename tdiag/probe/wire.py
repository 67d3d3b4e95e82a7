"""What the probe and the rest of tdiag share: names, codes and the table of windows.

The probe (inside the user's process) imports this file relatively, everything else as
``tdiag.probe.wire``. Standard library only. ``docs/run-directory.md`` describes the contents.
"""

from __future__ import annotations

import glob
import os
import re
from functools import lru_cache
from typing import Literal, NamedTuple

# --- windows --------------------------------------------------------------------------------------


class WindowRow(NamedTuple):
    """A stretch of steps in which the run is measured in one way. Its capture has the same key in
    ``probe/capture/__init__.py``, its evidence in ``evidence/from_run/capture.py``."""

    name: str
    tool: str  # in the legends of charts
    color: int  # in charts and on terminals, of the 256 colours of a terminal
    doing: str  # shown on the terminal while it lasts
    absent: str  # start of the reason for missing evidence: "<absent>: the run ended before it"
    profiled: bool = True  # its tool slows the steps down
    standard: bool = True  # part of every run; otherwise on request


_ROWS = (
    WindowRow("warmup", "warm-up", 136, "warming up", "the run ended while warming up",
              profiled=False, standard=False),
    WindowRow("baseline", "clean (judged)", 29, "timing clean steps, no profiler on",
              "clean step times were not measured", profiled=False),
    WindowRow("sample", "py-spy", 32, "sampling stacks", "stacks were not sampled"),
    WindowRow("trace", "torch.profiler", 162, "tracing with torch.profiler",
              "no trace was recorded"),
    WindowRow("calls", "cProfile", 98, "counting calls with cProfile",
              "Python functions were not profiled"),
    WindowRow("ops", "torch calls", 166, "counting torch calls by line",
              "torch calls were not counted"),
    WindowRow("again", "repeated work", 142, "comparing the inputs of functions",
              "inputs of functions were not compared"),
    # strace stops the program at every system call.
    WindowRow("syscalls", "strace", 66, "counting system calls with strace",
              "system calls were not counted", standard=False),
    # For a run on a device: the slowdown that a trace leaves behind, because CUPTI stays attached.
    WindowRow("residue", "after the trace", 101, "timing steps after the trace",
              "steps after the trace were not timed", profiled=False, standard=False),
)  # fmt: skip
WINDOWS = {row.name: row for row in _ROWS}
WARMUP, BASELINE, SAMPLE, TRACE, CALLS, OPS, AGAIN, SYSCALLS, RESIDUE = WINDOWS
STANDARD = tuple(row.name for row in _ROWS if row.standard)
PROFILED = tuple(row.name for row in _ROWS if row.profiled)

# A step outside all windows has one of these names.
SETTLE = "settle"  # after a pause that tdiag caused, or while a profiler is being switched on
FOLLOW = "follow"  # another rank leads through the windows
COLD = "cold"  # the first step of a turn: the caches hold the other program's data
DONE = "done"
LATE = "late"  # a late window, with its own record kind

# Which windows a run goes through (probe/plan.py).
DIAGNOSE, TURNS, COUNTS = "diagnose", "turns", "counts"
# From this step time on, no window of the first pass holds two steps.
LONG_STEP_NS = 4_000_000_000

# --- events/<pid>.jsonl ---------------------------------------------------------------------------

# `kind` of each record, its first key. evidence/from_run/records.py has a class for each kind that
# a report needs.
RecordKind = Literal[
    "process", "torch", "role", "loader", "iterator", "fetch", "module", "called", "ddp",
    "collective", "optimizer", "scheduler", "inspection", "input", "boundary", "window", "steps",
    "trace", "calls", "ops", "again", "syscalls", "dispatch", "flags", "settings", "finish", "stop",
    "forced", "sampler", "saver", "started", "failure", "died", "unstopped", "trial", "compiled",
    "late", "backwards",
]  # fmt: skip

# The record of consecutive steps, as JSON: the general encoder takes three times as long for this
# one record with many numbers.
STEPS = '{"kind":"steps","i":%d,"n":%d,"s":%d,"t":%d,"w":"%s","m":%s}'
# Its `i`, `n` and `t`: a display does not need the marks.
STEPS_HEAD = re.compile(
    rb'\{"kind": ?"steps", ?"i": ?(\d+), ?"n": ?(\d+), ?"s": ?\d+, ?"t": ?(\d+)'
)
_KIND = re.compile(rb'\{"kind": ?"(\w+)"')

# Marks: code, time, argument. An even code opens a pair, the next code closes it.
NEXT_BEGIN, NEXT_END = 0, 1
FORWARD_BEGIN, FORWARD_END = 2, 3
BACKWARD_BEGIN, BACKWARD_END = 4, 5
OPTIMIZER_BEGIN, OPTIMIZER_END = 6, 7
SAVE_BEGIN, SAVE_END = 8, 9
GC_BEGIN, GC_END = 10, 11
STEP_END = 12
ON_CPU = 13  # instead of a time: on-CPU ns of the training thread since the step began
COMM_BEGIN, COMM_END = 14, 15
EVAL_BEGIN, EVAL_END = 16, 17  # the moment when a model is switched to evaluation mode

ITERATOR_MADE = -2  # argument of NEXT_END if the pair is ``iter(loader)``
MADE = "made"  # value of a setting that is an object, or a call without arguments
BY_CPROFILE = "the script profiles itself (cProfile)"  # why a window recorded nothing
OF_GRAD = 1  # argument of BACKWARD_BEGIN in torch.autograd.grad
TRAINING_MODE, GRAD_ON = 1, 2  # bits of FORWARD_BEGIN's argument
SWITCHED = -1  # mode of a `called` record for a module that was not called but switched to eval
MODULE_SHIFT = 2  # the module's number is in the higher bits

# What ends a step: `source` of the record `boundary`. The first three, weakest first.
BY_BATCH, BY_BACKWARD, BY_OPTIMIZER = "batch", "backward", "optimizer"
BY_CLOSURE, BY_MICRO_BATCH = "closure", "micro-batch"

# Up to how many nodes of a graph are counted.
MOST_GRAPH_NODES = 20_000
NO_OPTIMIZER = -1  # in a `backwards` record, for parameters that no optimizer has
# The name of a call of torch.autograd.grad that differentiates one element of a tensor.
GRAD_OF_ELEMENT = "grad of an element"

# --- the run directory ----------------------------------------------------------------------------

RUN_VARIABLE = "TDIAG_RUN"  # of the child's environment: the run directory
CONFIG, RUN = "config.json", "run.json"
EVENTS, CONTROL, TENSORBOARD = "events", "control", "tensorboard"
PROBE_ERROR = "probe-error.txt"
CPROFILE = "cprofile.pstats"
DIGEST = "digest.msgpack"  # of the ranks, from tdiag.evidence.from_run.digest
ROOF = "roof.json"  # rates of the machine, from tdiag.launch.measured_roof
CORES = "cores.json"  # what further cores add, from tdiag.sample.cores
CELLS = "cells"  # sources of notebook cells
KERNEL = "kernel"  # in the configuration: watches a cell in a process that continues afterwards
VISIT = "visit"  # the same: one more pass of windows in a process that `tdiag run` started
# Code that Python runs as a function of its own; until 3.12 (PEP 709) also lists, sets and dicts.
COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
# Module → its functions that save a checkpoint, besides torch.save.
SAVES = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    # Exports run the model to record it. torch.jit.script is left alone: it reads its caller's
    # variables.
    "torch.export": ("export", "save"),
    "torch.onnx": ("export",),
    "torch.jit": ("save",),
    # Besides writing files, these gather states and delete the previous checkpoint.
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "lightning.fabric.fabric": ("Fabric.save",),
    "lightning_fabric.fabric": ("Fabric.save",),
    "transformers.trainer": ("Trainer._save_checkpoint",),
    "accelerate.accelerator": ("Accelerator.save_state",),
}
PY_SPY, IN_PROCESS, OFF = "py-spy", "in-process", "off"  # `sampler` in the configuration
TACHYON = "tachyon"  # Python's own sampler, in py-spy's place where that cannot sample


NODES = "nodes"  # one run directory per machine that joined the run, next to the first machine's


def parts(run_dir: str | os.PathLike[str]) -> list[str]:
    """The run directory itself, then those in it of machines that joined the run."""
    joined = glob.glob(os.path.join(glob.escape(os.fspath(run_dir)), NODES, "*", RUN))
    return [os.fspath(run_dir), *sorted(map(os.path.dirname, joined))]


def events_file(pid: int) -> str:
    return f"{EVENTS}/{pid}.jsonl"


class EventsFile:
    """The records of one process, read once or while the process writes them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)[: -len(".jsonl")]
        self.pid = int(self.name) if self.name.isdigit() else -1
        self.read_bytes = 0

    def read(self, most_bytes: int = -1, last: bool = False) -> list[tuple[str, bytes]]:
        """Kind and text of the lines written since the last call. The kind of a line that does not
        begin like a record is empty. An incomplete line waits for the next call, unless this is the
        ``last``. Raises OSError."""
        with open(self.path, "rb") as file:
            file.seek(self.read_bytes)
            data = file.read(most_bytes)
        if not last:
            data = data[: data.rfind(b"\n") + 1]
        self.read_bytes += len(data)
        lines = [line for line in data.split(b"\n") if line.strip()]
        heads = [_KIND.match(line) for line in lines]
        return [(head[1].decode() if head else "", line) for head, line in zip(heads, lines)]


def events_files(run_dir: str | os.PathLike[str]) -> list[EventsFile]:
    """One for each process, by name."""
    paths = glob.glob(os.path.join(glob.escape(os.fspath(run_dir)), EVENTS, "*.jsonl"))
    return [EventsFile(path) for path in sorted(paths)]


def stacks_file(pid: int | str) -> str:
    """The file name; ``*`` instead of a process id matches all."""
    return f"stacks-{pid}.speedscope.json"


def startup_stacks_file(pid: int | str) -> str:
    return f"startup-stacks-{pid}.speedscope.json"


FIRST_LATE_PASS = 101  # pass of window `sample`: above the passes of the plan's windows


def late_stacks_file(pid: int | str, number: int | str) -> str:
    return f"late-stacks-{pid}-{number}.speedscope.json"


def syscalls_file(pid: int | str) -> str:
    return f"syscalls-{pid}.txt"


ENDED = 0  # in place of a thread's id: all threads of the process that have ended

# --- control/ -------------------------------------------------------------------------------------

FINISH = "finish"  # the parent asks the probe to stop at the next step
OVER = "over"  # a notebook's cell or a visit has ended: for workers that outlive it
RANK = "rank-"  # plus its number: this rank sees the run directory
STOP_AT = "stop-at"  # the step at which all ranks stop
TRACE_AT = "trace-at"  # the steps that all ranks trace
# `tdiag attach` asks the ranks of the run for one more pass of windows: the run directory to write.
VISIT_ASKED = "visit"
VISIT_ACCEPTED = "accepted"  # what `visit-<pid>` says, with the rank, or `refused: ` and why
REPORTED = "reported"  # a machine of the job makes the report
TURNS_OWNER, TURNS_HOLD, TURNS_DONE = "turns.owner", "turns.hold", "turns.done"

STARTUP = "startup"  # in place of the window: requested by the parent, before the first step
# A tool that is requested: `<window>-<pid>-<pass>` followed by one of these.
WANT, STATE, STOP = ".want", ".state", ".stop"
ATTACHED, REFUSED = "attached", "refused: "  # what `.state` says
# py-spy reads the symbols of a large process in 1–3 s.
ANSWER_WITHIN_S = 8.0


def turns_go(rank: int) -> str:
    """The pipe that lets this rank go."""
    return f"turns-{rank}.go" if rank else "turns.go"


def visit_answer(pid: int) -> str:
    return f"{VISIT_ASKED}-{pid}"


def request(window: str, pid: int, number: int) -> str:
    return f"{window}-{pid}-{number}"


# --- debugging ----------------------------------------------------------------------------------

# Variables that slow down every launch, collective or allocation → values that do not.
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": ("", "0"),
    "HIP_LAUNCH_BLOCKING": ("", "0"),
    "AMD_SERIALIZE_KERNEL": ("", "0"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "OFF", "INFO"),
    "PYTHONMALLOC": ("", "default", "malloc", "pymalloc", "mimalloc"),
}

# --- whose code a file holds ----------------------------------------------------------------------

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|/tdiag/probe/|/tdiag_probe/"
    # Inductor's generated code: a file named by the hash of its content
    # (torch/_inductor/codecache.py).
    r"|/([a-z2-7]{2})/c\3[a-z2-7]{49}\.py$"
)


CELL = "<ipython-input-"  # how IPython outside Jupyter names the code of a cell


@lru_cache(maxsize=4096)
def is_user_file(name: str) -> bool:
    """False for torch, installed packages, the standard library, tdiag's probe, code that inductor
    generated and built-ins."""
    if name.startswith("<"):
        return name.startswith(CELL)  # typed into a notebook
    return bool(name) and not _LIBRARY.search(name)
