"""What every evidence kind is made of."""

from __future__ import annotations

import msgspec


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every evidence kind; a rule names the kinds it needs in ``check``'s signature."""
