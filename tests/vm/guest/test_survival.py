"""Whatever breaks, one thing or two at once: no page is wrong, no read fails, no process is lost.

Two donors, each behind a cable of its own, and second copies on a disk. One program swaps all the while, in three times
the memory it may have, and knows what each of its pages must hold.
"""

from collections.abc import Iterator

import pytest

from tests.support.programs import outcome, run
from tests.support.waiting import until
from tests.vm.guest.load import Load, load
from tests.vm.guest.machinery import Room, eaten
from tests.vm.guest.survival import survived
from tests.vm.guest.swap_plane import LIMIT_S, Donor, Plane, swap, swap_must

MIB = 1 << 20
DONORS = ("d1", "d2")
# Lends nothing to this borrower: the daemon that every machine runs, beside a borrower or not.
OWN = "own"
ALL = (*DONORS, OWN)


@pytest.fixture(scope="module")
def rooms() -> Iterator[dict[str, Room]]:
    """A network for each donor."""
    made = {name: Room(number) for number, name in enumerate(DONORS, start=1)}
    yield made
    for room in made.values():
        room.remove()


@pytest.fixture(scope="module")
def plane(rooms: dict[str, Room], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """The donors, the borrower, and a daemon of the borrower's own machine; the borrower's device is swap."""
    # 100 MiB stay free of 240. Programs that then want 120 get them, once all that is lent has come back.
    # What moves then has more time than the usual 5 s, as everything has here.
    lending = {"headroom_bytes": "100MiB", "migrate_deadline_s": 25}
    donors = [rooms[name].donor(name, memory_bytes=240 * MIB, **lending) for name in DONORS]
    made = Plane(tmp_path_factory.mktemp("plane"), donors=(*donors, Donor(name=OWN, port=7709)))
    made.write_peers(DONORS)
    outcome(["dmesg", "--clear"])
    try:
        made.start_all()
        swap_must("attach", "--socket", str(made.admin_socket), "--connections", "2")
        yield made
        swap("detach", "--force-although-memory-may-run-out")
    finally:
        made.end()


@pytest.fixture(scope="module")
def witness(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """The program that swaps, through all of these."""
    with load(tmp_path_factory.mktemp("witness"), limit_mib=8) as one:
        one.tell()
        yield one


def busiest(plane: Plane) -> str:
    """The donor that holds the most pages."""
    held = dict.fromkeys(DONORS, 0)
    for slab in plane.told()["slabs"]:
        held[slab["donor"]] += slab["live_pages"]
    return max(held, key=lambda name: held[name])


def until_up(plane: Plane) -> None:
    until(plane.is_up, what="both donors", deadline_s=LIMIT_S, every_s=0.5)


def until_given_up(plane: Plane, donor: str) -> None:
    def state() -> str:
        return str(next(one["state"] for one in plane.told()["donors"] if one["node"] == donor))

    until(lambda: state() in ("failed", "down"), what=f"{donor} to be given up", deadline_s=LIMIT_S, every_s=0.5)


def until_served_by_another(plane: Plane, pid: int) -> None:
    def other() -> bool:
        told = plane.status()
        return told is not None and told["server_pid"] != pid

    until(other, what="another server process", deadline_s=LIMIT_S, every_s=0.2)


def test_nothing_breaks(plane: Plane, witness: Load) -> None:
    with survived("none", plane, witness, processes=ALL):
        pass


def test_a_donor_is_killed(plane: Plane, witness: Load) -> None:
    donor = busiest(plane)
    with survived("donor killed", plane, witness, processes={*ALL} - {donor}):
        plane.kill(donor)
    plane.start(donor)
    until_up(plane)


def test_a_donor_is_restarted(plane: Plane, witness: Load) -> None:
    donor = busiest(plane)
    with survived("donor restarted", plane, witness, processes=ALL):
        plane.terminate(donor)
        plane.start(donor)
        until_up(plane)


def test_a_donors_network_is_cut_and_healed(plane: Plane, witness: Load, rooms: dict[str, Room]) -> None:
    donor = busiest(plane)
    with survived("donor's network cut, until it is given up", plane, witness, processes=ALL):
        rooms[donor].cut()
        until_given_up(plane, donor)
    with survived("that network healed", plane, witness, processes=ALL):
        rooms[donor].heal()
        until_up(plane)


def test_a_donors_own_programs_want_its_memory(plane: Plane, witness: Load) -> None:
    donor = busiest(plane)
    before = plane.donor_status(donor)["counters"]
    with survived("donor squeezed", plane, witness, processes=ALL), eaten(plane.donors[donor], 120 * MIB):
        until(
            lambda: not plane.donor_status(donor)["slab_counts"].get("lent"),
            what="a donor that has all its slabs back",
            deadline_s=LIMIT_S,
            every_s=0.5,
        )
    after = plane.donor_status(donor)["counters"]
    assert sum(after[name] - before[name] for name in ("migrations", "evictions")) > 0
    assert after["moved_pages"] > before["moved_pages"]


def test_the_servers_process_is_replaced(plane: Plane, witness: Load) -> None:
    pid = plane.told()["server_pid"]
    with survived("block process upgraded", plane, witness, processes=ALL):
        run(["farside", "admin", "replace", "--socket", str(plane.admin_socket)], limit_s=LIMIT_S)
    told = plane.told()
    assert told["server_pid"] != pid
    assert told["connections"] == 2  # the kernel's, which it never lost


def test_the_servers_process_is_killed(plane: Plane, witness: Load) -> None:
    pid = plane.told()["server_pid"]
    with survived("block process killed by SIGKILL", plane, witness, processes=ALL):
        plane.kill_server()
        until_served_by_another(plane, pid)
    assert plane.told()["connections"] == 2


def test_the_machines_own_donor_is_killed(plane: Plane, witness: Load) -> None:
    with survived("borrower's own donor daemon killed", plane, witness, processes=DONORS):
        plane.kill(OWN)
    plane.start(OWN)


def test_a_donor_and_the_servers_process_are_killed_at_once(plane: Plane, witness: Load) -> None:
    donor, pid = busiest(plane), plane.told()["server_pid"]
    with survived("donor and block process killed at once", plane, witness, processes={*ALL} - {donor}):
        plane.kill(donor)
        plane.kill_server()
        until_served_by_another(plane, pid)
    plane.start(donor)
    until_up(plane)
