"""`tdiag try`: what a change wins, measured with two programs that take turns.

Both run the user's unmodified script under the probe with the same seeds; in one of them the probe
switches a change on (``probe/trial``). What is thrown away with the run need not train well.
"""
