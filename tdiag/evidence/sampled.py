"""Sampled stacks."""

from __future__ import annotations

import re

from tdiag.model.kind import Kind
from tdiag.model.place import Place

# Modules that write logs, as they appear in the innermost frame of a sample.
WRITERS = re.compile(
    r"(?<![\w-])(tqdm/|wandb/|mlflow/|neptune/|comet_ml/|aim/|rich/|loguru/"
    r"|logging/__init__|logging/handlers)|tensorboard"
    r"|(_encode_tile|_save|save) \(PIL/"  # a picture, outside loading
)
# Calls that write. No sampled frame names built-in ones, so the text of the line is matched. Text
# made in memory (`json.dumps`) is a log only if something writes it: it may be a message.
WRITES = re.compile(
    r"\b_?log(ger)?\.(debug|info|warn(ing)?|error|exception|critical)\(|"
    r"\bprint\(|\bjson\.dump\(|\.writerows?\(|\.write(_text)?\(|\.flush\(|\bfsync\(|\.savefig\(|\blogger\.|\blogging\."
    r"|\.add_(scalars?|histogram|image|figure)\(|\.set_postfix\(|\bwandb\.log\(|\.commit\("
    r"|\.(to|write)_(csv|json|ndjson|parquet|feather|excel|sql|hdf)\(|\bsavetxt\("  # tables
)

# Phases in which another rule covers writing: loading data, saving weights.
NOT_LOGGING = ("data_wait", "checkpoint")


class StackLine(Kind, frozen=True, kw_only=True):
    """Samples whose innermost *user* frame is this line, as a share of the thread's samples."""

    at: Place
    self_frac: float
    leaf: str  # most frequent innermost frame under that line, e.g. "decode (PIL/Image.py)"
    phase: str = ""  # key of Phases, "" if mixed or unknown
    library: str = ""  # installed package the line called in most samples, e.g. "pandas"
    own_frac: float = 0.0  # of self_frac: the line itself is the innermost frame
    # Of self_frac: samples in which the line called a library's Python, and torch's nowhere.
    elsewhere_frac: float = 0.0
    # Of self_frac: samples in which a library writes a log for the line, without loading and
    # saving. By the part of a framework that writes ("the progress bar"), "" for other libraries.
    logging: tuple[tuple[str, float], ...] = ()
    # Of self_frac: samples in the Python of a framework that the line called, without logging and
    # without phases that a stack shows: the time that its loop takes around the step.
    framework: float = 0.0
    # Of self_frac: samples in a framework's evaluation.
    evaluating: float = 0.0


class Stacks(Kind, frozen=True, kw_only=True):
    """Sampled wall-clock stacks, window ``sample``.

    ``source``: ``py-spy``, ``tachyon`` (Python's own sampler), or ``in-process`` if attaching was
    refused (then without workers)."""

    source: str
    samples: int
    training: tuple[StackLine, ...]
    workers: tuple[StackLine, ...]  # share of all *fetching* samples of all workers
    worker_samples: int
    # Other Python threads in the training process: shares of the samples in which they work,
    # weighted by the threads' CPU time.
    beside: tuple[StackLine, ...] = ()
    # Those that run the user's code, whatever they do: shares of all their samples.
    others: tuple[StackLine, ...] = ()
    # By how much the sampler slowed the steps: shares refer to these longer steps.
    slowed_frac: float = 0.0
    # Share of the training thread's samples that end in the probe and so belong to no line.
    probe_frac: float = 0.0


class CallFrame(Kind, frozen=True, kw_only=True):
    """One function of a call tree. ``parent``: index of its caller, which comes earlier in the
    tuple; −1 = outermost. ``frac``: samples in it and its callees ÷ all samples of the tree.
    ``line``: for a user function the sampled line (one frame per line), else 0. ``evaluates``: it
    runs a framework's evaluation; ``collects``: it collects the outputs of one."""

    name: str
    file: str
    line: int
    parent: int
    frac: float
    user: bool
    evaluates: bool = False
    collects: bool = False


class LateStacks(Kind, frozen=True, kw_only=True):
    """Stacks sampled last in a run that continued after its windows: in its second half."""

    stacks: Stacks
    trees: CallTrees


class CallTrees(Kind, frozen=True, kw_only=True):
    """All sampled stacks of window ``sample``, as call trees for a flame graph.

    ``workers``: samples of all DataLoader workers while they fetched; empty without workers."""

    training: tuple[CallFrame, ...]
    workers: tuple[CallFrame, ...]
