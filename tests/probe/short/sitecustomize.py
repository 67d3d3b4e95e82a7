"""The plan's windows for tests of small nets: as many steps, a tenth of the seconds.

A window of 100 steps lasts 3 s at least, so that slow machines and noise even out. Steps of 1 ms
fill it thousands of times, which proves no more in a test of what is recorded. Of a `tdiag run`
it does what ``tests/launch/no_roof`` does, too.
"""

import os
import sys

if any(word.endswith("/launch/calibrate.py") for word in sys.orig_argv):
    os._exit(1)

try:
    import tdiag_probe.plan as plan
except ImportError:  # tdiag itself
    pass
else:
    plan.SLOW, plan.PLANS[plan.DIAGNOSE] = (
        tuple(window._replace(seconds=window.seconds / 10) for window in windows)
        for windows in (plan.SLOW, plan.PLANS[plan.DIAGNOSE])
    )
