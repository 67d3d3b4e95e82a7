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
    limits="if an IterableDataset does not divide its data among workers, each repeats all of it",
    edit="DataLoader(..., num_workers=N)",
    install=argument("num_workers"),
)
