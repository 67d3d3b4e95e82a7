"""`tdiag try`: what a change gains, measured with two programs that run in turns.

Both run the user's unmodified script under the probe with the same seeds; in one of them the probe
switches a change on (``probe/trial``). The results are discarded, so the changed training need not
be useful.
"""
