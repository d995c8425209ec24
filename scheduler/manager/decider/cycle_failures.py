"""Failures of scheduling cycles by a program error: their count, the last one, and the pause before a new try. PURE."""

import math

from farside.errors import FarsideError

# So many cycles may fail one after another, for about 20 s; then a fresh process may do what a fresh mind could not.
IN_A_ROW_MAX = 10
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
REASON_CHARS = 200


class CyclesFail(FarsideError):
    """Too many failed one after another: the process ends, and is started again by who keeps it."""


class CycleFailures:
    """All of one scheduler process.

    Attributes:
        count: Cycles that failed.
        in_a_row: Those after the last one that did not.
        last_s: When the last failed; NaN: none has.
        last: By what, in one line.
    """

    def __init__(self) -> None:
        self.count = 0
        self.in_a_row = 0
        self.last_s = math.nan
        self.last = ""

    def note(self, error: BaseException, now_s: float) -> None:
        """One more has failed."""
        self.count += 1
        self.in_a_row += 1
        self.last_s = now_s
        self.last = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARS]

    def note_success(self) -> None:
        """A cycle did not fail."""
        self.in_a_row = 0

    @property
    def pause_s(self) -> float:
        """Pause before the next try."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.in_a_row - 1))

    def refuse_more(self) -> None:
        """Does nothing while another try may help.

        Raises:
            CyclesFail: It would not.
        """
        if self.in_a_row >= IN_A_ROW_MAX:
            raise CyclesFail(
                f"{self.in_a_row} cycles failed one after another, the last by {self.last}",
                hint="jobs run on and none starts; report this, with the traceback that log_level = 'debug' has",
            )
