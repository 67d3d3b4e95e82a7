"""Files that the loop waits for between steps, where it makes its batches without a DataLoader."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Sequence

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import StackLine
from tdiag.evidence.steps import Budget, Phases
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.fetch_lines import by_hand_ns
from tdiag.rules.loop_heads import TRAINS
from tdiag.rules.syntax import innermost, statement_text, tree_of

# Calls that open, read or write files, by the text of the line: no sample names built-in functions.
_FILES = re.compile(
    r"\bopen\(|\bf(data)?sync\(|\b(imread|memmap|fromfile|tofile|read_image)\("
    r"|\.(read|readinto|readlines?|seek|write(lines)?|flush|(read|write)_(bytes|text))\("
    r"|\b(np|numpy|torch|pickle|joblib|json|yaml)\.(load|save|dump)(z|z_compressed|txt)?\("
    r"|\b(pd|pl|pandas|polars)\.(read|scan)_\w+\(|\.(to|write)_(csv|json|parquet|feather|hdf)\("
)
# The innermost frames of such calls in libraries.
_LIBRARIES = re.compile(
    r"\((\S*/)?(gzip|bz2|lzma|zipfile|tarfile|pathlib|shutil|_?npyio\w*|format|parsers|readers)\.py\)$"
)
# Methods by which a dataset or an iterator gives data.
_GIVES = ("__getitem__", "__getitems__", "__iter__", "__next__")


def waited_ns(
    budget: Budget,
    phases: Phases,
    environment: Environment | None,
    loaders: Loaders | None,
) -> float:
    """The time between steps in which the loop makes its batches and no core works for it, ns per
    step; 0 if it mostly works, if that is unknown, or with a DataLoader."""
    making = by_hand_ns(budget, phases, environment, loaders)
    on_core = phases.cpu_ns.get("prepare", making)
    return making - on_core if on_core <= MAJORITY_FRAC * making else 0.0


def file_lines(beside: Sequence[StackLine]) -> list[StackLine]:
    """Those of the lines between steps that open, read or write files; none if they do not take
    most of the samples there."""
    found = [line for line in beside if of_files(line)]
    most = MAJORITY_FRAC * sum(line.self_frac for line in beside)
    return found if sum(line.self_frac for line in found) > most else []


def gives_data(at: Place) -> bool:
    """Whether the function around the line gives samples or batches, by its source: a dataset's or
    an iterator's method, or a generator that neither trains nor makes a ``with`` block."""
    if at.function.rpartition(".")[2] in _GIVES:
        return True
    function = innermost(tree_of(at.file), (ast.FunctionDef,), at.line)
    if not isinstance(function, ast.FunctionDef) or not any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function)
    ):
        return False
    wraps = any("contextmanager" in ast.unparse(x) for x in function.decorator_list)
    body = linecache.getlines(at.file)[function.lineno - 1 : function.end_lineno]
    return not wraps and not TRAINS.search("".join(body))


def of_files(line: StackLine) -> bool:
    """Whether the line opens, reads or writes files."""
    text = statement_text(*line.at.spot)
    return bool(_FILES.search(text) or _LIBRARIES.search(line.leaf))
