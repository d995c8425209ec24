"""The smallest exchange beside its floor: the same number of processes that wake each other through bare sockets.

A round trip is two wakings, one of the Aggregator and one of a member, and what they cost is the machine's. A virtual
machine's processor that fell asleep wakes slowly at first, so each sample is long, and warmed up.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.aggregation.group import Farside, ask_all
from benchmarks.aggregation.judge import spread
from benchmarks.aggregation.measure import metered
from benchmarks.aggregation.plan import KINDS, REGISTERED, ROUND_TRIP_US, sized
from benchmarks.figure import Figure, Table

STEPS, WARM_STEPS = 20_000, 5_000
EXCHANGED = "4 KB"
MEMBERS = 2
# A frame's head: the exchange itself is in memory that is shared.
FRAME = bytes(48)


def measure_round_trip(ours: Farside, rounds: int) -> Figure:
    """Microseconds from a push to its result, ours and bare sockets in turns."""
    found = [_round(ours) for _ in range(rounds)]
    trip_us, floor_us, ratio, other = (spread(column) for column in zip(*found, strict=True))
    rows = (
        ("bare sockets, three processes", f"{floor_us.text(0)} us", "-", "-"),
        (
            REGISTERED, f"{trip_us.text(0)} us", f"below {ROUND_TRIP_US:.0f} us",
            "yes" if trip_us.median < ROUND_TRIP_US else "no",
        ),
        ("ours to bare sockets", ratio.text(), "-", "-"),
    )  # fmt: skip
    return Figure(
        key="round_trip",
        title=f"Round trip of {EXCHANGED}, two members",
        source=f"{rounds} rounds of {STEPS} exchanges each",
        tables=(Table(caption="median and quartiles", header=("what", "round trip", "bar", "met"), rows=rows),),
        notes=(f"other work had {other.median:.0%} of the machine",),
    )


def _round(ours: Farside) -> tuple[float, float, float, float]:
    """Microseconds of ours and of bare sockets, ours to theirs, and the share of other work."""
    floor_us = _bare_sockets_us()
    ours.prepare(sized(EXCHANGED), KINDS[REGISTERED])
    ask_all(ours.members, do="run", steps=WARM_STEPS)
    seconds, _, other = metered(
        ours, lambda: max(answer["seconds"] for answer in ask_all(ours.members, do="run", steps=STEPS))
    )
    ours.release()
    trip_us = seconds / STEPS * 1e6
    return trip_us, floor_us, trip_us / floor_us, other


def _bare_sockets_us() -> float:
    """A round trip where two processes each send a frame to a third, which answers both when both have come."""
    with ExitStack() as stack:
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(MEMBERS)]
        children = [_forked(partial(_answer, [server.fileno() for _, server in pairs]))]
        children += [_forked(partial(_exchange, member.fileno())) for member, _ in pairs[1:]]
        try:
            return _exchange(pairs[0][0].fileno())
        finally:
            for member, _ in pairs:
                member.shutdown(socket.SHUT_RDWR)
            for pid in children:
                os.waitpid(pid, 0)


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _exchange(fd: int) -> float:
    for _ in range(WARM_STEPS):
        os.write(fd, FRAME)
        os.read(fd, len(FRAME))
    begun_s = time.perf_counter()
    for _ in range(STEPS):
        os.write(fd, FRAME)
        os.read(fd, len(FRAME))
    return (time.perf_counter() - begun_s) / STEPS * 1e6


def _answer(fds: Sequence[int]) -> None:
    """Until a member has gone."""
    came = 0
    with select.epoll() as ready:
        for fd in fds:
            ready.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in ready.poll():
                if not os.read(fd, len(FRAME)):
                    return
                came += 1
            if came == len(fds):
                came = 0
                for fd in fds:
                    os.write(fd, FRAME)
