"""Runs that went wrong, another device, and names that attack the terminal."""

from __future__ import annotations

from tdiag.model.diagnosis import Abstained, Measure, Verdict
from tdiag.model.notes import Captured, Note
from tdiag.model.place import Place
from tdiag.model.watched import Activity, Fetching, Watched, WatchedRank

from .building import (
    CPU,
    GPU,
    GPU_RULES,
    HOME,
    diagnosis,
    finding,
    lane,
    timeline,
    top,
    train,
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
        "steps": Captured("failed", "the script ended before its first step"),
        "py-spy": Captured("not requested"),
        "trace": Captured("not requested"),
        "system": Captured("captured"),
    },
    notes=(Note("program", "`train.py` ended by itself after 4.1 s with exit code 0."),),
)

_RANK = (
    Activity(name="backward", frac=0.61, error_frac=0.02, at=train(61), at_frac=0.61),
    Activity(name="data_wait", frac=0.22, error_frac=0.015, at=train(55), at_frac=0.22),
    Activity(name="forward", frac=0.17, error_frac=0.01, at=train(58), at_frac=0.1),
)
_LATE_RANK = (
    Activity(name="data_wait", frac=0.71, error_frac=0.02, at=train(55), at_frac=0.71),
    Activity(name="backward", frac=0.13, error_frac=0.011, at=train(61), at_frac=0.13),
    Activity(name="forward", frac=0.12, error_frac=0.01, at=train(58), at_frac=0.1),
    Activity(name="imports", frac=0.04, error_frac=0.01),
)
WATCHED = diagnosis(
    Verdict(
        cls="cpu",
        share=0.71,
        confidence=0.81,
        runner_up=None,
        summary="71% of the training thread's time is waiting for preprocessing on the CPU; 2"
        " workers fetch in 97% of their time, most at train.py:23 in Images.__getitem__, 83%",
    ),
    {},
    abstained=(Abstained("TD101", "fetch-blocked-on-storage", "tdiag attach sees no steps"),),
    perturbation={},
    capture={
        "sample": Captured("captured"),
        "system": Captured("captured"),
        "trace": Captured("not requested"),
    },
    watched=Watched(
        pid=4712,
        seconds=21.3,
        samples=1520,
        activities=_LATE_RANK,
        fetching=Fetching(
            workers=2,
            fetch_frac=0.97,
            cpu_frac=0.93,
            queued_frac=0.03,
            disk_frac=0.0,
            read_bytes_per_s=1_250_000.0,
            at=train(23),
            at_frac=0.83,
        ),
        device=True,
        device_used_frac=0.24,
        own_lines_frac=0.02,
        other_threads_cores=0.4,
        ranks=(
            WatchedRank(pid=4711, rank=0, samples=1524, cpu_frac=0.98, activities=_RANK),
            WatchedRank(pid=4712, rank=1, samples=1520, cpu_frac=None, activities=_LATE_RANK),
        ),
    ),
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
        "steps": Captured("failed", "3 steps seen, the first of them warm-up"),
        "py-spy": Captured("failed", "the script ended first"),
        "trace": Captured("failed", "the script ended first"),
        "system": Captured("captured"),
    },
    notes=(
        Note(
            "program",
            "`train.py` exited with code 1: `ValueError: Expected input batch_size (32) to match "
            "target batch_size (31).`",
        ),
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
            "pinned-copies-not-overlapped",
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
    timeline=timeline(
        8.61,
        "trace",
        lane(
            "host",
            (0, 0.12, "data_wait"),
            (0.2, 3.75, "launch"),
            (3.75, 5.6, "launch"),
            (6.5, 8.4, "sync"),
            (8.4, 8.42, "optimizer"),
        ),
        lane("compute", (3.8, 8.0, "compute"), (8.1, 8.11, "compute")),
        lane("copies", (0.26, 3.77, "h2d"), (8.01, 8.02, "d2h")),
    ),
    top=(
        top(
            "kernels",
            7.74,
            ("Memcpy HtoD (Pageable -> Device)", 2, 3.51, None),
            ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", 48, 2.2, None),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add"
                "<float>, std::array<char*, 3ul> >(int, float)",
                1_214.5,
                0.9,
                None,
            ),
            ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", 6, 0.4, None),
            (
                "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Meta>",
                3,
                0.3,
                None,
            ),
            ("Memset (Device)", 12, 0.001, None),
        ),
        top("ops", 7.74, ("aten::copy_", 3, 3.52, None), ("aten::addmm", 48, 2.2, None)),
        top("modules", 7.74, ("Linear_3", 1, 1.2, None)),
        top("functions", 7.74, ("forward", 61, 2.9, train(12, "models/encoder.py"))),
        top("host_ops", 4.1, ("aten::copy_", 3, 3.4, None)),
    ),
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
    capture={HOSTILE_NAME: Captured("failed", HOSTILE_NAME), "x" * 200: Captured("captured")},
    notes=(Note("x", HOSTILE_NAME), Note("x", "漢字" * 80)),
    timeline=timeline(
        50,
        HOSTILE_NAME,
        lane("host", (0, 30, HOSTILE_NAME), (30, 50, "data_wait")),
        lane(HOSTILE_NAME, (10, 20, HOSTILE_NAME)),
    ),
    top=(
        top("functions", 3, (HOSTILE_NAME, 1, 2, Place(HOSTILE_NAME, 1))),
        top("host_ops", 3, (HOSTILE_NAME, 1, 2, None), ("漢字" * 90, 1e9, 1e9, None)),
    ),
)
