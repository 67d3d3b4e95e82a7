"""Workers are kept from one epoch to the next."""

from ..change import DRAWS, Change, switch
from ..loader_arguments import argument

CHANGE = Change(
    name="loader.persistent_workers",
    does="Workers are kept from one epoch to the next.",
    safety=DRAWS,
    takes="",
    parse=switch,
    absent="no DataLoader was made",
    limits="a DataLoader that the script makes again for every epoch starts its workers again",
    edit="DataLoader(..., persistent_workers=True)",
    install=argument("persistent_workers"),
)
