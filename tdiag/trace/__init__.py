"""Reads torch.profiler traces: fast, tolerant, into columns. See docs/trace-reader.md."""

from tdiag.trace.columns import Damage, Trace
from tdiag.trace.reader import read_trace

__all__ = ["Damage", "Trace", "read_trace"]
