"""tdiag: says why PyTorch training is slow, with measured evidence.

This package's command-line process never imports torch; only :mod:`tdiag.probe`,
which runs inside the user's own process, does.
"""

__version__ = "0.1.0"
