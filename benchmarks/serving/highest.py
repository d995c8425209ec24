"""The highest rate that a server passes: at most one request in a hundred violates its SLO, dropped ones included.

It is searched for by halving a range of shares of a mix. A run with much steal or others' work is repeated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figure import Row
from benchmarks.serving.deployed import VIOLATED_MAX, Server, play
from benchmarks.serving.machine_noise import TRIED_HEADER
from farside.cli.demo.serving_load import poisson

TRIAL_HEADER = ("server", "rate of the mix", "requests/s", "in time/s", "violated %", *TRIED_HEADER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run at one rate: requests a second as sent, and what came of the last of its tries."""

    rate: float
    goodput: float
    violated: float
    cells: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether few enough violated."""
        return self.violated <= VIOLATED_MAX

    def row(self, server: str, share: float) -> Row:
        """For a table under TRIAL_HEADER."""
        return (
            server, f"{share:.3f}", f"{self.rate:.1f}", f"{self.goodput:.1f}", f"{100 * self.violated:.2f}",
            *self.cells,
        )  # fmt: skip


class Search:
    """The highest share that passes, by halving a range in ratio; `passed` is 0 while none has.

    Args:
        low: The range's begin; all below it passes, as far as is believed.
        high: Its end.
        steps: How many shares are tried; the last is right by (high / low)^(1 / 2^steps).
        first: The one that is tried first, between both; the middle unless given.
    """

    def __init__(self, low: float, high: float, steps: int, *, first: float = 0.0) -> None:
        self._low, self._high, self._left, self._first = low, high, steps, first
        self.passed = 0.0

    @property
    def share(self) -> float | None:
        """The one to try now; None: it is found."""
        if not self._left:
            return None
        return self._first or math.sqrt(self._low * self._high)

    def tell(self, *, passes: bool) -> None:
        """What came of `share`."""
        share = self.share
        assert share is not None, "a search that has ended is told nothing"
        self._left -= 1
        self._first = 0.0
        if passes:
            self.passed = self._low = share
        else:
            self._high = share


def attempt(server: Server, rates: Mapping[str, float], seconds: float, seed: int) -> Trial:
    """Poisson requests at these rates, again where the machine was not ours; the last run counts."""
    times = poisson(rates, seconds, seed)
    found = play(server, times)
    goodput, violated = found.result.goodput(seconds), found.result.violated_share()
    return Trial(rate=len(times) / seconds, goodput=goodput, violated=violated, cells=found.cells())
