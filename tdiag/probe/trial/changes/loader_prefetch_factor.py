"""Each worker prefetches this many batches."""

from ..change import SAME, Change, number
from ..loader_arguments import argument

CHANGE = Change(
    name="loader.prefetch_factor",
    does="Each worker makes this many batches ahead.",
    safety=SAME,
    takes="N",
    parse=number(1),
    absent="no DataLoader was made",
    limits="a DataLoader without workers has no prefetch queue",
    edit="DataLoader(..., prefetch_factor=N)",
    install=argument("prefetch_factor"),
)
