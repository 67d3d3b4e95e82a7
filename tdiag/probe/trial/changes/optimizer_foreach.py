"""Optimizers update all their tensors in a few calls."""

from ..change import ROUNDING, Change, switch
from ..optimizers import argument

CHANGE = Change(
    name="optimizer.foreach",
    does="Optimizers update all their tensors in a few calls (foreach=True).",
    safety=ROUNDING,
    parse=switch,
    absent="no optimizer of torch.optim with a foreach form was made",
    limits="a hand-written optimizer has no foreach form",
    edit="torch.optim.…(..., foreach=True)",
    install=argument("foreach"),
)
