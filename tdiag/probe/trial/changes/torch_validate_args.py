"""Distributions of torch do not check their arguments and samples."""

import functools
from typing import Any

from ...patches import hidden
from ..change import SAME, Change, Trial, off

NAME = "torch.validate_args"


def install(trial: Trial, value: Any) -> None:
    from torch.distributions import Distribution

    original: Any = Distribution.__init__

    @functools.wraps(original)
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        """Later ones are made without this wrapper."""
        trial.sets(NAME, "distributions check no arguments")
        Distribution.__init__ = original  # type: ignore[method-assign]
        original(self, *args, **kwargs)

    Distribution.set_default_validate_args(False)
    trial.patches.set(Distribution, "__init__", hidden(first))


CHANGE = Change(
    name=NAME,
    does="Distributions of torch do not check their arguments and samples.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="the script makes no distribution of torch.distributions",
    limits="one made with validate_args=True still checks; wrong arguments give wrong numbers"
    " instead of an error",
    edit="torch.distributions.Distribution.set_default_validate_args(False)",
    install=install,
)
