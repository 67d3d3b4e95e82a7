"""A script that profiles itself on a schedule: its profiler goes first, whenever it comes."""

from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.training import Flags

from .harness import watch_code

CODE = """
import sys, torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wait, warmup, active, repeat = map(int, sys.argv[1:])
def ready(profiler):
    names = [e.name for e in profiler.events()]
    print(names.count("mine"), names.count("aten::linear"))
schedule = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, on_trace_ready=ready
) as own:
    for _ in range(120):
        with torch.profiler.record_function("mine"):
            optimizer.zero_grad()
            model(torch.randn(8, 8)).mean().backward()
        optimizer.step()
        own.step()
"""


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "repeat"),
    [
        (3, 2, 1, 0),  # again and again, in every window
        (3, 20, 3, 0),  # prepared long before it records
        (9, 1, 30, 0),
        (4, 30, 1, 1),
    ],
)
def test_a_script_that_profiles_on_a_schedule_gets_all_its_traces(
    wait: int, warmup: int, active: int, repeat: int, tmp_path: Path
) -> None:
    words = [str(n) for n in (wait, warmup, active, repeat)]
    run = watch_code(tmp_path, CODE, *words, windows=["baseline", "trace"])
    cycles = repeat or 120 // (wait + warmup + active)
    assert run.returncode == 0, run.err
    whole = f"{active} {active}"
    assert run.out.splitlines()[:cycles] == [whole] * cycles
    assert run.of("failure") == []
    skipped = {r["why"] for r in run.of("window") if r["state"] == "skipped"}
    assert skipped <= {"the script runs its own torch profiler"}


def test_what_was_traced_between_its_sessions_is_kept(tmp_path: Path) -> None:
    run = watch_code(tmp_path, CODE, "80", "1", "1", "1", windows=["baseline", "trace"])
    assert run.out == "1 1\n", run.err
    assert len(run.of("trace")) >= 1


LOUD = """
import os, torch
profiler = torch.autograd.profiler
enable = profiler._enable_profiler
FAULT = "CUPTI initialization failed - CUDA profiler activities will be missing"
def loud(*args):
    os.write(2, (
        "USDT:2026-11-23 12:00:00 77:77 SyncActivityProfilerHandler.cpp:52] profiler_start\\n"
        "INFO:2026-11-23 12:00:00 77:77 CuptiActivityProfiler.cpp:241] CUDA versions\\n"
        f"WARNING:2026-11-23 12:00:00 77:77 init.cpp:176] {FAULT}\\n"
        f"WARNING:2026-11-23 12:00:01 77:77 init.cpp:176] {FAULT}\\n"
        "the script's own\\n"
    ).encode())
    return enable(*args)
profiler._enable_profiler = loud
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
"""


def test_what_kept_the_device_out_of_a_trace_is_written_down(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOUD, windows=["baseline", "trace"])
    traces = run.of("trace")
    assert run.err == "the script's own\n" * len(traces)
    assert traces
    for trace in traces:  # torch's CUDA build complains besides where there is no driver
        assert not trace["device"]
        assert trace["faults"][:1] == [
            "WARNING:2026-11-23 12:00:00 77:77 init.cpp:176] CUPTI initialization failed -"
            " CUDA profiler activities will be missing"
        ]
        assert sum("CUPTI" in fault for fault in trace["faults"]) == 1


MONITORED = """
import sys, types, torch
if not hasattr(sys, "monitoring"):
    sys.monitoring = types.SimpleNamespace(PROFILER_ID=2, get_tool=lambda tool: "cProfile")
else:
    import cProfile
    cProfile.Profile().enable()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
"""


def test_no_trace_disturbs_a_profile_of_the_script(tmp_path: Path) -> None:
    """From Python 3.12 on a cProfile misses returns once a torch profiler is prepared: of 300 calls
    10 were counted."""
    run = watch_code(tmp_path, MONITORED, windows=["baseline", "trace"], short=True)
    assert run.returncode == 0 and run.of("failure") == [] and run.of("trace") == []
    why = {r["why"] for r in run.of("window") if r["state"] == "skipped"}
    assert why == {"the script profiles itself (cProfile)"}


IN_PARTS = """
import cProfile, torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = cProfile.Profile()  # OWN
for _ in range(60):
    own.enable()
    loss = model(torch.randn(8, 8)).mean()
    own.disable()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(entry.callcount for entry in own.getstats() if "random" not in str(entry.code)) > 600)
"""


def test_a_cprofile_of_a_part_of_each_step_is_found_with_its_line(tmp_path: Path) -> None:
    """It is off where a step ends, as Lightning's ``profiler="advanced"`` is."""
    run = watch_code(tmp_path, IN_PARTS, cold=True, windows=["baseline", "calls", "ops"])
    assert run.out == "True\n", run.err
    evidence = run.evidence()
    flags = evidence.get(Flags)
    assert flags and flags.user_trace == "cProfile"
    found = next(f for f in diagnose(evidence).findings if f.code == "TD704")
    line = next(n for n, text in enumerate(IN_PARTS.splitlines(), 1) if "OWN" in text)
    assert found.location and found.location.line == line
