"""Methods that handle every torch call in Python: what they do beside the operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, roofline

RULE = find("TD746")
# name, file ("" = the user's, "torch/…" = torch's, else another library's), caller, share
Frame = tuple[str, str, int, float]


def found(*frames: Frame, best_ms: float = 60) -> Finding | None:
    """In a step of 100 ms whose work needs ``best_ms`` at best."""
    made = tuple(
        CallFrame(
            name=name, file=f"/lib/{file}" if file else at(0).file, line=0 if file else 20 + number,
            parent=caller, frac=share, user=not file,
        )
        for number, (name, file, caller, share) in enumerate(frames)
    )  # fmt: skip
    evidence = RULE.fires().add(CallTrees(training=made, workers=()), *roofline(best_ms))
    result = run_rule(RULE, evidence)
    assert result is None or isinstance(result, Finding)
    return result


MAIN: Frame = ("train", "", -1, 1.0)
CLASS = ("Slices.__torch_function__", "", 0, 0.9)
SUPER = ("Tensor.__torch_function__", "torch/_tensor.py", 1, 0.4)


def test_a_class_of_tensors_that_copies_its_records_at_each_call() -> None:
    copied = found(
        MAIN, CLASS, SUPER, ("deepcopy", "python3/copy.py", 1, 0.4),
        ("Tensor.__deepcopy__", "torch/_tensor.py", 3, 0.1),
    )  # fmt: skip
    assert copied is not None and copied.location is not None
    assert copied.location.line == 21
    assert "90% of the training thread's time passes through Slices.__torch_function__" in (
        copied.summary
    )
    assert "40% is what it does beside the operations" in copied.summary
    assert copied.speedup is not None and 1.4 < copied.speedup.low < 1 / 0.6


@pytest.mark.parametrize(
    "frames",
    [
        (MAIN, CLASS, SUPER),  # the operations alone, and its own samples, which may be one
        (MAIN, CLASS, SUPER, ("count", "", 1, 0.4)),  # a user's function, which may call them
        (MAIN, ("F.__torch_dispatch__", "torch/_subclasses/fake.py", 0, 0.9),
         ("meta", "torch/_meta.py", 1, 0.8)),
        (MAIN, ("deepcopy", "python3/copy.py", 0, 0.9)),
    ],
    ids=["operations", "the user's function", "needed", "no handler"],
)  # fmt: skip
def test_what_may_be_operations_is_none_of_its_work(frames: tuple[Frame, ...]) -> None:
    assert found(*frames) is None


def test_an_operation_that_calls_further_ones_is_handled_again() -> None:
    """A composite operation: its parts come back to the handler, which is the same one."""
    counter = "torch/utils/flop_counter.py"
    twice = found(
        MAIN, ("Mode.__torch_dispatch__", counter, 0, 0.9),
        ("OpOverload.__call__", "torch/_ops.py", 1, 0.8),
        ("Mode.__torch_dispatch__", counter, 2, 0.7), ("Mode._count", counter, 3, 0.3),
        ("OpOverload.__call__", "torch/_ops.py", 3, 0.4),
    )  # fmt: skip
    assert twice is not None and twice.location is not None
    assert "90% of the training thread's time" in twice.summary
    assert "30% is what it does" in twice.summary
    assert twice.location.line == 20  # the user's line above


@pytest.mark.parametrize(
    ("method", "best_ms", "slow"),
    [("dispatch", 20, True), ("dispatch", 60, False), ("function", 20, False)],
)
def test_a_mode_below_which_little_work_takes_most_of_the_step(
    method: str, best_ms: float, slow: bool
) -> None:
    """Each operation comes from C++ to Python, where nothing else is done."""
    mode = (f"Mode.__torch_{method}__", "torch/utils/flop_counter.py", 0, 0.9)
    run = ("OpOverload.__call__", "torch/_ops.py", 1, 0.88)
    counted = found(MAIN, mode, run, best_ms=best_ms)
    assert (counted is not None) == slow
    if counted:
        assert counted.speedup is not None and counted.speedup.low == 1.0


LOGGED = """\
class Logger(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return logged(func, args, kwargs)
"""


@pytest.mark.parametrize("base", ["TorchDispatchMode", "torch.Tensor"])
def test_a_mode_of_the_users_is_told_from_a_class_of_tensors(tmp_path: Path, base: str) -> None:
    """A mode is switched off in other steps; a class is taken off the tensors."""
    script = tmp_path / "logger.py"
    script.write_text(LOGGED.replace("TorchDispatchMode", base))
    handler = CallFrame(name="Logger.__torch_dispatch__", file=str(script), line=3, parent=-1,
                        frac=0.9, user=True)  # fmt: skip
    beside = CallFrame(name="deepcopy", file="/lib/copy.py", line=0, parent=0, frac=0.5, user=False)
    evidence = RULE.fires().add(CallTrees(training=(handler, beside), workers=()))
    result = run_rule(RULE, evidence)
    assert isinstance(result, Finding) and result.fix.code is not None
    assert ("with Logger(...)" in result.fix.code) == (base != "torch.Tensor")
    assert ("as_subclass" in result.fix.code) == (base == "torch.Tensor")
