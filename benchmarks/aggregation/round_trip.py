"""The smallest exchange beside its floor: the same number of processes that wake each other through bare sockets.

A round trip is two wakings, one of the Aggregator and one of a member, and what they cost is the machine's. A virtual
machine's processor that fell asleep is woken by its host, slowly; on one processor a waking is a change of processes
alone. So both are measured on all processors and on one. Each sample is long, and warmed up.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

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
    every = os.sched_getaffinity(0)
    places = {f"{len(every)} processors": every, "one processor": {max(every)}}
    found: dict[str, list[tuple[float, float, float, float]]] = {where: [] for where in places}
    for _ in range(rounds):
        for where, processors in places.items():
            with _placed(ours, processors):
                found[where].append(_round(ours))
    rows = [row for where, samples in found.items() for row in _rows(where, samples)]
    other = spread([sample[3] for samples in found.values() for sample in samples])
    return Figure(
        key="round_trip",
        title=f"Round trip of {EXCHANGED}, two members",
        source=f"{rounds} rounds of {STEPS} exchanges each",
        tables=(
            Table(caption="median and quartiles", header=("on", "what", "round trip", "bar", "met"), rows=tuple(rows)),
        ),
        notes=(f"other work had {other.median:.0%} of the machine",),
    )


def _rows(where: str, samples: Sequence[tuple[float, float, float, float]]) -> Iterator[tuple[str, ...]]:
    trip_us, floor_us, ratio, _ = (spread(column) for column in zip(*samples, strict=True))
    yield where, "bare sockets, three processes", f"{floor_us.text(0)} us", "-", "-"
    met = "yes" if trip_us.median < ROUND_TRIP_US else "no"
    yield where, REGISTERED, f"{trip_us.text(0)} us", f"below {ROUND_TRIP_US:.0f} us", met
    yield where, "ours to bare sockets", ratio.text(), "-", "-"


@contextmanager
def _placed(ours: Farside, processors: set[int]) -> Iterator[None]:
    """All threads of ours, and what is forked here, on these processors alone."""
    before = os.sched_getaffinity(0)
    _place(ours, processors)
    try:
        yield
    finally:
        _place(ours, before)


def _place(ours: Farside, processors: set[int]) -> None:
    for process in ours.processes:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), processors)
    os.sched_setaffinity(0, processors)


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
