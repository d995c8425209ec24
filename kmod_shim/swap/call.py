"""swapon(2) and swapoff(2); swapoff returns after every page is back in memory, and reports its progress."""

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from farside.errors import ConfigError, FarsideError
from farside.units import format_bytes

# linux/swap.h
PRIORITY_MASK = 0x7FFF
FLAG_PREFER = 0x8000
FLAG_DISCARD = 0x10000
FLAG_DISCARD_PAGES = 0x40000
PRIORITY_MAX = 32767

PERIOD_S = 0.5  # between two looks at /proc/swaps

_HINTS = {
    errno.EPERM: "it needs root, or CAP_SYS_ADMIN",
    errno.EBUSY: "it is mounted, swapped to already, or part of a volume",
    errno.EINVAL: "it has no swap signature, or is not a swap area that is on",
    errno.ENOMEM: "memory would not hold what is out: end programs, or add another swap area first",
    errno.EINTR: "it was interrupted; swap stays on and nothing is lost",
}


def swap_flags(*, priority: int, discard: bool) -> int:
    """The flags of swapon(2). Discard is by freed 2 MiB granules, never of the whole area at once."""
    assert 0 <= priority <= PRIORITY_MAX
    # FLAG_DISCARD alone would also discard the whole area at swapon; with FLAG_DISCARD_PAGES only what is freed is.
    return FLAG_PREFER | (priority & PRIORITY_MASK) | (FLAG_DISCARD | FLAG_DISCARD_PAGES if discard else 0)


def swap_on(device: str, *, priority: int, discard: bool) -> None:
    """Switches a swap area on. Raises ConfigError."""
    _call("swapon", device, swap_flags(priority=priority, discard=discard))


def swap_off(device: str, *, used_bytes: Callable[[], int | None], tell: Callable[[int], None]) -> None:
    """Switches it off; returns when every page is back in memory.

    The call runs on a thread of its own. An interrupt (Ctrl-C) ends it between two pages: swap then is still on and
    whole.

    Args:
        device: The device file, as /proc/swaps names it.
        used_bytes: What is still out; None when the area is gone from /proc/swaps.
        tell: Called with that figure about twice a second.

    Raises:
        FarsideError: The kernel refused, or it was interrupted; swap stays on.
    """
    # A list, because the thread below fills it; it has one entry when the thread has ended.
    outcome: list[FarsideError | None] = []

    def work() -> None:
        try:
            _call("swapoff", device)
            outcome.append(None)
        except FarsideError as error:
            outcome.append(error)

    # A signal that is ignored interrupts no system call: there has to be a handler, though it does nothing.
    before = signal.signal(signal.SIGUSR1, _ignore)
    # In a thread: swapoff(2) blocks until the last page is back, which may take minutes, and progress is to be shown.
    thread = threading.Thread(target=work, name="swapoff")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(PERIOD_S)
            out = used_bytes()
            if out is not None and thread.is_alive():
                tell(out)
    except KeyboardInterrupt:
        # Again and again: a signal that arrives before the thread is in the system call interrupts nothing.
        while thread.is_alive() and thread.ident is not None:
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            thread.join(PERIOD_S)
    finally:
        # The call is always waited for: until it returns nobody knows whether swap is on.
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    if outcome[0] is not None:
        raise outcome[0]


def progress_line(*, before_bytes: int, now_bytes: int, began_s: float) -> str:
    """How far a swapoff is, for people: what is out still, and when it will be done at this speed."""
    done, elapsed_s = before_bytes - now_bytes, time.monotonic() - began_s
    left = f"{format_bytes(now_bytes)} of {format_bytes(before_bytes)} still out"
    if done <= 0 or elapsed_s <= 0:
        return left
    return f"{left}, about {now_bytes * elapsed_s / done:.0f} s to go"


def _ignore(number: int, frame: FrameType | None) -> None:
    return


def _call(name: str, device: str, *arguments: int) -> None:
    # ctypes lets other threads run during the call, and does not repeat it after EINTR, as Python's own calls do.
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(os.fsencode(device), *arguments) != 0:
        number = ctypes.get_errno()
        kind = FarsideError if number == errno.EINTR else ConfigError
        raise kind(f"{name} {device}: {os.strerror(number)}", hint=_HINTS.get(number, ""))
