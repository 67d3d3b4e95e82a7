"""All errors of tdiag. Each has a clear message, a hint what to do, and an exit code.

TdiagError ├── UsageError      the command line or its input is wrong                  exit 2 ├──
RunError        a run directory or trace cannot be read or written      exit 2 └── LaunchError
the user's program could not be started                 exit 127/126, as in a shell

They are caught once, in :func:`tdiag.cli.main`, and printed without a traceback.
"""


class TdiagError(Exception):
    """A failure the user can fix: ``message`` says what happened, ``hint`` says what to do."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(TdiagError):
    """The command line, or the file it names, is not what the command needs."""


class RunError(TdiagError):
    """A run directory, trace or report cannot be read or written."""


class OccupiedError(RunError):
    """The requested run directory is not empty."""


class LaunchError(TdiagError):
    """The user's program could not be started; exit codes follow the shell (127, 126)."""

    exit_code = 127
