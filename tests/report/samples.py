"""Diagnoses as real runs give them, built by hand: one for each kind of report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tdiag.diagnose.model import (
    Abstained,
    Component,
    Diagnosis,
    Finding,
    Fix,
    Measure,
    Place,
    Safety,
    Speedup,
    StepTime,
    Verdict,
)

HOME = Path("/home/ada/project")
RUN_DIR = HOME / ".tdiag/runs/20261121-124500-train"
MS = 1_000_000

CPU: dict[str, Any] = {
    "torch": "2.13.0",
    "python": "3.11.7",
    "device": "cpu",
    "device_count": 0,
    "tdiag": "0.1.0",
    "command": ["python", "train.py", "--epochs", "2"],
    "script": "train.py",
    "hostname": "lab-7",
    "platform": "Linux-6.1-x86_64",
    "rank": 0,
    "world_size": 1,
}
GPU = CPU | {"device": "NVIDIA H200", "device_count": 1, "torch": "2.13.0+cu130"}
CAPTURED = {
    "steps": "captured",
    "fetches": "captured",
    "py-spy": "captured",
    "trace": "captured",
    "calls": "captured",
    "ops": "captured",
    "system": "captured",
}
PERTURBATION = {"sample": 0.012, "trace": 0.384, "calls": 1.12, "ops": 8.4}
NO_DEVICE = "no CUDA device in this run"
GPU_RULES = tuple(
    Abstained(code, name, NO_DEVICE)
    for code, name in (
        ("TD301", "pageable-copies"),
        ("TD302", "blocking-pinned-copies"),
        ("TD303", "host-made-tensor-moved"),
        ("TD401", "sync-every-step"),
        ("TD601", "float32-on-matrix-units"),
    )
)


def train(line: int, file: str = "train.py") -> Place:
    return Place(str(HOME / file), line)


def finding(
    code: str,
    name: str,
    cls: str,
    summary: str,
    at: Place | None,
    evidence: tuple[Measure, ...],
    fix: str,
    *,
    win_ms: float = 0.0,
    speedup: tuple[float, float] | None = None,
    why: str = "",
    safety: Safety = "safe",
    intervention: str | None = None,
) -> Finding:
    return Finding(
        code=code,
        name=name,
        cls=cls,
        summary=summary,
        location=at,
        evidence=evidence,
        recoverable_ns=round(win_ms * MS),
        speedup=Speedup(*speedup) if speedup else None,
        why_gain=why,
        fix=Fix(fix, safety, intervention),
        advisory=speedup is None,
    )


def diagnosis(
    verdict: Verdict, budget_ms: dict[str, float], steps: int = 214, **changes: Any
) -> Diagnosis:
    """A diagnosis whose step is exactly the sum of its budget."""
    parts = tuple(Component(name, round(ms * MS)) for name, ms in budget_ms.items())
    mean = sum(part.ns for part in parts)
    fields: dict[str, Any] = {
        "verdict": verdict,
        "step": StepTime(mean, round(mean * 0.957), round(mean * 1.42), steps) if parts else None,
        "budget": parts,
        "findings": (),
        "abstained": GPU_RULES,
        "perturbation": PERTURBATION,
        "environment": CPU,
        "capture": CAPTURED,
    }
    return Diagnosis(**(fields | changes))


WORKERS = finding(
    "TD201",
    "loader-in-training-process",
    "cpu",
    "The loader runs in the training process: each batch takes 31.3 ms to make while "
    "2.9 of 4.0 cores stay idle.",
    train(41),
    (
        Measure("fetch_ns", 31_300_000, "ns", "fetch"),
        Measure("fetch on-CPU share", 0.981, "frac", "fetch"),
        Measure("cores used", 1.1, "cores", "system"),
        Measure("cores allowed", 4, "cores", "system"),
    ),
    "DataLoader(..., num_workers=3)",
    win_ms=27.4,
    speedup=(1.6, 2.4),
    why="Loading then runs beside the training; what is left is the 18.9 ms of computing, or a "
    "third of the loading if three workers cannot keep up.",
    intervention="num_workers",
)

CPU_BOUND = diagnosis(
    Verdict(
        cls="cpu",
        share=0.6235,
        confidence=0.91,
        runner_up="compute",
        summary="31.3 ms of each 50.2 ms step is spent waiting for batches that the CPU is still "
        "preprocessing: Pillow decoding in `__getitem__` leads.",
    ),
    {
        "data_wait_cpu": 31.3,
        "forward": 6.12,
        "backward": 9.41,
        "optimizer": 2.02,
        "loss": 0.61,
        "prepare": 0.11,
        "gc": 0.03,
        "other": 0.45,
        "unattributed": 0.15,
    },
    findings=(
        WORKERS,
        finding(
            "TD207",
            "tensors-from-python-lists",
            "cpu",
            "`torch.tensor` is called 192 times a batch on nested Python lists.",
            train(23, "data/images.py"),
            (
                Measure("constructions", 192, "per_step", "ops"),
                Measure("time in them", 4_210_000, "ns", "ops"),
            ),
            "torch.from_numpy(np.asarray(image))",
            win_ms=3.9,
            speedup=(1.05, 1.09),
            why="The conversion's measured time, less one copy of the same bytes.",
        ),
        finding(
            "TD002",
            "adam-with-weight-decay",
            "compute",
            "Adam with weight_decay=0.01 does not decay weights as AdamW does.",
            train(52),
            (Measure("weight decay", 0.01, "text", "probe"),),
            "torch.optim.AdamW(...)",
            safety="review",
        ),
    ),
)

IO_BOUND = diagnosis(
    Verdict(
        cls="io",
        share=0.812,
        confidence=0.87,
        runner_up="cpu",
        summary="408 ms of each 502 ms step is spent waiting for batches whose files are still "
        "being read: fetches are blocked 88% of their time.",
    ),
    {
        "data_wait_io": 407.6,
        "data_wait_cpu": 22.1,
        "forward": 20.3,
        "backward": 38.7,
        "optimizer": 6.4,
        "loss": 1.2,
        "checkpoint": 3.1,
        "unattributed": 2.6,
    },
    steps=48,
    findings=(
        finding(
            "TD101",
            "fetches-blocked-on-storage",
            "io",
            "Each batch reads 96.0 MiB from storage and its fetch is blocked for 361 ms of "
            "411 ms; `np.load` leads.",
            train(18, "data/volumes.py"),
            (
                Measure("fetch_ns", 411_000_000, "ns", "fetch"),
                Measure("blocked share of fetch", 0.878, "frac", "fetch"),
                Measure("storage_read_bytes", 100_663_296, "bytes", "fetch"),
                Measure("read rate", 233.4 * 2**20, "bytes_per_s", "system"),
                Measure("leading line", "np.load (numpy/lib/_npyio_impl.py)", "text", "sample"),
            ),
            "Read Volumes into memory once (6.20 GiB in all) at volumes.py:18; or overlap the "
            "waits with DataLoader(..., num_workers=2) at train.py:41; or use a faster disk.",
            win_ms=379,
            speedup=(3.1, 5.2),
            why="The data set's 6.20 GiB fit the free memory, so later epochs read nothing.",
            safety="review",
        ),
        finding(
            "TD201",
            "loader-in-training-process",
            "io",
            "One fetch at a time: 2 workers would overlap their waiting.",
            train(41),
            (Measure("num_workers", 0, "count", "probe"),),
            "DataLoader(..., num_workers=2)",
            win_ms=210,
            speedup=(1.4, 2.0),
            why="Blocked reads overlap until the disk's measured rate is used up.",
            intervention="num_workers",
        ),
    ),
)

PYTHON_LOSS = diagnosis(
    Verdict(
        cls="python_loss",
        share=0.934,
        confidence=0.96,
        runner_up="overhead",
        summary="1.41 s of each 1.51 s step goes to a Python loop over tensor elements in the "
        "loss, half of it in the backward that walks what the loop built.",
    ),
    {"loss": 743.0, "backward": 702.0, "forward": 41.0, "optimizer": 22.0, "unattributed": 2.0},
    steps=11,
    findings=(
        finding(
            "TD501",
            "python-loop-in-loss",
            "python_loss",
            "The loop issues 12,288 torch calls a step from one line, each on one element.",
            train(15, "losses/instance.py"),
            (
                Measure("torch calls", 12_288, "per_step", "ops"),
                Measure("conversions (.item)", 64, "per_step", "ops"),
                Measure("loss region", 743_000_000, "ns", "baseline"),
                Measure("cost of an op", 8_900, "ns", "probe"),
            ),
            "similarity = torch.cosine_similarity(a[:, None], b[None], dim=-1)\n"
            "loss = torch.where(same, 1 - similarity, similarity.clamp(min=0)).mean()",
            win_ms=1_390,
            speedup=(11.8, 14.6),
            why="12,288 calls at 8.9 µs, forward and backward, become two.",
            safety="manual",
        ),
    ),
)

HEALTHY = diagnosis(
    Verdict(
        cls="compute",
        share=0.962,
        confidence=0.93,
        runner_up=None,
        summary="96% of each 124 ms step is forward, backward and optimizer, and the ops are "
        "large enough to keep every core busy.",
        healthy=True,
    ),
    {
        "backward": 71.2,
        "forward": 38.8,
        "optimizer": 9.3,
        "loss": 0.4,
        "data_wait_cpu": 2.1,
        "other": 1.4,
        "unattributed": 0.8,
    },
    findings=(
        finding(
            "TD605",
            "device-busy-and-efficient",
            "compute",
            "3.9 of 4.0 cores are used and 91% of op time is in matrix products.",
            None,
            (Measure("cores used", 3.9, "cores", "system"),),
            "More or faster devices are what is left.",
        ),
    ),
)

UNKNOWN = diagnosis(
    Verdict(
        cls="unknown",
        share=0.0,
        confidence=0.0,
        runner_up=None,
        summary="No training step was seen: no optimizer stepped, no backward ran and no "
        "DataLoader was iterated.",
    ),
    {},
    abstained=(
        *(
            Abstained(code, "", "no clean step was measured")
            for code in ("TD101", "TD201", "TD202", "TD203", "TD501", "TD605", "TD701", "TD803")
        ),
        *GPU_RULES,
    ),
    perturbation={},
    capture={
        "steps": "failed: the script ended before its first step",
        "py-spy": "not requested",
        "trace": "not requested",
        "system": "captured",
    },
    notes=("`train.py` ended by itself after 4.1 s with exit code 0.",),
)

CRASH = diagnosis(
    Verdict(
        cls="unknown",
        share=0.0,
        confidence=0.0,
        runner_up=None,
        summary="The script crashed at step 3, before a clean window could be measured.",
    ),
    {},
    abstained=tuple(
        Abstained(code, "", "no clean step was measured") for code in ("TD101", "TD201", "TD501")
    ),
    perturbation={},
    capture={
        "steps": "failed: 3 steps seen, the first of them warm-up",
        "py-spy": "failed: the script ended first",
        "trace": "failed: the script ended first",
        "system": "captured",
    },
    notes=(
        "`train.py` exited with code 1: `ValueError: Expected input batch_size (32) to match "
        "target batch_size (31).`",
    ),
)

GPU_H2D = diagnosis(
    Verdict(
        cls="h2d",
        share=0.412,
        confidence=0.89,
        runner_up="compute",
        summary="3.51 ms of each 8.52 ms step the device does nothing but receive the batch: "
        "48.0 MiB from pageable memory.",
    ),
    {
        "compute": 4.21,
        "h2d": 3.51,
        "launch": 0.32,
        "sync": 0.21,
        "data_wait_cpu": 0.12,
        "d2h": 0.01,
        "optimizer": 0.02,
        "unattributed": 0.12,
    },
    steps=1_204,
    environment=GPU,
    findings=(
        finding(
            "TD301",
            "pageable-copies",
            "h2d",
            "Every step copies 48.0 MiB from pageable memory at 13.7 GB/s, and nothing computes "
            "meanwhile.",
            train(63),
            (
                Measure("exposed_copy_ns", 3_510_000, "ns", "trace"),
                Measure("copied_bytes", 50_331_648, "bytes", "trace"),
                Measure("rate", 13.7, "gb_per_s", "trace"),
                Measure("host blocked", 3_480_000, "ns", "trace"),
            ),
            "DataLoader(..., pin_memory=True)",
            win_ms=2.5,
            speedup=(1.31, 1.55),
            why="Pinned copies run at 53.2 GB/s on this machine (measured), and can overlap.",
            intervention="pin_memory",
        ),
        finding(
            "TD302",
            "blocking-copies",
            "h2d",
            "The host waits for each copy before it issues the forward.",
            train(63),
            (Measure("host blocked", 3_480_000, "ns", "trace"),),
            "images = images.to(device, non_blocking=True)",
            win_ms=0.9,
            speedup=(1.0, 1.14),
            why="At most the 1.05 ms for which compute could have run.",
        ),
    ),
    abstained=(Abstained("TD902", "straggler-rank", "only one rank ran"),),
)

HOSTILE_NAME = "[red]wipe\x1b[2J\x1b]0;owned\x07\n漢字テスト👩‍👩‍👧‍👦\u202egnp.[/red]" + "x/" * 120
HOSTILE = diagnosis(
    Verdict(
        cls="cpu",
        share=0.6,
        confidence=0.5,
        runner_up=None,
        summary=f"The file {HOSTILE_NAME} is slow, [bold]really[/bold] `\x1b[31m`.",
    ),
    {"data_wait_cpu": 30.0, HOSTILE_NAME: 12.0, "forward": 8.0},
    findings=tuple(
        finding(
            f"TD20{n}",
            HOSTILE_NAME,
            "cpu",
            HOSTILE_NAME * 2,
            Place(str(HOME / f"{HOSTILE_NAME}{'漢' * n}.py"), 10**n),
            (
                Measure(HOSTILE_NAME, HOSTILE_NAME, "text", HOSTILE_NAME),
                Measure("ids", 10**17, "count", "ops"),
                Measure("share", float("nan"), "frac", "ops"),
            ),
            f"open({HOSTILE_NAME!r})\x1b[2J\nsecond [link=file:///x]line[/link] \udcff",
            win_ms=1,
            speedup=(1.0, 1.02),
            why=HOSTILE_NAME,
        )
        for n in range(1, 3)
    ),
    abstained=tuple(Abstained(HOSTILE_NAME, "", f"{n} {HOSTILE_NAME}") for n in range(2)),
    perturbation={HOSTILE_NAME: 0.1},
    environment=CPU | {"hostname": HOSTILE_NAME, "command": [HOSTILE_NAME, "\udcff"]},
    capture={HOSTILE_NAME: f"failed: {HOSTILE_NAME}", "x" * 200: "captured"},
    notes=(HOSTILE_NAME, "漢字" * 80),
)

SAMPLES = {
    "io": IO_BOUND,
    "cpu": CPU_BOUND,
    "python_loss": PYTHON_LOSS,
    "healthy": HEALTHY,
    "unknown": UNKNOWN,
    "crash": CRASH,
    "gpu_h2d": GPU_H2D,
    "hostile": HOSTILE,
}
