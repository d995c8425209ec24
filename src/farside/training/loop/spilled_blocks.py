"""Input blocks of which some lie on the disk or in a peer's memory, and come back in turn [harmony §IV-C].

Input never changes, so a block is written once, when it is first dropped; dropping it again writes nothing. Blocks are
worked on in the order of their numbers wherever they lie: sums have the same bits at any share. Those on the disk lie
evenly between the others, so that one is read while others are worked on. Those that come from a peer lie evenly
between those of the disk, and each place has a thread that reads from it, so that both deliver at once.
"""

import errno
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from farside.agent.training.alpha import Keep
from farside.errors import FarsideError
from farside.group_time import ReadCost
from farside.log import get_log
from farside.training.loop.block import Block, OwnBlocks
from farside.training.loop.reload import BUFFERS, Reader
from farside.training.loop.spill_file import (
    BlockFile,
    Buffer,
    Layout,
    Placed,
    Store,
    arrays_in,
    layout_of,
)

_log = get_log("training")
T = TypeVar("T")

PEER_AWAY_S = 60.0
"""How long a peer is not asked after it has failed."""
_NEWEST_WEIGHT = 0.05
"""Weight of the newest read in the average time of a read. A disk with a limit serves several blocks at once, and then
none for a while: an average over fewer reads would say the one or the other by turns."""
ASK_FIRST, ASK_LAST = 2, 64
"""Passes until a peer from which nothing comes is measured again; twice as many each time, up to the second number."""
_LONE_READS = 3
"""Number of the last reads of which the quickest counts, for a peer from which nothing else comes: one that is slow may
be the fault of a moment, and as many in a row are not."""


class DamagedBlock(FarsideError):
    """A block can't be read back."""


def spill_order(blocks: int) -> list[int]:
    """Places 0 to ``blocks`` - 1 in the order in which they go to the disk: any first part of it lies evenly.

    By bits reversed; what is on the disk at a smaller share is among what is at a larger one.
    """
    bits = max(1, (blocks - 1).bit_length())
    return sorted(range(blocks), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))


class _Place:
    """Where blocks are: what is where in it, and what reading takes."""

    def __init__(self, file: Store) -> None:
        self.file = file
        self.blocks: dict[int, Placed] = {}
        self.cost: ReadCost | None = None
        self.read_bytes = self._reads = 0
        self._lone_reads = deque[ReadCost](maxlen=_LONE_READS)
        self._away_until_s = 0.0

    @property
    def is_there(self) -> bool:
        """Whether it may be asked now."""
        return time.monotonic() >= self._away_until_s

    def lose(self) -> None:
        """Notes that it has failed: what it had is lost, and it is not asked for a while, or never again."""
        self._away_until_s = math.inf if self.file.is_gone else time.monotonic() + PEER_AWAY_S
        self.blocks = {}
        self.file.forget()

    def write(self, number: int, buffer: Buffer, layout: Layout, check: int) -> bool:
        """Whether there was room.

        Raises:
            OSError: It can't be written.
        """
        offset = self.file.room_for(layout.size_bytes)
        if offset is None:
            return False
        self.file.write(buffer.view(layout.size_bytes), offset)
        self.blocks[number] = Placed(offset=offset, layout=layout, check=check)
        return True

    def read(self, number: int, buffer: Buffer, *, is_alone: bool = False) -> None:
        """Fills a buffer; ``is_alone``: nothing else is read from here, so that the quickest of the last reads counts.

        Raises:
            OSError: It can't be read.
            DamagedBlock: Other bytes came than were written.
        """
        placed = self.blocks.get(number)
        if placed is None:
            raise OSError(errno.ENXIO, "it has lost what it had")
        size_bytes = placed.layout.size_bytes
        began_s, cpu_s = time.monotonic(), self._cpu_s()
        self.file.read(buffer.view(size_bytes), placed.offset)
        took_s = time.monotonic() - began_s
        if buffer.check(placed.layout) != placed.check:
            raise DamagedBlock(f"block {number} in {self.file.name} is damaged")
        cpu_s = max(0.0, self._cpu_s() - cpu_s)
        self.read_bytes += size_bytes
        newest = ReadCost(bytes_s=size_bytes / max(took_s, 1e-9), cpu_s_byte=cpu_s / size_bytes)
        self._reads += 1
        if is_alone:
            self._lone_reads.append(newest)
            self.cost = max(self._lone_reads, key=lambda cost: cost.bytes_s)
            return
        known = self.cost
        self.cost = newest if known is None else _nearer(known, newest, max(_NEWEST_WEIGHT, 1 / self._reads))
        # What is known counts as one read, until as many others have followed.
        self._lone_reads = deque([self.cost], maxlen=_LONE_READS)

    def _cpu_s(self) -> float:
        return time.thread_time() + self.file.cpu_s()


