"""Trust in donors: how many damaged copies one may give before it is left out. Pure.

A sealed page that a donor changes, moves, or puts back opens to noise (kmod_shim/engine/seal.h), and one of 2^32 of
those passes the checksum. A donor that could try as often as it likes would pass in the end; it has four tries an hour
at one borrower, and is left out then. Broken memory or a bad network card ends in the same way.
"""

from collections import deque

DAMAGED_MAX = 3
WINDOW_S = 3600.0


class Trust:
    """Copies that were found damaged lately, by node of their donor."""

    def __init__(self) -> None:
        self._found_s: dict[str, deque[float]] = {}

    def found(self, node: str, now_s: float) -> bool:
        """Note a damaged copy; True when the donor has given more than `DAMAGED_MAX` of them within `WINDOW_S`."""
        # One more than it may: the oldest of them says whether all fell into the window.
        found_s = self._found_s.setdefault(node, deque(maxlen=DAMAGED_MAX + 1))
        found_s.append(now_s)
        return len(found_s) > DAMAGED_MAX and now_s - found_s[0] < WINDOW_S

    def forgive(self, node: str) -> None:
        """Forget what the donor gave."""
        self._found_s.pop(node, None)
