"""The user's line that made a setting, and how often it does so in the steps."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.machine import Threads
from tdiag.evidence.training import Flags, Settings

from .harness import watch_code

CODE = """
import cProfile, gc, torch, traceback
from torch.autograd import detect_anomaly

def switches():
    torch.set_num_threads(1)  # THREADS
    torch.use_deterministic_algorithms(True, warn_only=True)  # DETERMINISTIC
    torch.set_float32_matmul_precision("highest")  # PRECISION
    torch.backends.cudnn.benchmark = False  # BENCHMARK
    torch.set_default_dtype(torch.float32)  # DTYPE
    torch.backends.cuda.matmul.allow_tf32 = True  # TF32

switches()
gc.freeze()  # collections are quick then
own = cProfile.Profile()  # CPROFILE
model = torch.nn.DataParallel(torch.nn.Linear(8, 2))  # PARALLEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    with detect_anomaly(check_nan=False):  # ANOMALY
        optimizer.zero_grad()
        model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
    if step % 10 == 0:
        gc.collect()  # COLLECT
    with torch.autograd.profiler.profile(enabled=False):  # PROFILER
        pass
try:
    torch.set_num_threads("two")
except (TypeError, RuntimeError) as error:
    print([frame.name for frame in traceback.TracebackException.from_exception(error).stack])
print(torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled())
"""


def line(word: str) -> int:
    return 1 + next(n for n, text in enumerate(CODE.splitlines()) if text.endswith(f"# {word}"))


def test_settings_are_found_where_they_were_made(tmp_path: Path) -> None:
    run = watch_code(tmp_path, CODE, windows=["baseline", "calls"])
    assert run.out == "['<module>']\nFalse True\n", run.err
    assert run.of("failure") == []
    evidence = run.evidence()
    settings = evidence.get(Settings)
    assert settings is not None
    for name, value, word, per_step in [
        ("num_threads", 1, "THREADS", 0),
        ("deterministic", True, "DETERMINISTIC", 0),
        ("float32_matmul_precision", "highest", "PRECISION", 0),
        ("cudnn.benchmark", False, "BENCHMARK", 0),
        ("default_dtype", "torch.float32", "DTYPE", 0),
        ("cuda.matmul.allow_tf32", True, "TF32", 0),
        ("cProfile.Profile", "made", "CPROFILE", 0),
        ("torch.nn.DataParallel", "made", "PARALLEL", 0),
        ("anomaly", True, "ANOMALY", 1),
        ("gc.collect", "made", "COLLECT", 0.1),
        ("torch.autograd.profiler.profile", "made", "PROFILER", 1),
    ]:
        setting = settings.last(name, value)
        assert setting is not None, name
        assert setting.at.line == line(word), name
        assert abs(setting.per_step - per_step) <= 0.05, name
    threads, flags = evidence.get(Threads), evidence.get(Flags)
    assert threads is not None
    assert threads.set_at is not None
    assert threads.set_at.function == "switches"
    assert flags is not None
    assert flags.anomaly_mode
    assert flags.deterministic


def test_a_switch_that_was_on_for_a_while_is_off_in_the_steps(tmp_path: Path) -> None:
    code = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autograd.detect_anomaly():
    model(torch.randn(8, 8)).mean().backward()
for _ in range(100):
    model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
"""
    flags = watch_code(tmp_path, code, windows=["baseline"]).evidence().get(Flags)
    assert flags is not None
    assert not flags.anomaly_mode


PROFILED = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile(with_stack=True):
    for _ in range(1_000_000):
        model(torch.randn(8, 8)).mean().backward()
        optimizer.step()
"""


def test_calls_are_also_priced_without_the_scripts_own_profiler(tmp_path: Path) -> None:
    run = watch_code(tmp_path, PROFILED, windows=["baseline"], profiling=True, short=True)
    assert run.of("failure") == []
    assert run.of("dispatch")[-1]["op_unprofiled_ns"] > 0
    flags = run.evidence().get(Flags)
    assert flags is not None
    assert flags.user_profiler
    assert flags.user_trace == "", "the profiler's own tracer of Python"