def _nearer(known: ReadCost, newest: ReadCost, weight: float = _NEWEST_WEIGHT) -> ReadCost:
    def then(before: float, value: float) -> float:
        return before + weight * (value - before)

    # The time that a byte takes is averaged: of a disk that is quick and slow in turn, rates would say it is quick.
    byte_s = then(1 / known.bytes_s, 1 / newest.bytes_s)
    return ReadCost(bytes_s=1 / byte_s, cpu_s_byte=then(known.cpu_s_byte, newest.cpu_s_byte))


class SpilledBlocks(OwnBlocks[T]):
    """The blocks of one worker.

    Attributes:
        keep: Which share of them is on the disk, from the next pass on.
        input_bytes: All of them, as far as is known.
        waited_s: Time in which the program had to wait for blocks.
    """

    def __init__(
        self,
        source: Sequence[T],
        numbers: range,
        *,
        disk: BlockFile,
        peer: Store | None = None,
        first_share: Callable[[int, int], float],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """Takes the files.

        Args:
            source: The whole input; what it keeps of blocks itself is not spilled.
            numbers: This worker's.
            disk: Where blocks go.
            peer: Where copies of them go that are read back from there.
            first_share: The share to begin with, by bytes of the input and of buffers.
            is_full: Whether memory has no room for one more, whatever the share.
        """
        super().__init__(source, numbers)
        self.keep = Keep()
        self.waited_s = 0.0
        self._first_share, self._is_full = first_share, is_full
        self._order = [numbers[place] for place in spill_order(len(numbers))]
        self._disk_file = disk
        self._disk, self._peer = _Place(disk), None if peer is None else _Place(peer)
        self._layouts: dict[int, Layout] = {}
        self._pinned = set[int]()
        self._from_peer = frozenset[int]()
        self._passes, self._ask_at, self._ask_again = 0, 0, ASK_FIRST
        self._scratch: Buffer | None = None
        self._readers: dict[str, Reader] = {}
        self._reader_of: dict[int, Reader] = {}

    def __iter__(self) -> Iterator[Block[T]]:
        if not self._layouts and len(self.numbers):
            self._begin()
        out = self._out()
        self._passes += 1
        self._follow()
        for number in self.numbers:
            is_new = number not in self._held
            data, buffer, reader = self._data(number)
            try:
                yield Block(number=number, data=data, state=self.state_of(number))
            finally:
                if buffer is not None and reader is not None:
                    if number not in out and not self._is_full():
                        self._held[number] = _copied(data)
                    del data
                    reader.give_back(buffer)
            leaves = number in out or (is_new and self._is_full())
            if leaves and number in self._held and number not in self._pinned:
                self._drop(number)
        self._follow()

    @property
    def input_bytes(self) -> int:
        """All blocks, those that nobody has seen as large as the others."""
        known = sum(layout.size_bytes for layout in self._layouts.values())
        return known * len(self.numbers) // max(1, len(self._layouts))

    @property
    def costs(self) -> tuple[ReadCost | None, ReadCost | None]:
        """What reading from the disk and from the peer takes; None: not known, or there is none."""
        peer = self._peer
        return self._disk.cost, peer.cost if peer is not None and peer.is_there else None

    @property
    def read_bytes(self) -> tuple[int, int]:
        """What was read from the disk, and from the peer."""
        return self._disk.read_bytes, 0 if self._peer is None else self._peer.read_bytes

    @property
    def spilled(self) -> float:
        """The share that is not in memory now."""
        return 1 - len(self._held) / max(1, len(self.numbers))

    @property
    def disk(self) -> BlockFile:
        """The file on the disk, for what else is to go there."""
        return self._disk_file

    def close(self) -> None:
        """Ends reading, and gives the files up."""
        for reader in self._readers.values():
            reader.close()
        self._disk.file.close()
        if self._peer is not None:
            self._peer.file.close()

    # --- where blocks are

    def _begin(self) -> None:
        """Looks at the first block, by which the others are taken to be as large."""
        self._take(self.numbers[0])
        largest = max(layout.size_bytes for layout in self._layouts.values())
        pools = 1 if self._peer is None else 2
        self.keep = Keep(spilled=self._first_share(self.input_bytes, (pools * BUFFERS + 1) * largest))

    def _out(self) -> frozenset[int]:
        """Blocks that are on the disk at this share."""
        count = math.ceil(self.keep.spilled * len(self._order) - 1e-9)
        out = [number for number in self._order[:count] if number not in self._pinned]
        # The first of that order lie evenly between the others, and are the same ones when more goes to the disk.
        self._from_peer = frozenset(out[: math.ceil(self.keep.by_peer * len(out) - 1e-9)])
        return frozenset(out)

    def _follow(self) -> None:
        """Tells each reader what comes, in order; blocks that are to stay in memory are read once more."""
        order = [number for number in self.numbers if number in self._disk.blocks and number not in self._held]
        if not order:
            return
        from_peer = frozenset(number for number in order if self._is_at_peer(number))
        largest = max(self._layouts[number].size_bytes for number in order)
        self._reader_of = {}
        for place, numbers in (
            ("disk", [number for number in order if number not in from_peer]),
            ("peer", sorted(from_peer)),
        ):
            reader = self._readers.get(place)
            if reader is not None and reader.size_bytes < largest:
                reader.close()
                reader = None
            if reader is None and numbers:
                reader = Reader(self._load, largest)
            if reader is not None:
                self._readers[place] = reader
                reader.follow(numbers)
                self._reader_of |= dict.fromkeys(numbers, reader)

    def _data(self, number: int) -> tuple[Any, Buffer | None, Reader | None]:
        """A block's data, and the buffer that it lies in and whose that is, if any."""
        if number in self._held:
            return self._held[number], None, None
        # Dropped by another pass, which is not over: no reader has been told.
        reader = self._reader_of.get(number) or next(iter(self._readers.values()), None)
        if number not in self._disk.blocks or reader is None:
            self._take(number)
            return self._held[number], None, None
        began_s = time.monotonic()
        try:
            buffer = reader.take(number)
        except (DamagedBlock, OSError) as error:
            self._read_input_again(number, error)
            return self._held[number], None, None
        finally:
            self.waited_s += time.monotonic() - began_s
        return buffer.block(self._layouts[number]), buffer, reader

    def _take(self, number: int) -> None:
        """Asks the input for a block."""
        data = _in_memory(self._source[number])
        self._layouts[number] = layout_of(data)
        self._held[number] = data

    def _read_input_again(self, number: int, error: Exception) -> None:
        """A block that can't be read back stays in memory from now on."""
        try:
            data = _in_memory(self._source[number])
            layout = layout_of(data)
            is_same = self._scratch_of(layout).take(data, layout) == self._disk.blocks[number].check
        except Exception as second:
            raise DamagedBlock(f"{error}, and the input can't be read again: {second}") from error
        if not is_same:
            raise DamagedBlock(f"{error}, and the input has changed since it was first read")
        _log.warning("an input block is read from the input again, and stays in memory", reason=error)
        self._pinned.add(number)
        self._held[number] = data

    # --- to the files and back

    def _drop(self, number: int) -> None:
        """A block leaves memory; it is written first, if it never was."""
        if number not in self._disk.blocks:
            layout = self._layouts[number]
            buffer = self._scratch_of(layout)
            check = buffer.take(self._held[number], layout)
            try:
                self._disk.write(number, buffer, layout, check)
            except OSError as error:
                _log.warning("an input block can't be written, and stays in memory", block=number,
                             place=self._disk.file.name, reason=error)  # fmt: skip
                self._pinned.add(number)
                return
        del self._held[number]

    def _scratch_of(self, layout: Layout) -> Buffer:
        if self._scratch is None or self._scratch.size_bytes < layout.size_bytes:
            self._scratch = Buffer(layout.size_bytes)
        return self._scratch

    # --- in the readers' threads

    def _load(self, number: int, buffer: Buffer) -> None:
        """Reads a block: from the peer if that has it, otherwise from the disk.

        Raises:
            OSError, DamagedBlock: neither has it as it was written.
        """
        peer = self._peer
        is_asked = self._is_asked_again(number)
        if peer is not None and (is_asked or self._is_at_peer(number)):
            try:
                peer.read(number, buffer, is_alone=is_asked)
                return
            except (OSError, DamagedBlock) as error:
                self._lose(peer, error)
        self._read_disk(number, buffer)
        if peer is not None and self._is_wanted_at_peer(number) and not self._write_to_peer(peer, number, buffer):
            self._read_disk(number, buffer)  # what the peer has read into it may be wrong

    def _is_at_peer(self, number: int) -> bool:
        peer = self._peer
        return peer is not None and number in self._from_peer and number in peer.blocks and peer.is_there

    def _is_asked_again(self, number: int) -> bool:
        """Whether a peer from which nothing comes is measured by this block, at longer and longer intervals.

        What one read took may be the fault of a moment.
        """
        peer = self._peer
        if peer is None or self._from_peer or number not in peer.blocks or not peer.is_there:
            return False
        if self._passes < self._ask_at:
            return False
        self._ask_at, self._ask_again = self._passes + self._ask_again, min(ASK_LAST, 2 * self._ask_again)
        return True

    def _is_wanted_at_peer(self, number: int) -> bool:
        """Whether a peer is to have it from now on: what is read from there, and one block to know what that takes."""
        peer = self._peer
        if peer is None or number in peer.blocks or not peer.is_there:
            return False
        return number in self._from_peer or peer.cost is None

    def _write_to_peer(self, peer: _Place, number: int, buffer: Buffer) -> bool:
        """Whether the buffer is as it was."""
        placed = self._disk.blocks[number]
        try:
            if peer.write(number, buffer, placed.layout, placed.check) and peer.cost is None:
                peer.read(number, buffer)
        except (OSError, DamagedBlock) as error:
            self._lose(peer, error)
            return False
        return True

    def _lose(self, peer: _Place, error: Exception) -> None:
        if peer.is_there:  # otherwise the other thread has told it
            peer.lose()
            what = "any more" if peer.file.is_gone else "for a while"
            _log.warning(f"a peer's memory is not used {what}", place=peer.file.name, reason=error)

    def _read_disk(self, number: int, buffer: Buffer) -> None:
        try:
            self._disk.read(number, buffer)
        except (OSError, DamagedBlock) as error:
            _log.warning("an input block is read once more", block=number, place=self._disk.file.name, reason=error)
            self._read_twice(number, buffer)

    def _read_twice(self, number: int, buffer: Buffer) -> None:
        try:
            self._disk.read(number, buffer)
        except OSError as error:
            line = f"block {number} in {self._disk.file.name} can't be read: {error.strerror}"
            raise DamagedBlock(line) from error


def _in_memory(data: Any) -> Any:
    """A block of the input as it comes back from the disk: without gaps, read-only, and no part of a mapped file."""
    return _read_only(data, copies=lambda one: isinstance(one, np.memmap) or not one.flags.forc)


def _copied(data: Any) -> Any:
    """A copy of a block, in memory of its own."""
    return _read_only(data, copies=lambda _one: True)


def _read_only(data: Any, copies: Callable[[Any], bool]) -> Any:
    arrays = list[Any]()
    for one in arrays_in(data):
        is_fortran = one.flags.f_contiguous and not one.flags.c_contiguous
        made = np.array(one, order="F" if is_fortran else "C", subok=False) if copies(one) else one.view()
        made.flags.writeable = False
        arrays.append(made)
    return tuple(arrays) if isinstance(data, tuple) else arrays[0]


def keeps_all(source: Any) -> bool:
    """Whether an input has all of its blocks in memory by itself, so that spilling them frees nothing."""
    return isinstance(source, list | tuple) or (isinstance(source, np.ndarray) and not isinstance(source, np.memmap))


def may_leave_memory(source: Any) -> bool:
    """Whether an input can be spilled with nobody's word for it: its blocks are arrays that no program writes to.

    That is a file that is mapped read-only, whose blocks have no gaps, and a sequence that says so itself.
    """
    if isinstance(source, np.memmap):
        return bool(source.ndim > 1 and source.flags.c_contiguous and not source.flags.writeable)
    return bool(getattr(source, "may_leave_memory", False))
