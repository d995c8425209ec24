"""What outlives an Aggregator's server, in its parent's memory: its last sign of life, and its manager's last word."""

import hashlib
import mmap
import os
import struct
import time

_SLOTS = 2
_HEAD = struct.Struct("<QQ32s")  # sequence, bytes, SHA-256 of them
ORDERS_BYTES_MAX = 64 << 20


class Heartbeat:
    """A moment that the server writes and its parent reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def beat(self) -> None:
        """Shows life."""
        self._memory[:8] = time.monotonic_ns().to_bytes(8, "little")

    def reset(self) -> None:
        """Forgets what a server before has shown."""
        self._memory[:8] = bytes(8)

    def age_s(self) -> float | None:
        """Seconds since the last one; None: there was none."""
        last_ns = int.from_bytes(self._memory[:8], "little")
        return (time.monotonic_ns() - last_ns) / 1e9 if last_ns else None


class KeptOrders:
    """The last whole word of a manager. It survives a server that is killed, also while it writes."""

    def __init__(self) -> None:
        self._files = [os.memfd_create(f"farside-orders-{slot}", os.MFD_CLOEXEC) for slot in range(_SLOTS)]
        self._sequence = 0

    def write(self, orders: bytes) -> None:
        """Keeps this one; the one before stays until it is whole."""
        self._sequence = max(sequence for sequence, _orders in map(_read, self._files)) + 1
        file = self._files[self._sequence % _SLOTS]
        # Without a head nothing in it counts.
        os.ftruncate(file, 0)
        os.pwrite(file, orders, _HEAD.size)
        os.pwrite(file, _HEAD.pack(self._sequence, len(orders), hashlib.sha256(orders).digest()), 0)

    def read(self) -> bytes:
        """The newest whole one; empty: there is none."""
        return max(map(_read, self._files))[1]


def _read(file: int) -> tuple[int, bytes]:
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return 0, b""
    sequence, size, digest = _HEAD.unpack(head)
    orders = os.pread(file, min(size, ORDERS_BYTES_MAX), _HEAD.size)
    return (sequence, orders) if hashlib.sha256(orders).digest() == digest else (0, b"")
