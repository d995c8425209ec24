"""What a program says by FARSIDE_READY: that it makes progress, and how long iterations took. PURE.

A line there of the form ``iteration SECONDS`` says that an iteration of training took so long. Whatever else is written
says that the program makes progress, with or without the end of a line; but a line that begins with the word
``iteration`` never does, also where no time follows. Lines of several processes of a task come in any order.

The program is anybody's, so what it writes has bounds: of a line that is too long nothing counts as an iteration, nor
does a time that no iteration takes (`ITERATION_MIN_S`).
"""

import math
from collections import deque
from statistics import median

from farside.agent.messages import ITERATION_MAX_S, ITERATION_MIN_S, IterationTimes

WORD = b"iteration"
LINE_BYTES_MAX = 256
KEPT = 1000
"""The median is taken of this many of the newest iterations: what a job does now counts, not how it warmed up."""


class ReadyLines:
    """What one task has said, from the bytes that its program writes, however these are cut.

    Attributes:
        is_ready: It has said that it makes progress.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self._count = 0
        self._newest_s: deque[float] = deque(maxlen=KEPT)
        self._begun = b""  # of a line whose end has not come
        self._is_too_long = False  # that line is

    def hear(self, told: bytes) -> None:
        """Take the next bytes."""
        first, *others = told.split(b"\n")
        self._go_on(first)
        for line in others:
            if not self._is_too_long:
                self._take(self._begun)
            self._begun, self._is_too_long = b"", False
            self._go_on(line)

    def iterations(self) -> IterationTimes | None:
        """Iterations that were reported so far; None: there were none."""
        if not self._count:
            return None
        return IterationTimes(count=self._count, median_s=median(self._newest_s))

    def _go_on(self, part: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._begun) + len(part) > LINE_BYTES_MAX
        self._begun = b"" if self._is_too_long else self._begun + part
        begun = self._begun.lstrip()
        may_be_iteration = WORD.startswith(begun) or begun.split()[:1] == [WORD]
        self.is_ready = self.is_ready or self._is_too_long or not may_be_iteration

    def _take(self, line: bytes) -> None:
        words = line.split()
        if words[:1] != [WORD]:
            self.is_ready = True
            return
        try:
            seconds = float(words[1]) if len(words) == 2 else math.nan
        except ValueError:
            return
        if ITERATION_MIN_S <= seconds <= ITERATION_MAX_S:  # not so of NaN
            self._count += 1
            self._newest_s.append(seconds)
