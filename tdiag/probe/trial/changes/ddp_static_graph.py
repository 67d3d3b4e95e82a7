"""DDP assumes that each step uses the same parameters."""

from ..change import ROUNDING, Change, switch
from ..ddp_arguments import argument

CHANGE = Change(
    name="ddp.static_graph",
    does="DistributedDataParallel expects the same parameters in every step (static_graph=True).",
    safety=ROUNDING,
    parse=switch,
    absent="no DistributedDataParallel was made",
    limits="a model that uses different parameters in different steps fails",
    edit="DistributedDataParallel(model, static_graph=True)",
    install=argument("static_graph"),
)
