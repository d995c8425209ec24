"""Connections that have not proved the key yet: how many there may be, by where they come from. PURE.

Each belongs to an address. Where an address has `AN_ADDRESS` of them, or all addresses together `ALL_ADDRESSES`, one
more takes the place of the oldest: of that address, or of the one that has most. So who opens many loses its own, and a
borrower that has the key is let in whatever others do: it proves it within milliseconds. [M1]
"""

from collections.abc import Callable

AN_ADDRESS = 256
"""All borrowers of a network may come from one address, by way of a translator, and at once after a restart."""
ALL_ADDRESSES = 4096
"""Each costs a descriptor, a task and some KiB."""

Close = Callable[[], None]


class Unproved:
    """Connections by address, the oldest first."""

    def __init__(self, an_address: int = AN_ADDRESS, all_addresses: int = ALL_ADDRESSES) -> None:
        self._an_address, self._all_addresses = an_address, all_addresses
        self._open: dict[str, dict[object, Close]] = {}
        self.count = 0

    def come(self, address: str, one: object, close: Close) -> bool:
        """One more; False: another one was closed for it, which has left by then."""
        crowd = self._open.get(address, {})
        if len(crowd) >= self._an_address:
            self._close_oldest(address)
        elif self.count >= self._all_addresses:
            self._close_oldest(max(self._open, key=lambda other: len(self._open[other])))
        else:
            self._add(address, one, close)
            return True
        self._add(address, one, close)
        return False

    def leave(self, address: str, one: object) -> None:
        """Stops counting a connection that has proved the key or is closed; harmless for one that has left."""
        crowd = self._open.get(address, {})
        if crowd.pop(one, None) is not None:
            self.count -= 1
        if not crowd:
            self._open.pop(address, None)

    def _add(self, address: str, one: object, close: Close) -> None:
        self._open.setdefault(address, {})[one] = close
        self.count += 1

    def _close_oldest(self, address: str) -> None:
        one, close = next(iter(self._open[address].items()))
        # Out of the books before it is closed, which may call back here.
        self.leave(address, one)
        close()
