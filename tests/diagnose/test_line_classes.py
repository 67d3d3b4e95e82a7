"""A finding of overhead has the class of what its line does, so that the headline names its fix."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.line_classes import with_line_classes
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.rules.examples import at, budget, environment, op_line, ops, phases

from .test_verdict import finding


@pytest.mark.parametrize(
    ("parts", "components", "cls"),
    [
        ({"prepare": 70, "forward": 30}, ("prepare",), "cpu"),  # batches made by hand
        ({"prepare": 70, "forward": 30}, ("prepare", "forward"), "overhead"),
        ({"prepare": 70, "forward": 30}, ("forward",), "overhead"),
        ({"prepare": 70, "data_wait": 5, "forward": 25}, ("prepare",), "overhead"),
    ],
)
def test_work_before_the_forward_without_a_loader_is_preprocessing(
    parts: dict[str, float], components: tuple[str, ...], cls: str
) -> None:
    evidence = Evidence().add(phases(**parts), environment(), ops())
    loop = replace(finding("overhead", 0.6), components=components, location=at(30, "diffuse"))
    (found,) = with_line_classes([loop], evidence, budget(**parts))
    assert found == replace(loop, cls=cls)


def test_without_a_budget_nothing_is_known_about_lines() -> None:
    loop = replace(finding("overhead", 0.6), location=at(30, "diffuse"))
    assert with_line_classes([loop], Evidence(), None) == [loop]


@pytest.mark.parametrize(("moved", "cls"), [(4e8, "memory"), (1e5, "overhead")])
def test_a_join_moves_memory_only_if_its_bytes_take_the_time(moved: float, cls: str) -> None:
    """The results of a loop of small calls take long to join for their number."""
    parts = {"forward": 60.0, "backward": 40.0}
    line = op_line(30, "forward", 1, names={"cat": 1.0}, elapsed_ns=60e6, at=at(30, "forward"))
    join = OpWork(
        name="aten::cat", dims=((64, 64),), dtype="float32", count=1, flops=0.0, moved=moved,
        host_ns=60e6, device_ns=None, at=at(25, "forward"),
    )  # fmt: skip
    roof = Roof(flops_per_s={}, bytes_per_s=((10**9, 1e10),), source="calibration")
    evidence = Evidence().add(
        phases(**parts), ops(line), Dispatch(op_ns=1500, grad_op_ns=7000),
        Work(ops=(join,), calls=1.0), roof,
    )  # fmt: skip
    loop = replace(finding("overhead", 0.6), components=("forward",), location=line.at)
    (found,) = with_line_classes([loop], evidence, budget(**parts))
    assert found.cls == cls


def test_a_join_of_what_a_function_returned_does_not_name_the_class_of_its_calls() -> None:
    """A trajectory integrated call by call, and stacked at the line that makes it."""
    parts = {"forward": 60.0, "backward": 40.0}
    line = op_line(30, "forward", 1, names={"stack": 1.0}, elapsed_ns=0.2e6, at=at(30, "forward"))
    evidence = Evidence().add(
        phases(**parts), ops(line), Dispatch(op_ns=1500, grad_op_ns=7000)
    )  # fmt: skip
    loop = replace(finding("overhead", 0.6), components=("forward",), location=line.at)
    (found,) = with_line_classes([loop], evidence, budget(**parts))
    assert found.cls == "overhead"
