"""The guests' network, and what may happen to a guest: what later tests of survival stand on."""

import time

import pytest

from tests.support.soft_rdma import ADD_RXE0
from tests.support.waiting import until
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network, Workshop, network
from tests.vm.harness.program import HarnessError

pytestmark = pytest.mark.vm

ONE_PING = "ping -c 1 -W 2"
MANY_S = 60.0


def reaches(guest: Guest, address: str) -> bool:
    return guest.outcome(f"{ONE_PING} {address}").status == 0


def test_three_guests_are_three_machines_that_reach_each_other(trio: Network) -> None:
    names = [guest.run("hostname").strip() for guest in trio]
    drawn = [guest.run("head -c 16 /dev/urandom | od -An -tx1") for guest in trio]

    assert names == ["node1", "node2", "node3"]
    assert len(set(drawn)) == 3
    for guest in trio:
        assert all(reaches(guest, other.address) for other in trio)


def test_a_woken_guest_has_the_hosts_clock(guest: Guest) -> None:
    told_s = float(guest.run("date +%s.%N"))

    # As late as the command that set it; the snapshot is older.
    assert abs(told_s - time.time()) < MANY_S


def test_frames_for_rdma_packets_of_4096_fit(pair: Network) -> None:
    # 4200 less the headers of IP and ICMP, and not to be split
    pair[1].run(f"ping -c 1 -W 10 -M do -s 4172 {pair[2].address}")


def test_a_cut_loses_packets_without_a_sign_until_it_is_healed(pair: Network) -> None:
    pair.cut(2)

    assert not reaches(pair[1], pair[2].address)
    assert pair[2].run("cat /sys/class/net/eth1/carrier").strip() == "1"

    pair.heal(2)
    until(lambda: reaches(pair[1], pair[2].address), what="a ping after the cut", deadline_s=MANY_S)


def test_a_pulled_cable_is_seen_by_the_guest(pair: Network) -> None:
    pair[2].unplug()

    until(lambda: "0" in pair[2].run("cat /sys/class/net/eth1/carrier"), what="a carrier that is gone")
    assert not reaches(pair[1], pair[2].address)

    pair[2].plug()
    until(lambda: reaches(pair[1], pair[2].address), what="a ping over the cable", deadline_s=MANY_S)


def test_after_a_power_cut_a_guest_comes_back_with_its_disk_and_the_others_never_stopped(pair: Network) -> None:
    pair[1].run("echo kept >/root/marker && sync")

    pair[1].power_off()
    assert not reaches(pair[2], pair[1].address)
    pair[1].boot()
    pair[1].become_node()

    assert pair[1].run("cat /root/marker") == "kept\n"
    until(lambda: reaches(pair[2], pair[1].address), what="a ping of the one that came back", deadline_s=MANY_S)


def test_soft_rdma_reads_memory_of_another_machine(pair: Network) -> None:
    for guest in pair:
        guest.run(ADD_RXE0, limit_s=300)

    def read() -> str:
        done = pair[2].outcome(f"ib_read_lat -d rxe0 -s 4096 -n 200 -F {pair[1].address}", limit_s=120)
        return done.stdout if done.status == 0 else ""

    with pair[1].spawn("ib_read_lat -d rxe0 -s 4096 -n 200 -F") as server:
        try:
            said = until(read, what="a server that listens", deadline_s=MANY_S)
        finally:
            server.kill()
    assert "4096" in said


def test_a_guest_whose_kernel_complains_fails_even_when_it_is_gone(shop: Workshop) -> None:
    with network(shop, 1) as guests:
        guests[1].run("echo '<4>BUG: planted by a test' >/dev/kmsg")
        with pytest.raises(HarnessError, match=r"node1: .*BUG: planted by a test"):
            guests.judge()

        guests[1].power_off()
        with pytest.raises(HarnessError, match=r"node1: .*BUG: planted by a test"):
            guests.judge()
