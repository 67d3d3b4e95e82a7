"""Measures programs against each other in turns: all are alive at once, but only one runs.

Separate runs of one program differ by 9 to 16 % on a busy machine, because the machine drifts. Two
live processes that alternate in turns of about 50 ms meet the same machine. The measured quantity
is each program's unmodified training step, under tdiag's light hooks and without a profiler.
"""
