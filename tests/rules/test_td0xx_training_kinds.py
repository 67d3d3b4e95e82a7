"""Advice that holds for one kind of training and not for another: agents, models trained against
each other, loaders without an end, what is given beside the input, the start of a training."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.evidence.feeding import Inputs
from tdiag.evidence.torch_ops import CallRow, Calls
from tdiag.evidence.training import Gradients, Layers, Optimizers
from tdiag.model.kind import Kind
from tdiag.rules.examples import at, flags, loaders, optimizers, phases

from .test_td0xx_td212_td708_training_setup import NONE, fix, inputs_of, judge, rated


def drawing(per_step: float) -> Calls:
    """``torch.distributions`` draws so often."""
    place = at(9, "sample", file="/venv/lib/python3.12/torch/distributions/categorical.py")
    row = CallRow(at=place, calls=per_step, own_ns=1000.0, total_ns=2000.0)
    return Calls(steps=4, rows=(row,))


@pytest.mark.parametrize(
    ("dataset", "sampler"),
    [
        (1056, 10**10),  # RandomSampler(replacement=True, num_samples=10**10)
        (10**10 + 32, 10**10 + 32),  # made up as it goes, with a length that nobody reaches
        (1056, None),  # a batch sampler of the user's own
        (None, None),  # a stream
    ],
)
def test_a_loader_without_an_end_has_no_epoch(dataset: int | None, sampler: int | None) -> None:
    loader = loaders(dataset_len=dataset, sampler_len=sampler, batch_size=64, drop_last=False)
    assert judge("TD004", loader) == "clear"
    advice = fix("TD001", rated("SGD", False), NONE, loader)
    assert "total_steps=total_steps" in advice and "epochs" not in advice


def test_what_is_no_input_is_not_to_be_normalised() -> None:
    """A hidden state or a mask beside token ids, a count, zeros and ones, an agent's view."""
    images = inputs_of((5.0, 5.0), (0.1, 0.1)).tensors[1]
    for changed in (
        replace(images, first=False),
        replace(images, binary=True),
        replace(images, shape=()),
    ):
        assert judge("TD003", Inputs(tensors=(changed,))) == "clear"
    seen = Inputs(tensors=(images,))
    assert judge("TD003", seen) == "fires"
    assert judge("TD003", seen, flags(agent_library="gymnasium")) == "clear"
    for within, expected in (("Normalize", "clear"), ("BatchNorm2d", "fires")):
        layers = Layers(
            classes={within: 1, "Conv2d": 9}, mode_dependent=(), dtypes={}, conv_bytes=0,
            channels_last_bytes=0, bias_before_norm=None, out_of_place=None,
        )  # fmt: skip
        assert judge("TD003", seen, layers) == expected


GAN = Optimizers(optimizers=2 * rated("Adam", False).optimizers)


@pytest.mark.parametrize(
    "kinds",
    [
        (rated("Adam", False), flags(agent_library="gymnasium")),
        (rated("Adam", False), drawing(40.0)),
        (GAN, phases({"backward": 3.0}, backward=3)),
    ],
)
def test_agents_and_adversaries_get_no_advice_for_fitting_data(kinds: tuple[Kind, ...]) -> None:
    assert judge("TD001", *kinds, NONE) == "clear"
    jumps = Gradients(norms=(2.0, 1.9, 47.0, 2.0), not_finite=0, clipped=False)
    assert judge("TD008", *kinds, jumps) == "clear"
    assert judge("TD008", *kinds, replace(jumps, not_finite=1)) == "fires"


def test_two_optimizers_of_one_model_and_a_rare_draw_are_no_such_thing() -> None:
    """Muon for matrices and Adam for the rest; a weighted sampler draws once an epoch."""
    step = phases({"backward": 1.0}, backward=3)
    assert judge("TD001", GAN, NONE, step, drawing(0.01)) == "fires"


@pytest.mark.parametrize(
    "norms", [(99.0, 2.0, 1.9, 2.1, 2.0), (99.0, 60.0, 2.0, 1.9, 2.1, 2.0, 2.2)]
)
def test_norms_that_fall_at_the_start_do_not_explode(norms: tuple[float, ...]) -> None:
    assert judge("TD008", Gradients(norms=norms, not_finite=0), optimizers("SGD")) == "clear"
    again = (*norms, 99.0)
    assert judge("TD008", Gradients(norms=again, not_finite=0), optimizers("SGD")) == "fires"
