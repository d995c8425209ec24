"""State file: one value in a memory file, which survives the death of its writer at any instruction.

How it works. Two halves, each a header (magic, generation, length, checksum) and a payload. A write goes to the half
that is not current, payload first, header last; a reader takes the half with the highest generation whose checksum
fits. After a kill in between the old half is still valid. The file is a memfd that the supervisor holds, so it dies
with the device: what it describes (leases, extents) is worthless after that.
"""

import os
import struct
import zlib

from farside.geometry import SLABS_MAX

_MAGIC = 0x4C54434544495346  # "FSIDECTL"
_HEADER = struct.Struct("<QQQI")
_HEADER_BYTES = 4096  # a page of its own, so that payloads are page-aligned
# Upper bounds of what mapping/table.py's records take. The file is sparse: what is not needed costs nothing.
_SLAB_BYTES = 192  # beside its extents
_EXTENT_BYTES = 5  # a granule's number in msgpack, the longest
_REST_BYTES = 4 << 20  # donors, counters, the peers file


def control_bytes(*, extents: int) -> int:
    """Size of the file: room, in both halves, for SLABS_MAX slabs with this number of extents each."""
    return 2 * (_HEADER_BYTES + _REST_BYTES + SLABS_MAX * (_SLAB_BYTES + _EXTENT_BYTES * extents))


class StateFile:
    """The value in a memory file; ``write`` replaces it as a whole, ``read`` gives the last one that is complete."""

    def __init__(self, fd: int) -> None:
        """Over ``fd``, borrowed; its size is ``control_bytes()``."""
        self._fd = fd
        self._half_bytes = os.fstat(fd).st_size // 2
        self._generation = max(self._generation_of(half) for half in (0, 1))

    def read(self) -> bytes | None:
        """The last value written, or None in a new file."""
        best = max((0, 1), key=self._generation_of)
        return self._payload(best)

    def write(self, payload: bytes) -> None:
        """Replaces the value.

        Raises:
            OSError: ENOSPC when it does not fit; the old value stays.
        """
        if _HEADER_BYTES + len(payload) > self._half_bytes:
            raise OSError(28, f"control state of {len(payload)} bytes does not fit")
        # Generations alternate between the halves, so this is the half that is not current.
        generation = self._generation + 1
        base = (generation & 1) * self._half_bytes
        # The checksum begins with the generation: an old payload in this half never fits a new header.
        header = _HEADER.pack(_MAGIC, generation, len(payload), zlib.crc32(payload, generation & 0xFFFFFFFF))
        # No fsync: it is memory, and the order of two calls of one process is kept for whoever reads after its death.
        os.pwrite(self._fd, payload, base + _HEADER_BYTES)
        os.pwrite(self._fd, header, base)
        self._generation = generation

    def _generation_of(self, half: int) -> int:
        return self._header(half)[0] if self._payload(half) is not None else 0

    def _header(self, half: int) -> tuple[int, int, int]:
        raw = os.pread(self._fd, _HEADER.size, half * self._half_bytes)
        if len(raw) < _HEADER.size:
            return 0, 0, 0
        magic, generation, length, checksum = _HEADER.unpack(raw)
        return (generation, length, checksum) if magic == _MAGIC else (0, 0, 0)

    def _payload(self, half: int) -> bytes | None:
        generation, length, checksum = self._header(half)
        if generation == 0 or _HEADER_BYTES + length > self._half_bytes:
            return None
        payload = os.pread(self._fd, length, half * self._half_bytes + _HEADER_BYTES)
        return payload if zlib.crc32(payload, generation & 0xFFFFFFFF) == checksum else None
