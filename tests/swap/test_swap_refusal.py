"""Why swap is not attached or detached, each with its way out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.kmod_shim.disk_backing import Backing
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.swap.hibernation import Hibernation
from farside.kmod_shim.swap.record import Attached
from farside.kmod_shim.swap.refusal import (
    MAY_HANG,
    MEMORY_OUT,
    SAME_DISK,
    AttachFacts,
    OtherArea,
    Served,
    attach_refusals,
    detach_refusals,
    standing,
)
from farside.kmod_shim.swap.table import Group, Room, SwapArea
from farside.units import GIB, MIB

ON_SDA = Backing(filesystem="ext4", devices=("sda1", "sda"))
SERVED = Served(
    name="swap0",
    size_bytes=GIB,
    slab_bytes=64 * MIB,
    workers=4,
    connections=0,
    offered=True,
    server_pid=7,
    supervisor_pid=6,
    listen=("unix:/s",),
    disk_path="/var/lib/farside/swap0.img",
)
WELL = AttachFacts(
    served=SERVED,
    is_swap=True,
    priority=100,
    may_administer=True,
    device="/dev/nbd0",
    device_number="43:0",
    device_is_connected=False,
    connections=2,
    records=(),
    guard=(Check(name="io flusher", outcome=Outcome.OK, found=""),),
    backings=(ON_SDA,),
    others=(),
    hibernation=Hibernation(is_possible=True, resume_device="8:2", resume_argument="/dev/sda2"),
)
UNSAFE = Check(name="oom score", outcome=Outcome.FAILED, found="process 7: oom_score_adj is 0", advice="do this")


def attached(export: str) -> Attached:
    return Attached(
        index=3,
        export=export,
        endpoint="unix:/s",
        admin_socket="/a",
        connections=2,
        size_bytes=GIB,
        server_flags=1,
        backend="",
        is_swap=True,
        priority=100,
    )


def other(path: str, *, priority: int = -2, backing: Backing | None = None) -> OtherArea:
    area = SwapArea(path=path, kind="partition", size_bytes=GIB, used_bytes=0, priority=priority)
    return OtherArea(area=area, backing=backing)


def test_a_machine_that_all_is_well_with_is_refused_nothing() -> None:
    assert list(attach_refusals(WELL)) == []


@pytest.mark.parametrize(
    ("change", "found", "way_out"),
    [
        ({"may_administer": False}, "CAP_SYS_ADMIN", "as root"),
        ({"asked_bytes": 2 * GIB}, "swap of 2 GiB is asked for, and the device has 1 GiB", "--size"),
        ({"asked_bytes": 4096}, "too small for swap", "make it larger"),
        ({"records": (attached("swap0"),)}, "attached already, as /dev/nbd3", "farside swap detach /dev/nbd3"),
        ({"device_is_connected": True}, "/dev/nbd0 is busy", "--device"),
        ({"served": replace(SERVED, offered=False)}, "waits for its donors", "farside status"),
        (
            {"served": replace(SERVED, connections=3)},
            "2 connections are wanted, swap0 has 1 workers free",
            "--connections",
        ),
        (
            {"served": replace(SERVED, size_bytes=GIB + 2 * MIB)},
            "not a multiple of a slab (64 MiB)",
            f"{GIB} or {GIB + 64 * MIB}",
        ),
        ({"served": replace(SERVED, size_bytes=2 * MIB)}, "not a multiple of a slab", f"set size_bytes to {64 * MIB}"),
        (
            {"backings": (Backing(filesystem="ext4", devices=("nbd0",)),)},
            "lies on /dev/nbd0: swap would wait for itself",
            "set disk_path",
        ),
        ({"backings": (Backing(filesystem="tmpfs", devices=()),)}, "lies in memory (tmpfs)", "replica"),
        ({"backings": (Backing(filesystem="", devices=("zram1",)),)}, "lies in memory (zram1)", "set disk_path"),
        (
            {"backings": (Backing(filesystem="ext4", devices=("loop0",)), Backing(filesystem="tmpfs", devices=()))},
            "lies in memory (tmpfs)",
            "set disk_path",
        ),
        ({"backings": (Backing(filesystem="nfs4", devices=()),)}, "lies on nfs4", "a disk of this machine"),
        ({"others": (other("/var/lib/farside/swap0.img"),)}, "is swapped to itself", "swapoff"),
        (
            {"others": (other("/dev/sda2", backing=Backing(filesystem="", devices=("sda2", "sda"))),)},
            "are both on sda and slow each other",
            "another disk",
        ),
        (
            {"others": (other("/dev/sdb1", priority=200, backing=Backing(filesystem="", devices=("sdb1",))),)},
            "filled before this device",
            "--priority 201",
        ),
        (
            {"hibernation": Hibernation(is_possible=True, resume_device="43:0", resume_argument="")},
            "hibernates to /dev/nbd0",
            "resume=",
        ),
        (
            {"hibernation": Hibernation(is_possible=True, resume_device="", resume_argument="/dev/nbd0")},
            "hibernates to /dev/nbd0",
            "another --device",
        ),
        ({"guard": (UNSAFE,)}, "not safe to swap to, oom score: process 7", "do this"),
    ],
)
def test_one_thing_amiss_is_one_line_with_the_way_out(change: dict[str, object], found: str, way_out: str) -> None:
    (refusal,) = attach_refusals(replace(WELL, **change))  # type: ignore[arg-type]

    assert found in refusal.found
    assert way_out in refusal.way_out


def test_zram_in_front_of_us_is_well_placed() -> None:
    zram = other("/dev/zram0", priority=32767, backing=Backing(filesystem="", devices=("zram0",)))

    assert list(attach_refusals(replace(WELL, others=(zram,)))) == []


def test_a_block_device_is_not_held_to_what_swap_needs() -> None:
    facts = replace(
        WELL,
        is_swap=False,
        guard=(UNSAFE,),
        backings=(Backing(filesystem="tmpfs", devices=()),),
        others=(other("/dev/sda2", priority=300, backing=ON_SDA),),
    )

    assert list(attach_refusals(facts)) == []


def test_all_reasons_come_at_once() -> None:
    facts = replace(WELL, may_administer=False, served=replace(SERVED, size_bytes=GIB + 4096), guard=(UNSAFE, UNSAFE))

    assert len(list(attach_refusals(facts))) == 4


def test_only_what_says_so_can_be_forced() -> None:
    shared = other("/dev/sda2", backing=ON_SDA)
    refusals = tuple(
        attach_refusals(replace(WELL, served=replace(SERVED, offered=False), guard=(UNSAFE,), others=(shared,)))
    )

    assert [refusal.force for refusal in refusals] == ["", SAME_DISK, MAY_HANG]
    assert [refusal.force for refusal in standing(refusals, [MAY_HANG])] == ["", SAME_DISK]
    assert [refusal.force for refusal in standing(refusals, [MAY_HANG, SAME_DISK, MEMORY_OUT])] == [""]


def area(used_bytes: int) -> SwapArea:
    return SwapArea(path="/dev/nbd0", kind="partition", size_bytes=GIB, used_bytes=used_bytes, priority=100)


def test_swap_stays_on_where_memory_would_not_hold_what_is_out() -> None:
    room = Room(memory_bytes=100 * MIB, other_swap_bytes=50 * MIB)

    (refusal,) = detach_refusals(area(200 * MIB), room)

    assert refusal.found == "200 MiB are out on /dev/nbd0, and memory has room for 100 MiB, other swap for 50 MiB"
    assert "50 MiB of other swap" in refusal.way_out


def test_a_groups_limit_counts_though_the_machine_has_room() -> None:
    group = Group(name="/db.slice", limit_bytes=40 * MIB, used_bytes=39 * MIB, swapped_bytes=60 * MIB)
    room = Room(memory_bytes=GIB, other_swap_bytes=0, groups=(group,))

    (refusal,) = detach_refusals(area(60 * MIB), room)

    assert "cgroup /db.slice" in refusal.found
    assert "by 59 MiB" in refusal.way_out


@given(used=st.integers(0, GIB), memory=st.integers(0, GIB), swap=st.integers(0, GIB))
def test_more_room_never_turns_a_yes_into_a_no(used: int, memory: int, swap: int) -> None:
    tight = list(detach_refusals(area(used), Room(memory_bytes=memory, other_swap_bytes=swap)))
    wide = list(detach_refusals(area(used), Room(memory_bytes=memory + MIB, other_swap_bytes=swap)))

    assert bool(tight) == (used > memory + swap)
    assert len(wide) <= len(tight)
