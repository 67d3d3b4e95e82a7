"""Python that autograd runs on threads of its own, as it does for each device.

Without a device it uses such a thread where one backward calls another more than 60 times over.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tdiag.probe.capture.calls import keep_to_thread

from .harness import watch_code

SCRIPT = """
import threading, time, torch

def deeper(depth):
    torch.autograd.backward(Deep.apply(torch.ones(1, requires_grad=True), depth))

class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            with torch.enable_grad():
                deeper(ctx.depth - 1)
        else:
            on_another_thread()
        return grad, None

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
threads = set()
def on_another_thread():
    threads.add(threading.get_ident())
    work()
for _ in range(STEPS):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    deeper(70)
print(threading.get_ident() in threads)
"""


def test_a_step_in_a_hook_on_such_a_thread_is_seen(tmp_path: Path) -> None:
    code = SCRIPT.replace("work()", "optimizer.step()").replace("STEPS", "16")
    run = watch_code(tmp_path, code, windows=["baseline", "ops"])
    assert run.out == "False\n", run.err
    assert [r["source"] for r in run.of("boundary")][-1] == "optimizer"
    assert run.steps()[-1]["i"] >= 14
    assert run.of("failure") == []


def test_samples_of_a_backward_hold_what_such_a_thread_does(tmp_path: Path) -> None:
    recompute = "def recompute():\n    time.sleep(0.05)\n"
    code = SCRIPT.replace("    work()", "    recompute()").replace("STEPS", "30")
    code = code.replace("def on_another", recompute + "def on_another")
    run = watch_code(tmp_path, code, windows=["baseline", "sample"])
    assert run.out == "False\n", run.err
    (path,) = run.run_dir.glob("stacks-*.speedscope.json")
    document = json.loads(path.read_text())
    names = [frame["name"] for frame in document["shared"]["frames"]]
    stacks = [[names[n] for n in stack] for stack in document["profiles"][0]["samples"]]
    inside = [stack for stack in stacks if stack[-1] == "recompute"]
    assert len(inside) > len(stacks) / 2  # nearly all of a step
    assert all(stack[0] == "<module>" and "on_another_thread" in stack for stack in inside)


class Monitoring:
    """``sys.monitoring`` as cProfile uses it from Python 3.12 on."""

    PROFILER_ID = 2
    events = SimpleNamespace(NO_EVENTS=0, PY_START=1, PY_RETURN=4, CALL=16, BRANCH=3)

    def __init__(self) -> None:
        self.callbacks: dict[int, Any] = {}

    def register_callback(self, tool: int, event: int, callback: Any) -> Any:
        assert tool == self.PROFILER_ID and event & (event - 1) == 0
        before = self.callbacks.pop(event, None)
        if callback is not None:
            self.callbacks[event] = callback
        return before


def test_calls_of_other_threads_are_kept_out_of_cprofile() -> None:
    monitoring, seen = Monitoring(), []
    monitoring.register_callback(2, 1, lambda code, offset: seen.append(("start", code)))
    monitoring.register_callback(2, 4, lambda code, offset, value: seen.append(("return", code)))
    keep_to_thread(monitoring, threading.get_ident())

    def call(code: str) -> None:
        monitoring.callbacks[1](code, 0)
        monitoring.callbacks[4](code, 0, None)

    other = threading.Thread(target=call, args=("theirs",))
    other.start()
    other.join()
    call("own")
    assert seen == [("start", "own"), ("return", "own")]
    assert set(monitoring.callbacks) == {1, 4}
