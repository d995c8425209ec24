"""Pool of the donor's slabs: memory is made, zeroed, kept ready, lent, and taken back.

How it works
============
A slab is a memfd of ``slab_bytes``, sealed so that nobody can shrink it under us, mapped and populated here, hence
zeroed by the kernel. It is in exactly one of these places::

    making -> ready -> lent -> freeing -> gone, or replaced by a new one that is ready
                  |               |
                  +---------------+

* Zero before lent: a slab is lent once. What comes back is freed, and where one is to be kept ready, a new one is made
  in its place; the kernel zeroes it. No byte of one borrower reaches another.
* A borrower on this host may keep the memfd that it was passed. So pages are punched out before the memfd is closed:
  that frees them whoever holds it.
* Whatever takes milliseconds (populating 64 MiB takes about 20) runs in a thread, in system calls that let Python's
  other threads run; the event loop, which owns all state here, never waits for it.
* Huge pages: used while the operator has set enough aside. They are no part of what HeadRoom watches: taking one from
  the kernel's pool or giving it back changes nothing for other programs. They are counted apart.
* Slabs must not be swapped out. The service's cgroup sets MemorySwapMax=0 (systemd/), which covers memfds too; mlock
  would need a limit as large as all that is lent.

Rejected: one large memfd with slabs as parts of it (passing it would show a borrower everybody's pages), memset for
zeroing (needs the pages in, and takes as long as the kernel, which must not be trusted less), madvise(MADV_REMOVE) for
punching (Python's holds its lock meanwhile: 10 ms without an event loop for 64 MiB).
"""

import asyncio
import fcntl
import functools
import os
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from farside.errors import EngineError
from farside.log import get_log

_log = get_log("daemon.pool")

# linux/falloc.h: FS_IOC_UNRESVSP64 takes a struct space_resv, and is fallocate(PUNCH_HOLE) on every file system since
# Linux 5.5. Python has no such fallocate.
_PUNCH_HOLE = 0x4030_582B
# Fields: type, whence, start, length, sysid and pid of struct space_resv, and its padding.
_SPACE_RESV = struct.Struct("@hhqqiI16x")

_T = TypeVar("_T")


class SlabMemory(Protocol):
    """Maps memfds for the engine; ``farside.kmod_shim.engine.binding`` is one."""

    def map(self, fd: int, length_bytes: int, /) -> int:
        """Maps a memfd shared and populated; returns its address."""
        ...

    def unmap(self, address: int, length_bytes: int, /) -> None:
        """Undoes ``map``."""


@dataclass(slots=True, eq=False, kw_only=True)
class Slab:
    """One slab. The pool owns it; whoever it is lent to uses ``fd`` and ``address`` until it is taken back."""

    fd: int
    address: int
    length_bytes: int
    is_huge: bool


