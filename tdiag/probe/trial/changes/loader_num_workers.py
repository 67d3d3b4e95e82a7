"""DataLoaders start this many worker processes."""

from ..change import DRAWS, Change, number
from ..loader_arguments import argument

CHANGE = Change(
    name="loader.num_workers",
    does="DataLoaders start this many worker processes.",
    safety=DRAWS,
    takes="N",
    parse=number(0),
    absent="no DataLoader was made",
    limits="workers of an IterableDataset that does not share out its data each repeat all of it",
    edit="DataLoader(..., num_workers=N)",
    install=argument("num_workers"),
)
