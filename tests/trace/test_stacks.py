"""Waits and copies are named by the user's own function, where Python was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.device import Syncs, Transfers
from tdiag.evidence.from_trace.python_stacks import user_frame
from tdiag.model.place import Place
from tests.trace.making import AUTOGRAD, Event, call, copy, evidence_of, kernel, op, span, step


def frame(name: str, ts: float, dur: float, **rest: object) -> Event:
    return span("python_function", name, ts, dur, **rest)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.py(15): loss", Place(file="train.py", line=15, function="loss")),
        ("/home/me/proj/train.py(3): <module>",
         Place(file="/home/me/proj/train.py", line=3, function="<module>")),
        ("C:\\work\\train.py(3): f", Place(file="C:\\work\\train.py", line=3, function="f")),
        ("train.py(15): <listcomp>", None),  # within the function around it
        ("torch/nn/modules/module.py(1518): _call_impl", None),
        ("threading.py(302): wait", None),
        ("/opt/conda/lib/python3.11/site-packages/PIL/Image.py(3): open", None),
        ("/usr/lib/python3.11/contextlib.py(81): inner", None),
        ("<built-in method item of Tensor object>", None),
        ("<frozen importlib._bootstrap>(1): f", None),
        ("nn.Module: Linear_0", None),
        ("aten::item", None),
    ],
)  # fmt: skip
def test_user_frames_are_told_from_library_frames(name: str, expected: Place | None) -> None:
    assert user_frame(name) == expected


def test_the_innermost_user_function_is_named(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        kernel("k", 0, 150),
        frame("train.py(40): main", 0, 900),
        frame("losses.py(7): instance_loss", 50, 200),
        frame("torch/_tensor.py(100): wrapped", 60, 150),
        op("aten::item", 90, 90), call("cudaStreamSynchronize", 100, 60),
        call("cudaStreamSynchronize", 500, 10),
    ]  # fmt: skip
    found = evidence_of(tmp_path, events).get(Syncs)
    assert found is not None
    loss = Place(file="losses.py", line=7, function="instance_loss")
    main = Place(file="train.py", line=40, function="main")
    assert {(s.name, s.at, s.count) for s in found.syncs} == {
        ("cudaStreamSynchronize", loss, 1), ("aten::item", loss, 1),
        ("cudaStreamSynchronize", main, 1),
    }  # fmt: skip


def test_python_on_another_thread_is_not_around(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000), kernel("k", 0, 150),
        frame("watcher.py(1): spin", 0, 1000, tid=AUTOGRAD),
        call("cudaStreamSynchronize", 100, 60),
    ]  # fmt: skip
    found = evidence_of(tmp_path, events).get(Syncs)
    assert found is not None
    assert found.syncs[0].at is None


def test_copies_are_named_by_the_call_that_issued_them(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        frame("train.py(12): batches", 80, 100),
        call("cudaMemcpyAsync", 90, 15, 3),
        copy("Memcpy HtoD (Pageable -> Device)", 300, 50, 3),
        copy("Memcpy HtoD (Pageable -> Device)", 500, 50),  # launched who knows where
    ]
    found = evidence_of(tmp_path, events).get(Transfers)
    assert found is not None
    assert [c.at and c.at.function for c in found.copies] == ["batches", None]


def test_old_call_stack_arguments(tmp_path: Path) -> None:
    stack = (
        "/env/lib/python3.7/site-packages/torch/tensor.py(9): item;"
        "/home/me/train.py(44): train;/home/me/train.py(90): <module>"
    )
    events = [
        step(1, 0, 1000), kernel("k", 0, 150),
        op("aten::item", 90, 90, **{"Call stack": stack}),
        call("cudaStreamSynchronize", 100, 60),
    ]  # fmt: skip
    found = evidence_of(tmp_path, events).get(Syncs)
    assert found is not None
    here = Place(file="/home/me/train.py", line=44, function="train")
    assert [s.at for s in found.syncs] == [here, here]
