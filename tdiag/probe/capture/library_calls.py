"""The functions of libraries that the user's lines call, and the torch calls that these make."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from .. import places

if TYPE_CHECKING:
    from .lines import LineCalls

# The user can only leave out a library's function as a whole. The rest, 10 %, is for its sizes,
# checks and conversions, which are never counted as repeated or as made of the batch.
WHOLE_FRAC = 0.9


class LibraryCall:
    """One call of such a function: the names of its torch calls so far, their time in ns, and how
    much of that repeats earlier calls or uses the batch alone. Both become the line's only if they
    are nearly all of it."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame  # kept so that no other frame gets its address
        self.names: set[str] = set()
        self.line: LineCalls | None = None
        self.elapsed = self.again = self.of_batch = 0

    def settle(self) -> None:
        if self.line is None:
            return
        if self.again >= WHOLE_FRAC * self.elapsed:
            self.line.again += self.again
        if self.of_batch >= WHOLE_FRAC * self.elapsed:
            self.line.of_batch += self.of_batch


class LibraryCalls:
    """Those that still run, outermost first: a Trainer's calls the user's code, which calls
    others."""

    def __init__(self) -> None:
        self.running: list[LibraryCall] = []
        self.last: FrameType | None = None

    def of(self, callee: FrameType | None) -> LibraryCall | None:
        """The call whose function runs in this frame; None for a line's own call. Settles those
        that have ended, so call it before the marks of the step are followed."""
        if callee is not self.last:
            self._settle(places.running())
            self.last = callee
        if callee is None:
            return None
        for call in self.running:
            if call.frame is callee:
                return call
        self.running.append(LibraryCall(callee))
        return self.running[-1]

    def end(self) -> None:
        """Settle all, also those that still run. No frame is kept."""
        self._settle(set())
        self.last = None

    def _settle(self, running: set[int]) -> None:
        for call in self.running:
            if id(call.frame) not in running:
                call.settle()
        self.running = [call for call in self.running if id(call.frame) in running]
