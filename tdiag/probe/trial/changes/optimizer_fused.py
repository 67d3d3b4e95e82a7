"""Optimizers update all their tensors in one kernel."""

from ..change import ROUNDING, Change, switch
from ..optimizers import argument

CHANGE = Change(
    name="optimizer.fused",
    does="Optimizers update all their tensors in one kernel (fused=True).",
    safety=ROUNDING,
    parse=switch,
    absent="no optimizer of torch.optim with a fused form was made",
    limits="a hand-written optimizer has no fused form",
    edit="torch.optim.…(..., fused=True)",
    install=argument("fused"),
)
