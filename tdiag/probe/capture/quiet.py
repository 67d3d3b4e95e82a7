"""Keeps Kineto's own log lines out of the script's stderr while our profiler is switched."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# "USDT:2026-11-21 13:00:31 10170:10170 SyncActivityProfilerHandler.cpp:52] profiler_start"
# "ERROR: External init callback must run in same thread as registerClient (… != …)"
_KINETO = re.compile(
    rb"^(?:[A-Z]+:\d{4}-\d\d-\d\d [\d:]+ \d+:\d+ \w+\.(?:cpp|h):\d+\]"
    rb"|ERROR: External init callback must run in same thread).*\n?",
    re.M,
)


@contextlib.contextmanager
def kineto_unheard() -> Iterator[None]:
    """Hold file descriptor 2 for a few milliseconds; all that is not Kineto's goes through.

    An environment variable (KINETO_LOG_LEVEL) would silence a profiler of the script's own too.
    """
    with tempfile.TemporaryFile() as held, contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.flush()
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            held.seek(0)
            rest = _KINETO.sub(b"", held.read())
            if rest:
                os.write(real, rest)
            os.close(real)