class Pool:
    """All slabs of this donor.

    Attributes:
        changing: Number of slabs that are being made or freed now.
        changes: How often a slab came or went; only grows.
    """

    def __init__(self, memory: SlabMemory, *, slab_bytes: int, huge_slabs_free: Callable[[], int] = lambda: 0) -> None:
        """``huge_slabs_free`` returns the number of slabs for which huge pages are free now."""
        self.slab_bytes = slab_bytes
        self._memory = memory
        self._huge_slabs_free = huge_slabs_free
        self._ready: deque[Slab] = deque()
        self._lent: set[Slab] = set()
        self.changing = 0
        self.changes = 0
        self._closed = False

    @property
    def ready(self) -> int:
        """Slabs that can be lent at once."""
        return len(self._ready)

    @property
    def huge_ready(self) -> int:
        """Ready slabs on huge pages."""
        return sum(slab.is_huge for slab in self._ready)

    @property
    def lent(self) -> int:
        """Slabs that are lent."""
        return len(self._lent)

    @property
    def slabs_bytes(self) -> int:
        """Memory in slabs, as far as other programs could have it (huge pages they could not)."""
        ordinary = sum(not slab.is_huge for slab in (*self._ready, *self._lent))
        return (ordinary + self.changing) * self.slab_bytes

    def lend_nowait(self, *, may_be_huge: bool = True) -> Slab | None:
        """A zeroed slab that is now lent, or None when none is ready.

        ``may_be_huge``: one on huge pages will do. Not where the memfd is passed out: who reads a huge page that was
        taken back dies of SIGBUS once others have it, and reads zeros of an ordinary one. [L1]
        """
        slab = next((one for one in self._ready if may_be_huge or not one.is_huge), None)
        if slab is not None:
            self._ready.remove(slab)
            self._lent.add(slab)
        return slab

    async def grow(self, count: int, *, may_be_huge: bool = True) -> int:
        """Makes up to ``count`` slabs ready; returns how many it was. Fewer when the kernel has no memory for more."""
        for made in range(count):
            slab = await self._changed(lambda: self._make(is_huge=may_be_huge and self._huge_slabs_free() > 0))
            if slab is None:
                return made
            self._keep_ready(slab)
        return count

    async def release_ready(self, count: int) -> int:
        """Frees up to ``count`` slabs that nobody has, none on huge pages; returns how many it was."""
        # All leave the deque before the first await: a slab on its way out must not be lent meanwhile.
        going = [slab for slab in self._ready if not slab.is_huge][:count]
        for slab in going:
            self._ready.remove(slab)
        for slab in going:
            await self._changed(functools.partial(self._free, slab))
        return len(going)

    async def take_back(self, slab: Slab, *, keep: bool) -> None:
        """Ends a loan: the slab is gone when this returns. ``keep`` puts a new one in its place.

        Nobody may touch its memory any more (Exporter.revoke); or, where the memfd was passed out, rely on it.
        """
        # Before the first await, too: `close` would free it a second time.
        self._lent.remove(slab)
        new = await self._changed(lambda: self._replace(slab) if keep else self._free(slab))
        if new is not None:
            self._keep_ready(new)

    def close(self) -> None:
        """Frees every slab that is not being made or freed now; those are freed when they are done."""
        # What a thread is making now ends after this: `_keep_ready` frees it.
        self._closed = True
        for slab in (*self._ready, *self._lent):
            self._free(slab)
        self._ready.clear()
        self._lent.clear()

    def _keep_ready(self, slab: Slab) -> None:
        if self._closed:
            self._free(slab)
        else:
            self._ready.append(slab)

    async def _changed(self, work: Callable[[], _T]) -> _T:
        """Runs what takes milliseconds in a thread; one slab counts as changing for so long."""
        self.changing += 1
        self.changes += 1
        running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            # Work that a cancelled task leaves in the queue must be done all the same: nobody else knows of its slab.
            return await asyncio.shield(running)
        finally:
            self.changing -= 1
            self.changes += 1

    # ---- in a thread

    def _make(self, *, is_huge: bool) -> Slab | None:
        fd = -1
        try:
            fd = _sealed_memfd(self.slab_bytes, is_huge=is_huge)
            address = self._memory.map(fd, self.slab_bytes)
        # Out of descriptors is like out of memory: what is not made now may be made later.
        except (OSError, EngineError) as error:
            if fd >= 0:
                os.close(fd)
            _log.warning("a slab could not be made", error=error)
            return None
        return Slab(fd=fd, address=address, length_bytes=self.slab_bytes, is_huge=is_huge)

    def _replace(self, slab: Slab) -> Slab | None:
        # In this order the old slab and the new one never have memory at the same time: one of them is counted.
        self._free(slab)
        return self._make(is_huge=slab.is_huge)

    def _free(self, slab: Slab) -> None:
        # Pages go first: unmapping many keeps the kernel's lock on all of this process's memory.
        try:
            _punch_out(slab)
        finally:
            self._memory.unmap(slab.address, slab.length_bytes)
            os.close(slab.fd)


def _sealed_memfd(length_bytes: int, *, is_huge: bool) -> int:
    huge = os.MFD_HUGETLB if is_huge else 0
    fd = os.memfd_create("farside-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | huge)
    try:
        os.ftruncate(fd, length_bytes)
        # A borrower that could shrink it would make our threads, or another's, die of SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def _punch_out(slab: Slab) -> None:
    """Takes every page out of the memfd, for all who have it mapped; what is read there afterwards is zero."""
    fcntl.ioctl(slab.fd, _PUNCH_HOLE, _SPACE_RESV.pack(0, os.SEEK_SET, 0, slab.length_bytes, 0, 0))
