"""The plan's windows for tests of small nets: a tenth of the seconds, and at most ``FEW`` steps if
the environment has ``TDIAG_TEST_FEW``.

A window of 100 steps lasts 3 s at least, so that slow machines and noise even out. Steps of 1 ms
fill it thousands of times, which proves no more in a test of what is recorded. Of a `tdiag run`
it does what ``tests/launch/no_roof`` does, too.
"""

import os
import sys

FEW = 10

if any(word.endswith("/launch/calibrate.py") for word in sys.orig_argv):
    os._exit(1)

try:
    import tdiag_probe.plan as plan
except ImportError:  # tdiag itself
    pass
else:
    most = FEW if "TDIAG_TEST_FEW" in os.environ else 100
    plan.SLOW, plan.PLANS[plan.DIAGNOSE] = (
        tuple(w._replace(seconds=w.seconds / 10, steps=min(w.steps, most)) for w in windows)
        for windows in (plan.SLOW, plan.PLANS[plan.DIAGNOSE])
    )
