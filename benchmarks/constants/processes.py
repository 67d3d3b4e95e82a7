"""Programs beside each other on the machine's cores, and under other settings of Python."""

from __future__ import annotations

import os
import statistics

from constants import Figures, answers, child, measures

TRAINING = """
import os, statistics, time, torch
torch.set_num_threads({threads})
a, b = torch.randn(2, {size}, {size})
for _ in range(20): a @ b
took, end = [], time.perf_counter() + 2
while time.perf_counter() < end:
    began = time.perf_counter()
    for _ in range(10):
        torch.relu(a @ b).add_(1)
    took.append(time.perf_counter() - began)
print(statistics.median(took))
"""


@measures(td706_thread_count_off__CROWDED_TIMES="most")
def crowded() -> Figures:
    """Two processes at once, of as many threads as cores each, against two of one thread."""

    cores, figures = len(os.sched_getaffinity(0)), {}
    for size in (128, 256, 512):
        took = {
            threads: statistics.mean(answers(*(child(TRAINING.format(threads=threads, size=size))
                                               for _ in range(2))))
            for threads in (1, cores)
        }  # fmt: skip
        figures[f"matrices of {size}"] = took[cores] / took[1]
    return figures


BESIDE = """
import statistics, time, numpy, torch
a = numpy.random.rand({rows}, 16).astype("float32")
b = numpy.random.rand(16, {wide}).astype("float32")
net = torch.nn.Sequential(*(torch.nn.Linear({hidden}, {hidden}) for _ in range(4)))
x = torch.randn(256, {hidden})
took, end = [], time.perf_counter() + 3
while time.perf_counter() < end:
    a @ b
    began = time.perf_counter()
    net(x).sum().backward()
    took.append(time.perf_counter() - began)
print(statistics.median(took))
"""


@measures(td731_library_threads_beside_torch__BESIDE_TIMES="most")
def beside() -> Figures:
    """Torch on all cores after a product of NumPy, whose library has as many threads or one."""
    cores, figures = len(os.sched_getaffinity(0)), {}
    for rows, wide, hidden in (
        (512, 512, 128),
        (4096, 128, 128),
        (65536, 64, 128),
        (4096, 128, 512),
    ):
        script = BESIDE.format(rows=rows, wide=wide, hidden=hidden)
        took = {
            threads: statistics.median(answers(child(script, OPENBLAS_NUM_THREADS=str(threads)))[0]
                                       for _ in range(3))
            for threads in (1, cores)
        }  # fmt: skip
        figures[f"{rows} × 16 × {wide}, Linear({hidden})"] = took[cores] / took[1]
    return figures


WORKER = """
import time, numpy
a, b = numpy.random.rand(2, {size}, {size}).astype("float32")
a @ b
own, every, end = time.thread_time(), time.process_time(), time.perf_counter() + 1.5
while time.perf_counter() < end:
    a @ b
print(1 - (time.thread_time() - own) / (time.process_time() - every))
"""


@measures(td217_library_threads_in_workers__POOL_FRAC="between")
def pools() -> Figures:
    """CPU time of NumPy's other threads in two workers at once: with a pool, and with none."""
    figures = {}
    for threads, size in ((1, 256), (2, 16), (2, 256), (2, 512), (8, 256)):
        workers = [child(WORKER.format(size=size), OPENBLAS_NUM_THREADS=str(threads),
                         OMP_NUM_THREADS=str(threads)) for _ in range(2)]  # fmt: skip
        figures[f"{threads} threads, {size} rows"] = statistics.mean(answers(*workers))
    return figures


BUILDING = """
import time
def build():
    return [{"name": "word%d" % k, "at": [k, str(k)], "text": ",".join(map(str, range(20)))}
            for k in range(2000)]
build()
began = time.process_time()
for _ in range(20): build()
print(time.process_time() - began)
"""


@measures(td715_debugging_in_the_environment__ALLOCATOR_TIMES="most")
def debug_allocator() -> Figures:
    """Building strings and dicts, CPU time, one after the other."""
    figures = {}
    for name, setting in (("debug", {"PYTHONMALLOC": "debug"}), ("-X dev", {"PYTHONDEVMODE": "1"})):
        ratios = []
        for _ in range(5):
            (plain,) = answers(child(BUILDING))
            ratios.append(answers(child(BUILDING, **setting))[0] / plain)
        figures[name] = statistics.median(ratios)
    return figures
