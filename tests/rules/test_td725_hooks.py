"""Hooks told from modules, by the files that the frames belong to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import RepeatedHooks
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Place
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, stacks


@pytest.mark.parametrize(
    ("file", "user", "line"),
    [
        ("/home/me/torch/train.py", True, 20),  # a folder of the user's with that name
        ("/lib/transformers/debug_utils.py", False, 9),  # at the user's line that calls the model
        ("/lib/torch/nn/utils/parametrize.py", False, None),  # torch's own
    ],
)
def test_a_hook_is_the_scripts_or_a_librarys_other_than_torch(
    file: str, user: bool, line: int | None
) -> None:
    module = "/lib/torch/nn/modules/module.py"
    frames = (
        CallFrame(name="main", file="/home/me/train.py", line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="_call_impl", file=module, line=0, parent=0, frac=0.7, user=False),
        CallFrame(name="check", file=file, line=20, parent=1, frac=0.4, user=user),
    )
    evidence = Evidence().add(budget(forward=40, backward=50), stacks())
    found = run_rule(find("TD725"), evidence.add(CallTrees(training=frames, workers=())))
    place = found.location if isinstance(found, Finding) else None
    assert (place and place.line) == line


@pytest.mark.parametrize(("name", "hooks"), [("Stats.see", True), ("Net.forward", False)])
def test_a_decorated_method_is_a_hook_as_well(name: str, hooks: bool) -> None:
    """``@torch.no_grad()`` puts a frame of its own between the module and the hook."""
    assert isinstance(run_rule(find("TD725"), decorated(name)), Finding) is hooks


def test_a_hook_that_is_registered_again_and_again_is_to_be_removed() -> None:
    once = run_rule(find("TD725"), decorated("Stats.see"))
    place = Place(file="/home/me/stats.py", line=18, function="see")
    again = RepeatedHooks(times=((place, 8),))
    found = run_rule(find("TD725"), decorated("Stats.see").add(again))
    assert isinstance(found, Finding) and isinstance(once, Finding)
    assert "which is registered 8 times" in found.summary
    assert "handle.remove()" in found.fix.code and "handle" not in once.fix.code
    assert found.speedup is not None and once.speedup is not None
    assert found.speedup.low < once.speedup.low  # one of eight stays: more than one step in ten
    assert again.of(Place(file="/home/me/stats.py", line=20, function="Stats.other")) == 1


def decorated(name: str) -> Evidence:
    module, torch = "/lib/torch/nn/modules/module.py", "/lib/torch/utils/_contextlib.py"
    mine = "/home/me/stats.py"
    frames = (
        CallFrame(name="main", file="/home/me/train.py", line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="_call_impl", file=module, line=0, parent=0, frac=0.7, user=False),
        CallFrame(name="decorate_context", file=torch, line=0, parent=1, frac=0.4, user=False),
        CallFrame(name=name, file=mine, line=20, parent=2, frac=0.4, user=True),
    )
    evidence = Evidence().add(budget(forward=40, backward=50), stacks())
    return evidence.add(CallTrees(training=frames, workers=()))


CONV, ENGINE = "/lib/torch/nn/modules/conv.py", "/lib/torch/autograd/graph.py"


def test_a_model_that_saves_its_own_tensors_is_no_hook_as_a_whole() -> None:
    """Its methods keep and give back; its ``forward`` and what trains it are of the same class."""
    mine = "/home/me/model.py"
    frames = (
        CallFrame(name="Net.fit", file=mine, line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="Net.forward", file=mine, line=12, parent=0, frac=0.6, user=True),
        CallFrame(name="_conv_forward", file=CONV, line=0, parent=1, frac=0.5, user=False),
        CallFrame(name="Net.pack", file=mine, line=20, parent=2, frac=0.2, user=True),
        CallFrame(name="_engine_run_backward", file=ENGINE, line=0, parent=0, frac=0.4, user=False),
        CallFrame(name="Net.unpack", file=mine, line=24, parent=4, frac=0.1, user=True),
    )
    evidence = Evidence().add(budget(forward=40, backward=50), stacks())
    found = run_rule(find("TD725"), evidence.add(CallTrees(training=frames, workers=())))
    assert isinstance(found, Finding)
    assert found.summary.startswith("Hooks take 30% of the step")


@pytest.mark.parametrize(
    ("caller", "pack", "share"),
    [
        (CONV, "offloaded.<locals>.pack", "45%"),
        (CONV, "Offload.pack", "45%"),
        (CONV, "pack", "20%"),  # which of the functions below backward belongs to it is unknown
        ("/lib/torch/nn/modules/transformer.py", "Offload.pack", None),  # its activation
        ("/home/me/model.py", "Offload.pack", None),
    ],
)
def test_functions_that_save_tensors_are_called_by_torchs_layers(
    caller: str, pack: str, share: str | None
) -> None:
    """Torch calls them in the middle of an operation, and in backward those that give back."""
    mine = "/home/me/memory.py"
    frames = (
        CallFrame(name="main", file="/home/me/train.py", line=9, parent=-1, frac=1.0, user=True),
        CallFrame(name="_conv_forward", file=caller, line=0, parent=0, frac=0.5,
                  user=caller.startswith("/home")),
        CallFrame(name=pack, file=mine, line=20, parent=1, frac=0.2, user=True),
        CallFrame(name="_engine_run_backward", file=ENGINE, line=0, parent=0, frac=0.5, user=False),
        CallFrame(name=pack.replace("pack", "unpack"), file=mine, line=24, parent=3, frac=0.25,
                  user=True),
    )  # fmt: skip
    evidence = Evidence().add(budget(forward=40, backward=50), stacks())
    found = run_rule(find("TD725"), evidence.add(CallTrees(training=frames, workers=())))
    if share is None:
        assert found is None
        return
    assert isinstance(found, Finding) and found.location is not None
    assert found.summary.startswith(f"Hooks take {share} of the step")
    assert found.summary.endswith("which saves tensors for backward.")
    assert "checkpoint(block" in (found.fix.code or "")


@pytest.mark.parametrize("code", ["TD714", "TD737"])
def test_what_a_repeated_hook_costs_is_left_to_this_rule(code: str) -> None:
    evidence = find(code).fires()
    found = run_rule(find(code), evidence)
    assert isinstance(found, Finding) and found.location is not None
    name = found.location.function.rpartition(".")[2]
    times = ((replace(found.location, function=name), 3),)
    assert run_rule(find(code), evidence.add(RepeatedHooks(times=times))) is None
