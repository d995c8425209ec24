"""A thread that reads the blocks that come next while the program works on the one before [harmony §IV-C].

It reads in the order in which they are wanted, round and round, into a fixed number of buffers: so it begins with the
next iteration's as soon as a buffer is free.
"""

import threading
from collections.abc import Callable, Sequence

from farside.training.loop.spill_file import Buffer

BUFFERS = 4


class Reader:
    """Blocks that are read ahead, by number."""

    def __init__(self, load: Callable[[int, Buffer], None], size_bytes: int, *, buffers: int = BUFFERS) -> None:
        """Makes the buffers; reading begins with `follow`.

        Args:
            load: Fills a buffer with a block; what it raises is raised by `take`.
            size_bytes: Of the largest block.
            buffers: How many blocks are read ahead or in use at most, as long as the program keeps none; at least 2.
        """
        self._load, self._size_bytes = load, size_bytes
        self._changed = threading.Condition()
        self._order: tuple[int, ...] = ()
        self._next = 0
        self._turn = 0  # grows when what is being read is not wanted any more
        self._loading: int | None = None
        self._ready: dict[int, Buffer | BaseException] = {}
        self._free = [Buffer(size_bytes) for _ in range(max(2, buffers))]
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="farside-reload", daemon=True)
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """Size of each buffer."""
        return self._size_bytes

    def follow(self, order: Sequence[int]) -> None:
        """The blocks that are wanted from now on, in this order; what was read ahead and comes first in it stays."""
        with self._changed:
            if tuple(order) != self._order:
                self._order = tuple(order)
                self._go_on()

    def take(self, number: int) -> Buffer:
        """A block of the order; the caller gives the buffer back.

        Raises:
            BaseException: what its reading raised.
        """
        with self._changed:
            self._changed.notify_all()  # a buffer that was still used when it was given back may be free by now
            if number not in self._order:
                self._order = (*self._order, number)
            if number not in self._ready and number != self._loading:
                at = self._order.index(number)
                if at != self._next:
                    self._start_at(at)
                if not self._has_free():
                    # The program keeps arrays of blocks before: theirs stay as they are, and are its own.
                    self._free.append(Buffer(self._size_bytes))
                    self._free = [buffer for buffer in self._free if not buffer.is_held]
            self._changed.wait_for(lambda: number in self._ready or self._is_closed)
            found = self._ready.pop(number)
            self._changed.notify_all()
        if isinstance(found, BaseException):
            raise found
        return found

    def give_back(self, buffer: Buffer) -> None:
        """A block is done with; arrays over it may still be used."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _go_on(self) -> None:
        """Another order begins: its first blocks that are there, or are being read, need not be read again."""
        ahead = 0
        while ahead < len(self._order) and self._is_coming(self._order[ahead]):
            ahead += 1
        first = self._order[:ahead]
        self._free += [one for number, one in self._ready.items() if number not in first and isinstance(one, Buffer)]
        self._ready = {number: self._ready[number] for number in first if number != self._loading}
        if self._loading not in first:
            self._loading, self._turn = None, self._turn + 1
        self._next = ahead % max(1, len(self._order))
        self._changed.notify_all()

    def _is_coming(self, number: int) -> bool:
        return number == self._loading or isinstance(self._ready.get(number), Buffer)

    def _start_at(self, at: int) -> None:
        self._free += [one for one in self._ready.values() if isinstance(one, Buffer)]
        self._ready.clear()
        self._next, self._turn = at, self._turn + 1
        self._loading = None
        self._changed.notify_all()

    def _has_free(self) -> bool:
        return any(not buffer.is_held for buffer in self._free)

    def _may_read(self) -> bool:
        return bool(self._order) and self._order[self._next] not in self._ready and self._has_free()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._may_read())
                if self._is_closed:
                    return
                buffer = next(buffer for buffer in self._free if not buffer.is_held)
                self._free.remove(buffer)
                number, turn = self._order[self._next], self._turn
                self._next = (self._next + 1) % len(self._order)
                self._loading = number
            problem: BaseException | None = None
            try:
                self._load(number, buffer)
            except BaseException as error:
                problem = error
            with self._changed:
                if turn != self._turn:
                    self._free.append(buffer)
                else:
                    self._loading = None
                    self._ready[number] = problem or buffer
                    if problem is not None:
                        self._free.append(buffer)
                self._changed.notify_all()
