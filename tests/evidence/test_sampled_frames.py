"""What single frames of sampled stacks show."""

import pytest

from tdiag.evidence.from_run.sampled_frames import SampledFrame

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
