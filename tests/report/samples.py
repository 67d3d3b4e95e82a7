"""Diagnoses as real runs give them, built by hand: one for each kind of report."""

from __future__ import annotations

from tdiag.model.diagnosis import Measure, Verdict

from .building import (
    diagnosis,
    finding,
    lane,
    timeline,
    top,
    train,
)
from .special_samples import CRASH, GPU_H2D, HOSTILE, UNKNOWN, WATCHED

WORKERS = finding(
    "TD201",
    "loader-short-of-workers",
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
    timeline=timeline(
        48.1,
        "baseline",
        lane(
            "host",
            (0, 0.45, "other"),
            (0.45, 30.1, "data_wait"),
            (30.1, 30.21, "prepare"),
            (30.21, 36.2, "forward"),
            (36.2, 36.8, "loss"),
            (36.8, 46.1, "backward"),
            (46.1, 48.1, "optimizer"),
        ),
    ),
    top=(
        top(
            "host_ops",
            16.2,
            ("aten::convolution_backward", 12, 7.21, None),
            ("aten::mkldnn_convolution", 12, 4.4, None),
            ("aten::native_batch_norm", 12, 1.31, None),
            scaled=True,
        ),
    ),
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
            "fetch-blocked-on-storage",
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
            "loader-short-of-workers",
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
            "compute-bound-and-efficient",
            "compute",
            "3.9 of 4.0 cores are used and 91% of op time is in matrix products.",
            None,
            (Measure("cores used", 3.9, "cores", "system"),),
            "More or faster devices are what is left.",
        ),
    ),
)

SAMPLES = {
    "io": IO_BOUND,
    "cpu": CPU_BOUND,
    "python_loss": PYTHON_LOSS,
    "healthy": HEALTHY,
    "unknown": UNKNOWN,
    "crash": CRASH,
    "gpu_h2d": GPU_H2D,
    "watched": WATCHED,
    "hostile": HOSTILE,
}
