"""Measures programs against each other by turn-taking: all are alive at once, one runs.

Separate runs of one program differ by 9 to 16 % on a busy machine, since the machine drifts. Two
live processes that take turns of some 50 ms meet the same machine. What is measured is each
program's unmodified training step, under tdiag's light hooks and no profiler.
"""
