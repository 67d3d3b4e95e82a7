"""Ranks search for no unused parameters."""

from ..change import SAME, Change, off
from ..ddp_arguments import argument

CHANGE = Change(
    name="ddp.find_unused_parameters",
    does="DistributedDataParallel does not search for unused parameters.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="no DistributedDataParallel was made",
    limits="a model that has unused parameters fails",
    edit="DistributedDataParallel(model, find_unused_parameters=False)",
    install=argument("find_unused_parameters", given=False),
)
