"""Changes to a training, switched on from outside for a trial run whose results are discarded.

``changes/`` has one file per change: what it does, how safe it is, its limits, and how it is
installed in the user's process. The CLI process reads the same files to check a command line, so
torch is imported only inside the functions that run in the user's process.
"""
