"""What the product says of the rules' own examples: evidence → diagnosis → document.

The golden reports and the reports in the docs are made of these, so that they show real rules with
real texts. ``scripts/generate_samples.py`` writes them.
"""

from __future__ import annotations

from pathlib import Path

from tdiag.diagnose import diagnose
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Budget, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.notes import Captured
from tdiag.rules.catalogue import find
from tdiag.rules.examples import device_time

HOME = Path("/home/me")
RUN_DIR = HOME / ".tdiag/runs/20261121-124500-train"
STEPS = 120
MS = 1_000_000


def sample(*codes: str, device_ms: dict[str, float] | None = None, **phases_ms: float) -> Diagnosis:
    """Of a run that holds what these rules fire on, with these phases of the clean step.
    ``device_ms``: what a device does and waits for meanwhile."""
    evidence = Evidence(
        perturbation={"sample": 0.012, "trace": 0.384, "calls": 1.12, "ops": 8.4},
        capture=dict.fromkeys(
            ("baseline", "sample", "trace", "calls", "ops", "system"), Captured("captured")
        ),
    )
    for code in reversed(codes):  # what the first rule needs counts
        evidence.facts.update(find(code).fires().facts)
    evidence.facts.pop(Budget, None)
    wall = {name: ms * MS for name, ms in phases_ms.items()}
    mean = round(sum(wall.values()))
    durations = tuple(mean + (i % 5 - 2) * mean // 100 for i in range(STEPS))
    evidence.add(
        Steps(
            mean_ns=mean,
            median_ns=sorted(durations)[STEPS // 2],
            p90_ns=sorted(durations)[STEPS * 9 // 10],
            count=STEPS,
            durations_ns=durations,
            boundary="optimizer",
            total_steps_seen=2 * STEPS,
        ),
        Environment(
            torch="2.13.0",
            python="3.11.7",
            device="NVIDIA H200" if device_ms else "cpu",
            device_count=int(device_ms is not None),
            tdiag="0.1.0",
            command=("python", "train.py", "--epochs", "2"),
            script="train.py",
            hostname="lab-7",
            platform="Linux-6.1-x86_64",
        ),
    )
    evidence.add(Phases(wall_ns=wall, cpu_ns=wall, counts=dict.fromkeys(wall, 1.0)))
    if device_ms:
        parts = {name: ms * MS for name, ms in device_ms.items()}
        evidence.add(device_time(sum(device_ms.values()), components_ns=parts))
    return diagnose(evidence)


PRODUCT = {
    "io": sample("TD101", "TD201", data_wait=400, forward=20, loss=1, backward=40, optimizer=6),
    "cpu": sample("TD201", "TD002", data_wait=60, forward=12, loss=1, backward=24, optimizer=3),
    "python_loss": sample("TD501", data_wait=1, forward=15, loss=90, backward=95, optimizer=8),
    "healthy": sample("TD605", data_wait=0.5, forward=38, loss=0.4, backward=71, optimizer=9),
    "gpu_h2d": sample(
        "TD301", device_ms={"compute": 30, "h2d": 8, "launch": 2}, data_wait=0.5, forward=14,
        loss=0.5, backward=21, optimizer=4,
    ),
    "unknown": diagnose(Evidence(missing={Steps: "the run ended before the first training step"})),
}  # fmt: skip
