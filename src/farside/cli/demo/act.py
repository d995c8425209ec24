"""Steps of the demo's memory scene: what each does to donors and borrower, and how it checks the result.

An act causes something and returns when the borrower's own counters say that it has happened; the counters are those of
`farside status`, nothing is counted here.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farside.cli.demo.load import FIO_JOBS
from farside.errors import PeerError
from farside.sandbox import control
from farside.sandbox.waiting import wait_until
from farside.units import MIB

ACT_LIMIT_S = 15.0
LOOK_EVERY_S = 0.1
LENT_SLABS_MIN = 2


class Stage:
    """The running sandbox as the acts see it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        record = control.record(state)
        self.donor_memory_bytes = record.donor_memory_bytes
        self.headroom_bytes = record.headroom_bytes

    def status(self) -> Mapping[str, Any]:
        """The borrower's status; waits while its server is being replaced."""
        end_s = time.monotonic() + ACT_LIMIT_S
        while True:
            try:
                return control.blockdev_status(self.state)
            except PeerError:
                if time.monotonic() > end_s:
                    raise
            time.sleep(LOOK_EVERY_S)

    def count(self, name: str) -> int:
        """One of the borrower's counters."""
        return int(self.status()["counters"][name])

    def slabs_at(self, donor: str) -> int:
        """Slabs that the borrower has at a donor and that hold pages (a fresh one is empty until it is written)."""
        slabs = self.status()["slabs"]
        return sum(slab["donor"] == donor and slab["state"] == "live" and slab["live_pages"] > 0 for slab in slabs)

    def busiest(self, *, apart: tuple[str, ...] = ()) -> str:
        """The donor that lends most, of those not named."""
        names = [donor.name for donor in control.record(self.state).donors if donor.pid and donor.name not in apart]
        return max(names, key=self.slabs_at)

    def until_up(self) -> None:
        """Returns when every donor is up: what is written before that goes to the others alone.

        Raises:
            PeerError: one did not come in time.
        """
        self.until(lambda: all(donor["state"] == "up" for donor in self.status()["donors"]), "every donor to be up")

    def until(self, look: Callable[[], bool], what: str) -> None:
        """Returns when `look` says yes.

        Raises:
            PeerError: it did not in time.
        """
        wait_until(look, what, limit_s=ACT_LIMIT_S, every_s=LOOK_EVERY_S)


def until_clients_transmit(
    status: Callable[[], Mapping[str, Any]], connections: int, *, limit_s: float = ACT_LIMIT_S
) -> None:
    """Returns when this number of clients have been past their handshake for a moment.

    A server that is killed in the middle of a handshake takes that connection with it; a client then has to connect
    again, as it must whenever it is refused. What a take-over promises begins with the first request.

    Raises:
        PeerError: there were never so many.
    """
    # Two looks in a row, as a connection that is counted may still be in its handshake.
    end_s, seen = time.monotonic() + limit_s, 0
    while seen < 2:
        if time.monotonic() > end_s:
            raise PeerError(f"waited {limit_s:g} s in vain for {connections} clients")
        time.sleep(LOOK_EVERY_S / 2)
        seen = seen + 1 if status()["connections"] >= connections else 0


def lend(stage: Stage) -> str:
    """Waits until every donor lends some of what the clients' data need."""
    donors = [donor.name for donor in control.record(stage.state).donors]
    stage.until(lambda: all(stage.slabs_at(name) >= LENT_SLABS_MIN for name in donors), "every donor to lend slabs")
    return ", ".join(f"{name} lends {stage.slabs_at(name)}" for name in donors) + " slabs"


def press(stage: Stage) -> str:
    """A donor's programs grow into its headroom until half of what it lends has moved away."""
    name = stage.busiest()
    slabs, moved, used = stage.slabs_at(name), stage.count("migrated_pages"), 0
    left = slabs - max(1, slabs // 2)

    def grow() -> bool:
        nonlocal used
        # Less free than the HeadRoom, so that the donor recalls slabs, and more than nothing, so that there is time to
        # move them. As slabs leave, the programs may grow: the most is what is reported.
        used = max(used, control.crowd(stage.state, name, stage.headroom_bytes // 3))
        return stage.slabs_at(name) <= left and stage.count("migrated_pages") > moved

    stage.until(grow, f"slabs to leave {name}")
    moved = stage.count("migrated_pages") - moved
    return f"{name}'s programs took {used // MIB} MiB; {moved} pages moved to other donors"


def choke(stage: Stage) -> str:
    """A donor's programs want all of its memory at once: no time to move anything."""
    name = stage.busiest()
    evicted, dropped = stage.count("evictions"), stage.count("dropped_pages")
    control.squeeze(stage.state, name, stage.donor_memory_bytes)
    stage.until(
        lambda: stage.count("evictions") > evicted and stage.count("dropped_pages") > dropped,
        f"slabs of {name} to be dropped to disk",
    )
    evicted, dropped = stage.count("evictions") - evicted, stage.count("dropped_pages") - dropped
    return f"{name}'s programs stalled; {evicted} slabs with {dropped} pages dropped to disk at once"


def relax(stage: Stage) -> str:
    """All donors' own programs end, so that there is room again."""
    for donor in control.record(stage.state).donors:
        control.squeeze(stage.state, donor.name, 0)
    return "memory is idle again"


def kill(stage: Stage) -> str:
    """Kill -9 of the donor that lends most; it comes back with empty memory."""
    name = stage.busiest()
    before, slabs = stage.count("failovers"), stage.slabs_at(name)
    control.kill_donor(stage.state, name)
    stage.until(lambda: stage.count("failovers") > before, f"{name} to be declared failed")
    control.start_donor(stage.state, name)
    return f"{name} died with {slabs} slabs, and was started again with none"


def replace(stage: Stage) -> str:
    """A new server process takes the clients' sockets over at a request boundary."""
    before, old = stage.count("takeovers"), stage.status()["server_pid"]
    until_clients_transmit(stage.status, FIO_JOBS)
    control.replace(stage.state)
    stage.until(lambda: stage.count("takeovers") > before, "the new server to take over")
    return f"process {old} handed over to {stage.status()['server_pid']}"


def crash(stage: Stage) -> str:
    """Kill -9 of the server process; its supervisor starts another that goes on in mid-request."""
    before = stage.count("takeovers")
    until_clients_transmit(stage.status, FIO_JOBS)
    old = control.kill_blockdev(stage.state)
    stage.until(lambda: stage.count("takeovers") > before, "a new server to take over")
    return f"process {old} was killed, {stage.status()['server_pid']} went on"


# By title; each returns a line about how it went.
ACTS: Mapping[str, Callable[[Stage], str]] = {
    "donors lend": lend,
    "memory pressure on a donor: migration": press,
    "a donor out of memory: eviction": choke,
    "the pressure ends": relax,
    "kill -9 of a donor: failover": kill,
    "the server is replaced: take-over": replace,
    "kill -9 of the server: take-over": crash,
}
