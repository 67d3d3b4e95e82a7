"""Which values of a sweep are measured; no time is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tdiag.model.trials import Tried
from tdiag.trial import candidate, measure
from tdiag.trial.measure import TrialOptions, try_all

from .test_trial import options, tried


@pytest.mark.parametrize(
    ("speedups", "measured"),
    [
        ((1.0, 1.5, 1.9, 2.2, 2.4, 2.3, 2.0, 1.7, 1.5), [3, 5, 6, 4]),
        ((1.0, 1.4, 1.8, 2.1, 2.2, 2.0, 2.0, 1.7, 1.5), [3, 5, 2, 4]),
        ((1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8), [3, 5, 6, 7, 8]),
        ((1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), [3, 5, 2, 1, 0]),
        ((1.0, 2.0, 1.9), [0, 1, 2]),
        ((1.0, 0.9, 0.8), [0, 1]),
        ((1.0, 1.0, 1.0, 1.0), [1, 2, 0]),  # one as fast with fewer
    ],
)
def test_a_sweep_ends_where_its_curve_turns(
    speedups: tuple[float, ...], measured: list[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def try_one(one: candidate.Candidate, given: TrialOptions, name: str, until_s: float) -> Tried:
        speedup = speedups[int(one.changes[0][1])]
        answer = "faster" if speedup > 1 else "slower" if speedup < 1 else "not applied"
        return tried(one.label, answer=answer, speedup=speedup if answer != "not applied" else 0.0)

    monkeypatch.setattr(measure, "monotonic", lambda: 0.0)
    monkeypatch.setattr(measure, "try_one", try_one)
    values = ",".join(map(str, range(len(speedups))))
    given = replace(options(tmp_path), time_budget_s=600.0)
    found = try_all(candidate.sweep(f"loader.num_workers={values}"), given)
    assert [int(one.change.rpartition("=")[2]) for one in found.tried] == measured
    left = len(speedups) - len(measured)
    assert len(found.notes) == (left > 0)
    if left:
        assert len(found.notes[0].rpartition(": ")[2].split(", ")) == left


def test_values_without_an_order_are_all_tried() -> None:
    named = candidate.sweep("torch.float32_matmul_precision=high,medium")
    assert [one.sweep for one in named] == ["", ""]
