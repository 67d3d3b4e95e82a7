"""What the machine reaches is not measured after a `tdiag run` (``tdiag/launch/calibrate.py``):
that imports torch once more, and what such a test asks does not depend on it."""

import os
import sys

if any(word.endswith("/launch/calibrate.py") for word in sys.orig_argv):
    os._exit(1)
