"""``python -m tdiag``."""

from tdiag.cli import main

main()
