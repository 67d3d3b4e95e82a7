"""The time of zero_grad()."""

from __future__ import annotations

from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import HostOps

# zero_grad() may run before forward, before backward, or after the optimizer.
ZERO_GRAD_IN = ("prepare", "backward", "loss", "optimizer", "other")


def zero_grad_ns(host_ops: HostOps | None, phases: Phases | None) -> float:
    """zero_grad() in the clean steps, by its share of each phase in the trace, ns per step."""
    if host_ops is None or phases is None:
        return 0.0
    parts = host_ops.zero_grad_frac.items()
    return sum(frac * phases.wall_ns.get(phase, 0.0) for phase, frac in parts)
