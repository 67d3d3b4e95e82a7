"""Reads torch.profiler traces: fast, tolerant, into columns. See docs/trace-reader.md."""

from tdiag.trace.columns import Damage, Trace
from tdiag.trace.decode import MEMORY_COLUMNS
from tdiag.trace.reader import read_trace

__all__ = ["MEMORY_COLUMNS", "Damage", "Trace", "read_trace"]
