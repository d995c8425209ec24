"""This whole machine far out of memory: programs of no cgroup's limit touch so many times what it has.

    python3 -m tests.vm.guest.pressure ADDRESS KEY TRANSPORT SECONDS TIMES

It swaps to a donor at ADDRESS (far_donor.py). After the programs have written all their pages they read and rewrite
them in random order for so many seconds of this machine's clock, and read each once more. A line comes every few
seconds meanwhile: who listens knows a machine that hangs by its silence. The last line is `judged`, or `failed: ` and
the reason.
"""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from farside.kmod_shim.preflight import read_meminfo
from tests.support.waiting import until
from tests.vm.guest.far_donor import FOLDER, MIB, plane_of
from tests.vm.guest.load import Load, Testimony
from tests.vm.guest.survival import ROOT, survived
from tests.vm.guest.swap_plane import LIMIT_S, Plane, swap_must, vmstat
from tests.vm.guest.watch import watched

PROGRAMS = 3
PAGE_BYTES = 4096
LOOK_EVERY_S = 5.0
# Of a machine that moves; the harness ends one that does not.
TELL_LIMIT_S = 7200.0


class Crowd:
    """Several witnesses, heard as one."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads

    def so_far(self) -> Testimony:
        """What they saw since they were last asked, without another look at all pages."""
        return self._asked(lambda one: one.so_far(TELL_LIMIT_S))

    def tell(self) -> Testimony:
        """The same, after each has read every page of its own; they do so at the same time."""
        return self._asked(lambda one: one.tell(TELL_LIMIT_S))

    def _asked(self, ask: Callable[[Load], Testimony]) -> Testimony:
        with ThreadPoolExecutor(len(self._loads)) as threads:
            answers = [threads.submit(ask, one) for one in self._loads]
            until_telling(lambda: all(answer.done() for answer in answers), what="all words")
            return _together([answer.result() for answer in answers])


def _together(told: Sequence[Testimony]) -> Testimony:
    return Testimony(
        accesses=sum(one.accesses for one in told),
        wrong=sum(one.wrong for one in told),
        stall_s=max(one.stall_s for one in told),
    )


def until_telling(look: Callable[[], bool], *, what: str, deadline_s: float = TELL_LIMIT_S) -> None:
    """Waits, with a line about the machine every few seconds."""

    def told() -> bool:
        say()
        return look()

    until(told, what=what, deadline_s=deadline_s, every_s=LOOK_EVERY_S)


def say() -> None:
    """One line about the machine."""
    free = read_meminfo(ROOT)
    print(
        f"{time.monotonic():7.0f} s: {vmstat('pswpin')} in, {vmstat('pswpout')} out, "
        f"{free['MemFree'] >> 10} KiB free, {free['MemAvailable'] >> 10} KiB available, {vmstat('oom_kill')} killed",
        flush=True,
    )


def press(plane: Plane, transport: str, *, seconds: float, pages: int) -> None:
    """Runs the programs, each with so many pages, and judges."""
    with ExitStack() as stack:
        loads = []
        for number in range(PROGRAMS):
            one = Load(FOLDER, pages=pages, limit="max", name=f"hog{number}")
            stack.callback(one.end)
            loads.append(one)
        until_telling(lambda: all(one.is_filled() for one in loads), what="all pages written")
        print("filled", flush=True)
        with survived(f"whole machine out of memory, by {transport}", plane, Crowd(loads), processes=()):
            end_s = time.monotonic() + seconds
            until_telling(lambda: time.monotonic() > end_s, what="the time to pass")


def main() -> None:
    """As the module says."""
    address, key, transport, seconds, times = sys.argv[1:]
    touched_bytes = int(float(times) * read_meminfo(ROOT)["MemTotal"])
    # Swap clusters are freed whole: some more than what is out.
    size_bytes = -(-touched_bytes * 4 // (3 * 64 * MIB)) * 64 * MIB
    plane = plane_of(address, key, transport=transport, disk_bytes=size_bytes, guard="start")
    plane.start("blockdev")
    until(plane.is_up, what="the donor", deadline_s=LIMIT_S, every_s=0.5)
    swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "1")
    with watched(FOLDER):
        say()
        try:
            press(plane, transport, seconds=float(seconds), pages=touched_bytes // PAGE_BYTES // PROGRAMS)
        except AssertionError as error:
            print(f"failed: {error}", flush=True)
        else:
            print("judged", flush=True)


if __name__ == "__main__":
    main()
