"""The part of a backward pass that is for some parameters alone, by its graph.

A node of the graph costs a fixed time, its multiplications, and the numbers of its gradients. So a
part's share of the time lies between the least and the largest of its shares of the nodes, of the
multiplications and of the numbers.
"""

from __future__ import annotations

from tdiag.evidence.training import GraphShares
from tdiag.model.diagnosis import Measure
from tdiag.model.threshold import Threshold
from tdiag.rules.base import frac

LEAST_HELD_FRAC = Threshold(
    0.9,
    "of the least share",
    "Measured with torch 2.13 on a CPU: what backward takes for a generator behind its critic ÷ the"
    " least of its three shares, the least of seven (benchmarks/rule_constants.py graph_shares).",
)


def least(shares: GraphShares) -> float:
    """The least share of the time: the call of backward itself takes time, too."""
    return min(shares.nodes, shares.products, shares.numbers) * LEAST_HELD_FRAC


def most(shares: GraphShares) -> float:
    return max(shares.nodes, shares.products, shares.numbers)


def measures(shares: GraphShares) -> tuple[Measure, ...]:
    return (
        frac("for the former, of the nodes of the graph", shares.nodes, "probe"),
        frac("of its multiplications", shares.products, "probe"),
        frac("of the numbers in its gradients", shares.numbers, "probe"),
    )
