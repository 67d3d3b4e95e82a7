"""What the training minimises."""

from torch import Tensor


def loss_of(predicted: Tensor, wanted: Tensor) -> Tensor:
    return (predicted - wanted).square().mean()
