"""Ports of RDMA adapters: a port that has stopped working makes the node unfit for jobs that communicate over it.

So does one that was down for a moment between two looks, for an hour. One whose errors were too many within an hour, or
that was down too often, does until the agent starts anew: a node that is drained has no traffic, so no errors tell of
it any more, and what is wrong with it a person finds out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from farside.agent.sense.growth import HourlyGrowth, problem_of
from farside.log import get_log

ACTIVE = "ACTIVE"
DOWNED = "link_downed"
# Somebody who plugs a cable in anew makes one or two; a port that is down more often within an hour is broken.
MOST_DOWNS = 2
# Of the port's counters those that tell of a bad cable, transceiver or adapter, and not of the traffic; and where they
# stop: InfiniBand's PortCounters has so many bits for them, and so has the kernel (PORT_PMA_ATTR).
MAXIMUM = {
    "symbol_error": 0xFFFF, "link_error_recovery": 0xFF, DOWNED: 0xFF, "port_rcv_errors": 0xFFFF,
    "local_link_integrity_errors": 0xF,
}  # fmt: skip
_log = get_log("agent.sense")


class LinkSense:
    """Watch over the ports that have worked since this was made; other ports may not be in use at all."""

    def __init__(self, root: Path, *, errors_per_hour: int, now_s: Callable[[], float]) -> None:
        """``root`` has sys/; ``errors_per_hour`` 0: no counter is read."""
        self._root, self._limit, self._now_s = root, errors_per_hour, now_s
        self._worked: set[str] = set()
        self._growth: dict[str, HourlyGrowth] = {}
        self._downs: dict[str, HourlyGrowth] = {}  # these count when the port was seen down, too
        self._broken: dict[str, str] = {}  # why, by port: it stays so
        self._full: dict[str, set[str]] = {}  # counters at their maximum, by port
        self._problem = ""

    def read(self) -> str:
        """Ports that have stopped working, in one line; empty: none."""
        states = read_ports(self._root)
        self._worked |= {port for port, state in states.items() if state == ACTIVE}
        found = [f"port {port}: {why}" for port in sorted(self._worked) if (why := self._why(port, states))]
        problem = ", ".join(found)
        if problem and problem != self._problem:
            _log.error("a link is broken", why=problem)
        self._problem = problem
        return problem

    def _why(self, port: str, states: Mapping[str, str]) -> str:
        state = states.get(port, "gone")
        if state != ACTIVE:
            self._growth.pop(port, None)  # what is told now is not told again once it works
            return state
        if not self._limit:
            return ""
        counts, now_s = read_counters(self._root, port), self._now_s()
        self._note_full(port, counts)
        grown = dict(self._growth.setdefault(port, HourlyGrowth()).of(counts, now_s))
        # Times down are no errors in the sense of the limit, and have one of their own.
        unseen, errors = grown.pop(DOWNED, 0), problem_of(grown, self._limit)
        downs = self._downs.setdefault(port, HourlyGrowth()).of(counts, now_s).get(DOWNED, 0)
        broken = _times_down(downs) if downs > MOST_DOWNS else errors
        if broken and port not in self._broken:
            _log.error("a port counts as broken until the agent restarts", port=port, why=broken)
            self._broken[port] = broken
        return self._broken.get(port) or _times_down(unseen)

    def _note_full(self, port: str, counts: Mapping[str, int]) -> None:
        full = {name for name, count in counts.items() if count == MAXIMUM[name]}
        adapter, _, number = port.partition("/")
        for name in sorted(full - self._full.get(port, set())):
            _log.warning(
                "a port's error counter is at its maximum and counts no further errors",
                port=port, counter=name, hint=f"set it back: perfquery -R -C {adapter} -P {number}",
            )  # fmt: skip
        self._full[port] = full


def _times_down(count: int) -> str:
    if not count:
        return ""
    return f"was down {'once' if count == 1 else f'{count:,} times'} within an hour"


def read_ports(root: Path) -> Mapping[str, str]:
    """State of every port, ``mlx5_0/1``, in the words of IBTA's PortState: ``ACTIVE``, ``DOWN``, ``INIT``..."""
    found = {}
    for file in root.glob("sys/class/infiniband/*/ports/*/state"):
        try:
            state = file.read_text()  # 4: ACTIVE
        except OSError:  # its adapter is just being taken away
            continue
        found[f"{file.parts[-4]}/{file.parts[-2]}"] = state.partition(":")[2].strip()
    return found


def read_counters(root: Path, port: str) -> Mapping[str, int]:
    """The error counters of a port, ``mlx5_0/1``, by the kernel's names; those that it has."""
    adapter, _, number = port.partition("/")
    folder = root / "sys/class/infiniband" / adapter / "ports" / number / "counters"
    found = {}
    for name in MAXIMUM:
        try:
            found[name] = int((folder / name).read_text())
        except (OSError, ValueError):  # a soft device has none, and one says "N/A (no PMA)"
            continue
    return found
