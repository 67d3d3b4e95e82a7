"""What single frames of sampled stacks show."""

import pytest

from tdiag.evidence.from_run.sampled_frames import SampledFrame, phase_shown

MODULES = "/env/site-packages/torch/nn/modules/module.py"


@pytest.mark.parametrize(
    ("name", "file", "walks"),
    [
        ("Module.named_modules", MODULES, True),  # since Python 3.11
        ("named_parameters", MODULES, True),
        ("Module._named_members", MODULES, True),
        ("Module.named_parameters.<locals>.<lambda>", MODULES, True),
        ("Module._call_impl", MODULES, False),
        ("Module.state_dict", MODULES, False),  # detaches each tensor
        ("parameters", "/home/me/train.py", False),
    ],
)
def test_walks_over_modules(name: str, file: str, walks: bool) -> None:
    assert SampledFrame(name=name, file=file).walks() is walks


HOOK = "/env/site-packages/lightning/pytorch/trainer/call.py"
EVENT = "/env/site-packages/transformers/trainer_callback.py"


@pytest.mark.parametrize(
    ("name", "caller", "inner", "phase"),
    [
        ("Tracker.on_train_batch_end", HOOK, "/env/site-packages/pandas/core.py", "after_step"),
        ("on_step_end", EVENT, "/home/me/metrics.py", "after_step"),
        ("Tracker.on_train_batch_end", "/home/me/loop.py", "/home/me/metrics.py", ""),
        ("Tracker.training_step", HOOK, "/home/me/metrics.py", ""),
        ("Tracker.on_train_batch_end", HOOK, "/env/site-packages/torch/optim/sgd.py", "optimizer"),
    ],
)
def test_what_a_framework_calls_after_a_step(
    name: str, caller: str, inner: str, phase: str
) -> None:
    stack = [("fit", caller), (name, "/home/me/train.py"), ("SGD.step", inner)]
    shown = phase_shown([SampledFrame(name=name, file=file) for name, file in stack])
    assert shown == phase
