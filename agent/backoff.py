"""Backoff: the time to wait before the next attempt to reach the manager. PURE."""

from random import Random

FIRST_S = 0.2
GROWTH = 2.0


def backoff_s(failures: int, *, longest_s: float, rng: Random) -> float:
    """Seconds to wait after this number of failures in a row: doubled each time, up to ``longest_s``.

    Between half of that and all of it, by chance, so that two thousand agents do not come back in one moment.
    """
    # The exponent has a bound too: a float ends at 2**1024.
    bound_s = min(longest_s, FIRST_S * GROWTH ** min(failures, 64))
    return rng.uniform(bound_s / 2, bound_s)
