"""tdiag: says why PyTorch training is slow, with measured evidence.

This package's command-line process never imports torch; only :mod:`tdiag.probe`,
which runs inside the user's own process, does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdiag.notebook import load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tdiag`` in a notebook."""
    from tdiag.magic import Magic

    shell.register_magics(Magic)


def __getattr__(name: str) -> Any:
    """``load`` is imported when it is asked for, so that ``import tdiag`` stays cheap."""
    if name == "load":
        from tdiag.notebook import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
