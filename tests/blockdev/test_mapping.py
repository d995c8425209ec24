"""Mapping, committing and recalling over a real engine."""

import asyncio
import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping import mapper as mapper_module
from farside.blockdev.mapping.reconcile import reconcile
from farside.blockdev.mapping.table import Slab
from farside.errors import Unavailable
from farside.kmod_shim.engine.binding import DonorState, EventKind, Fault
from tests.blockdev.world import GRANULE_BYTES, PAGE, World, page
from tests.support.nbd_client import NbdClient


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, "replica")
    yield made
    made.close()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, "none")
    yield made
    made.close()


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[World]:
    """Donors hold all, besides the disk."""
    made = World(tmp_path, donors_hold="all")
    yield made
    made.close()


def fill(client: NbdClient, granule: int, pages: int = 64) -> None:
    data = b"".join(page(granule * 512 + n) for n in range(pages))
    client.write(granule * GRANULE_BYTES, data)


def is_intact(client: NbdClient, granule: int, pages: int = 64) -> bool:
    want = b"".join(page(granule * 512 + n) for n in range(pages))
    return client.read(granule * GRANULE_BYTES, pages * PAGE) == want


async def heat(world: World, client: NbdClient, *granules: int) -> None:
    for granule in granules:
        fill(client, granule)
    world.tick()
    await world.mapper.map_hot()


async def map_granule(world: World, granule: int) -> None:
    await world.mapper.add_mappings([granule], lacks=lambda _: True, banned=lambda _: frozenset())


async def resume(world: World, emptying: tuple[Slab, ...]) -> None:
    await world.recaller.resume(emptying, 1.0)
    for slab in emptying:
        await world.drained(slab.slab)


def test_a_cold_device_leases_nothing(world: World) -> None:
    world.add_donor()

    world.tick()
    asyncio.run(world.mapper.map_hot())

    assert world.table.slabs == {}


def test_what_a_broken_disk_refuses_gets_a_mapping_however_cold_it_is(world: World) -> None:
    world.add_donor()
    world.context.wanted.add(7)
    world.tick()

    world.context.disk_refused_s = world.context.clock.now_s()
    asyncio.run(world.mapper.map_hot())

    assert list(world.table.mapped()) == [7]


def test_what_a_broken_disk_alone_has_is_placed_a_part_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapper_module, "GRANULES_AT_ONCE", 3)
    world.add_donor()
    world.context.wanted.update(range(5))
    world.context.disk_refused_s = world.context.clock.now_s()

    for mapped in (3, 5):
        asyncio.run(world.mapper.map_hot())
        assert len(list(world.table.mapped())) == mapped


def test_granules_that_are_used_share_one_slab_wherever_they_lie(world: World) -> None:
    donor = world.add_donor()

    asyncio.run(heat(world, world.connect(), 0, 9, 17, 30))

    assert [(slab.donor, slab.used) for slab in world.table.slabs.values()] == [(donor, 4)]
    world.check()


def test_what_is_written_after_mapping_is_remote(world: World) -> None:
    world.add_donor()
    client = world.connect()
    asyncio.run(heat(world, client, 3))

    fill(client, 3)

    assert world.engine.cluster_count(3) == (64, 64)
    assert is_intact(client, 3)


def test_slabs_spread_over_donors_without_one_first(world: World) -> None:
    donors = {world.add_donor() for _ in range(3)}

    asyncio.run(heat(world, world.connect(), *range(12)))

    assert {slab.donor for slab in world.table.slabs.values()} == donors
    assert len(world.table.slabs) == 3
    world.check()


def test_a_donor_that_does_not_answer_is_gone_round(world: World) -> None:
    silent, other = world.add_donor(), world.add_donor(used=90)
    world.donors.by_number[silent].answers = False

    asyncio.run(heat(world, world.connect(), 1))

    assert [slab.donor for slab in world.table.slabs.values()] == [other]


def test_without_room_anywhere_the_disk_serves(world: World) -> None:
    world.add_donor(room=0)
    client = world.connect()

    asyncio.run(heat(world, client, 1))

    assert world.table.slabs == {}
    assert is_intact(client, 1)


def test_who_has_nothing_is_not_asked_again_and_again(world: World) -> None:
    donor = world.add_donor(room=0)
    client = world.connect()

    asyncio.run(heat(world, client, 1))
    asked = world.donors.by_number[donor].asked
    asyncio.run(heat(world, client, 1))

    assert world.donors.by_number[donor].asked == asked


def test_a_donor_that_tells_of_new_room_is_asked_at_once(world: World) -> None:
    donor = world.add_donor(room=0)
    client = world.connect()

    asyncio.run(heat(world, client, 1))
    world.donors.by_number[donor].room = 1
    asyncio.run(heat(world, client, 1))

    assert list(world.table.mapped()) == [1]


def test_a_recall_asks_for_room_although_all_have_just_refused(world: World) -> None:
    first, second = world.add_donor(room=1), world.add_donor(room=0)
    client = world.connect()

    async def body() -> None:
        await heat(world, client, *range(5))
        fill(client, 0)
        world.donors.by_number[second].unheard = 4
        await heat(world, client, *range(5))  # all of them are quiet towards the mapper
        await world.recaller.migrate(first, (0,), 5.0)
        await world.drained(0)

    asyncio.run(body())

    assert {slab.donor for slab in world.table.slabs.values()} == {second}


@pytest.mark.parametrize("part", ["add_slab", "save"])
def test_a_lease_that_the_table_has_no_room_for_goes_back(
    world: World, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = world.add_donor()
    client = world.connect()
    asyncio.run(heat(world, client))
    fds = len(os.listdir("/proc/self/fd"))

    def no_room(**_: int) -> Slab:
        raise Unavailable("no room") if part == "add_slab" else OSError(28, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(world.table, part, no_room)
        with contextlib.suppress(OSError):
            asyncio.run(world.leaser.lease_slab(region=0))

    assert world.donors.by_number[donor].told_release == [0]
    assert world.donors.by_number[donor].leases == {}
    assert world.table.slabs == {}
    assert len(os.listdir("/proc/self/fd")) == fds


def test_without_a_disk_a_donor_is_left_only_when_there_is_room_for_all_of_a_slab(bare: World) -> None:
    first = bare.add_donor()
    client = bare.connect()

    async def body() -> None:
        await map_granule(bare, 3)
        fill(client, 3)
        second = bare.add_donor(room=0)
        leaving = asyncio.create_task(bare.recaller.move_away(first, bare.table.slabs_of(first)))
        await bare.until(lambda: bare.donors.by_number[second].asked)
        assert not bare.context.slab_drains
        bare.donors.by_number[second].room = 1
        await bare.drained(0)
        await leaving

    asyncio.run(body())

    assert [slab.donor for slab in bare.table.slabs.values()] == [first + 1]
    assert bare.table.counters.lost_pages == 0
    assert is_intact(client, 3)


def test_a_trimmed_granules_extent_is_free_again(world: World) -> None:
    world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 5)
        client.trim(5 * GRANULE_BYTES, GRANULE_BYTES)
        await world.event(EventKind.CLUSTER_FREE, 5)
        world.mapper.unmap(5)
        world.mapper.unmap(5)
        event = await world.event(EventKind.CLUSTER_DRAINED, 5)
        world.context.granule_drains.discard((event.a, event.b))
        world.table.give(event.a, event.b)

    asyncio.run(body())

    assert list(world.table.mapped()) == []
    world.check()


def test_an_empty_slab_goes_back_with_release(world: World) -> None:
    donor = world.add_donor()

    async def body() -> None:
        await heat(world, world.connect(), 5)
        world.recaller.drain(world.table.slabs[0], deadline_s=1.0)
        await world.drained(0)

    asyncio.run(body())

    assert world.table.slabs == {}
    assert world.donors.by_number[donor].told_release == [0]


def test_a_recalled_slab_moves_to_another_donor(world: World) -> None:
    first = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 1, 2)
        fill(client, 1)
        fill(client, 2)
        world.add_donor()
        await world.recaller.migrate(first, (0,), 5.0)
        await world.drained(0)

    asyncio.run(body())

    assert world.donors.by_number[first].told_done == [(0, 128, 0)]
    assert {slab.donor for slab in world.table.slabs.values()} == {first + 1}
    assert world.engine.cluster_count(1) == (64, 64)
    assert is_intact(client, 1)
    assert is_intact(client, 2)
    assert world.table.counters.migrated_pages == 128
    assert (world.table.counters.migrations, world.table.counters.evictions) == (1, 0)
    world.check()


@pytest.mark.parametrize("room", [8, 2])
def test_a_recall_of_several_slabs_asks_for_all_the_room_that_it_needs_at_once(world: World, room: int) -> None:
    """It leased one slab after the other, and planned all anew for each: a job waited for all these answers."""
    first = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, *range(12))
        for granule in range(12):
            fill(client, granule)
        leases = tuple(slab.lease for slab in world.table.slabs_of(first))
        assert leases == (0, 1, 2)
        second = world.add_donor(room=room)
        gate = world.donors.by_number[second].gate = asyncio.Event()
        recall = asyncio.create_task(world.recaller.migrate(first, leases, 60.0))
        await world.until(lambda: world.donors.by_number[second].waiting == 3)
        gate.set()
        await recall
        for slab in (0, 1, 2):
            await world.drained(slab)

    asyncio.run(body())

    moved = min(room, 3)
    assert len(world.table.slabs) == moved
    assert world.table.counters.migrated_pages == moved * 4 * 64
    assert world.table.counters.dropped_pages == (3 - moved) * 4 * 64
    assert all(is_intact(client, granule) for granule in range(12))
    world.check()


def test_a_recalled_slab_falls_to_disk_where_nobody_has_room(world: World) -> None:
    donor = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 1)
        fill(client, 1)
        await world.recaller.migrate(donor, (0,), 1.0)
        await world.drained(0)

    asyncio.run(body())

    assert world.donors.by_number[donor].told_done == [(0, 0, 64)]
    assert is_intact(client, 1)
    assert world.table.counters.dropped_pages == 64


def test_an_evicted_slab_falls_to_disk_at_once(world: World) -> None:
    donor, _ = world.add_donor(), world.add_donor(used=99)
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 1)
        fill(client, 1)
        slab = world.table.slabs[0]
        assert slab.donor == donor
        await world.recaller.evict(donor, (0,), 0.5)
        await world.drained(0)

    asyncio.run(body())

    assert world.donors.by_number[donor].told_done[0][1] == 0
    assert world.table.counters.evictions == 1
    assert is_intact(client, 1)


def test_an_eviction_ends_a_migration_that_takes_too_long(world: World) -> None:
    donor = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, *range(4))
        for granule in range(4):
            fill(client, granule)
        world.engine.fault_set(donor, Fault.DELAY, 1, 200_000)
        await world.recaller.migrate(donor, (0,), 60.0)
        await world.recaller.evict(donor, (0,), 0.5)
        await world.drained(0)

    asyncio.run(body())

    assert [lease for lease, _, _ in world.donors.by_number[donor].told_done] == [0]
    assert all(is_intact(client, granule) for granule in range(4))
    assert world.table.slabs == {}
    assert (world.table.counters.migrations, world.table.counters.evictions) == (0, 1)


def test_a_drain_is_never_given_more_time_than_it_had(world: World) -> None:
    donor = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, *range(4))
        for granule in range(4):
            fill(client, granule)
        world.add_donor()
        world.engine.fault_set(donor, Fault.DELAY, 1, 200_000)
        await world.recaller.migrate(donor, (0,), 60.0)
        slab = world.table.slabs[0]
        world.recaller.drain(slab, deadline_s=0.5)
        before = world.context.slab_drains[0]
        world.recaller.drain(slab, deadline_s=60.0)
        assert world.context.slab_drains[0] == before
        await world.drained(0)

    asyncio.run(body())

    assert all(is_intact(client, granule) for granule in range(4))


def test_recalling_what_is_not_ours_is_done_at_once(world: World) -> None:
    donor = world.add_donor()

    async def body() -> None:
        await world.recaller.migrate(donor, (77,), 5.0)
        await world.until(lambda: world.donors.by_number[donor].told_done == [(77, 0, 0)])

    asyncio.run(body())


def test_a_slab_that_comes_under_the_number_of_a_recalled_one_is_not_emptied(bare: World) -> None:
    first = bare.add_donor(room=1)
    client = bare.connect()

    async def body() -> None:
        await map_granule(bare, 3)
        second = bare.add_donor(room=4)
        gate = bare.donors.by_number[second].gate = asyncio.Event()
        recall = asyncio.create_task(bare.recaller.migrate(first, (0,), 5.0))
        await bare.until(lambda: bare.donors.by_number[second].waiting)
        bare.donors.by_number[second].gate = None
        bare.lose_donor(first)
        await bare.drained(0)
        await map_granule(bare, 5)
        fill(client, 5)
        gate.set()
        await recall
        assert bare.table.slabs[0].donor == second
        assert not bare.table.slabs[0].draining
        assert not bare.context.slab_drains

    asyncio.run(body())

    assert is_intact(client, 5)


def test_a_recall_that_could_not_be_planned_still_empties_the_slab(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.add_donor()
    client = world.connect()

    async def no_lease(donor: int) -> Grant:
        raise OSError(28, "no room for the table")

    async def body() -> None:
        await heat(world, client, 1)
        fill(client, 1)
        world.add_donor()
        monkeypatch.setattr(world.donors, "lease", no_lease)
        await world.recaller.migrate(first, (0,), 5.0)
        await world.drained(0)

    asyncio.run(body())

    assert [lease for lease, _, _ in world.donors.by_number[first].told_done] == [0]
    assert is_intact(client, 1)


def test_a_lost_donors_granules_come_from_disk_and_are_mapped_again(world: World) -> None:
    lost = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 1)
        fill(client, 1)
        client.flush()
        world.lose_donor(lost)
        await world.drained(0)
        assert is_intact(client, 1)
        world.add_donor()
        await heat(world, client, 1)
        fill(client, 1)

    asyncio.run(body())

    assert [slab.donor for slab in world.table.slabs.values()] == [lost + 1]
    assert world.engine.cluster_count(1) == (64, 64)
    assert is_intact(client, 1)
    world.check()


def test_a_device_with_replicas_is_offered_once_all_of_it_has_two_mappings(twins: World) -> None:
    twins.add_donor()

    asyncio.run(twins.committer.restore())
    before = twins.committer.complete
    twins.add_donor()
    asyncio.run(twins.committer.restore())

    assert not before
    assert twins.committer.complete
    assert all(len(twins.mappings(granule)) == 2 for granule in range(32))
    twins.check()


def test_replicas_are_never_promised_beyond_what_donors_have(twins: World) -> None:
    twins.add_donor(room=8)
    twins.add_donor(room=7)

    asyncio.run(twins.committer.restore())

    assert not twins.committer.complete
    assert len(twins.table.slabs) == 15
    twins.check()


def test_a_lost_replica_is_made_again_on_a_third_donor(twins: World) -> None:
    lost = twins.add_donor()
    twins.add_donor()

    async def body() -> None:
        await twins.committer.restore()
        client = twins.connect()
        fill(client, 4)
        twins.add_donor()
        twins.lose_donor(lost)
        twins.context.deficient.update(range(32))
        await twins.committer.restore()
        for number in [slab.slab for slab in twins.table.slabs_of(lost)]:
            await twins.drained(number)
        await twins.healed()
        assert is_intact(client, 4)

    asyncio.run(body())

    assert twins.table.slabs_of(lost) == ()
    assert all(len(twins.mappings(granule)) == 2 for granule in range(32))
    twins.check()


def test_two_mappings_never_meet_on_one_donor_when_a_recall_overtakes_the_committer(twins: World) -> None:
    first, second = twins.add_donor(), twins.add_donor()

    async def body() -> None:
        await twins.committer.restore()
        third = twins.add_donor()
        gate = twins.donors.by_number[third].gate = asyncio.Event()
        twins.lose_donor(second)
        for slab in twins.table.slabs_of(second):
            await twins.drained(slab.slab)
        twins.context.deficient.update(range(32))
        restoring = asyncio.create_task(twins.committer.restore())
        await twins.until(lambda: twins.donors.by_number[third].waiting)
        leases = tuple(slab.lease for slab in twins.table.slabs_of(first))
        recall = asyncio.create_task(twins.recaller.migrate(first, leases, 5.0))
        await twins.until(lambda: twins.donors.by_number[third].waiting >= 2)
        gate.set()
        await asyncio.gather(restoring, recall)

    asyncio.run(body())

    for granule in range(32):
        donors = [twins.table.slabs[slab].donor for slab in twins.table.mappings(granule)]
        assert len(set(donors)) == len(donors)
        assert len(twins.table.live_mappings(granule)) <= 2


def test_a_recalled_replica_moves_and_stays_apart_from_its_twin(twins: World) -> None:
    first = twins.add_donor()
    twins.add_donor()

    async def body() -> None:
        await twins.committer.restore()
        client = twins.connect()
        fill(client, 0)
        twins.add_donor()
        slab = twins.table.slabs_of(first)[0]
        await twins.recaller.evict(first, (slab.lease,), 2.0)
        await twins.drained(slab.slab)
        assert is_intact(client, 0)

    asyncio.run(body())

    assert all(len(twins.mappings(granule)) == 2 for granule in range(32))
    twins.check()


def test_where_donors_hold_all_a_device_is_offered_at_once_and_every_granule_gets_a_mapping(safe: World) -> None:
    safe.add_donor()

    assert safe.committer.complete
    asyncio.run(safe.committer.restore())

    assert all(len(safe.mappings(granule)) == 1 for granule in range(32))
    safe.check()


def test_where_donors_hold_all_twice_every_granule_gets_mappings_at_two_donors(tmp_path: Path) -> None:
    world = World(tmp_path, donors_hold="twice")
    donors = {world.add_donor(), world.add_donor()}

    assert world.committer.complete
    asyncio.run(world.committer.restore())

    found = [{world.table.slabs[slab].donor for slab, _ in world.mappings(granule)} for granule in range(32)]
    world.check()
    world.close()
    assert found == [donors] * 32


def test_busy_granules_come_first_where_donors_have_no_room_for_all(safe: World) -> None:
    safe.add_donor(room=1)
    client = safe.connect()
    for granule in (16, 17, 18, 19):
        fill(client, granule)
    safe.tick()

    asyncio.run(safe.committer.restore())

    assert sorted(safe.table.mapped()) == [16, 17, 18, 19]


def test_donors_without_room_are_not_asked_every_second_for_what_they_should_hold(safe: World) -> None:
    donor = safe.add_donor(room=1)

    async def body() -> None:
        await safe.committer.restore()
        asked = safe.donors.by_number[donor].asked
        await safe.committer.restore()
        assert safe.donors.by_number[donor].asked == asked

    asyncio.run(body())


def test_what_a_lost_donor_held_is_held_by_another_without_being_written_again(safe: World) -> None:
    lost = safe.add_donor()
    client = safe.connect()

    async def body() -> None:
        await safe.committer.restore()
        fill(client, 4)
        client.flush()
        safe.lose_donor(lost)
        for slab in safe.table.slabs_of(lost):
            await safe.drained(slab.slab)
        safe.add_donor()
        safe.engine.lift_set(True)
        await safe.committer.restore()
        await safe.until(lambda: safe.engine.cluster_count(4) == (64, 64))

    asyncio.run(body())

    assert safe.engine.figures.pages_disk_alone() == 0
    assert is_intact(client, 4)
    assert all(len(safe.mappings(granule)) == 1 for granule in range(32))


def test_empty_granules_move_too_where_donors_hold_all(safe: World) -> None:
    first = safe.add_donor()

    async def body() -> None:
        await safe.committer.restore()
        second = safe.add_donor()
        slab = safe.table.slabs_of(first)[0]
        granules = safe.table.residents(slab.slab)
        await safe.recaller.migrate(first, (slab.lease,), 5.0)
        await safe.drained(slab.slab)
        assert {safe.table.slabs[n].donor for c in granules for n in safe.table.mappings(c)} == {second}

    asyncio.run(body())

    assert not any(map(safe.committer._lacks, range(32)))


@pytest.mark.parametrize("is_well", [True, False])
def test_an_evicted_slab_moves_to_another_donor_where_the_disk_fails(world: World, is_well: bool) -> None:
    first = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 1)
        fill(client, 1)
        client.flush()
        world.add_donor()
        world.context.disk_refused_s = -math.inf if is_well else world.context.clock.now_s()
        await world.recaller.evict(first, (0,), 5.0)
        await world.drained(0)

    asyncio.run(body())

    assert world.engine.cluster_count(1) == (64, 0 if is_well else 64)
    assert is_intact(client, 1)


def test_an_evicted_slab_moves_to_another_donor_where_donors_hold_all(safe: World) -> None:
    first = safe.add_donor()
    client = safe.connect()

    async def body() -> None:
        await safe.committer.restore()
        fill(client, 1)
        client.flush()
        safe.add_donor()
        slab, _ = safe.mappings(1)[0]
        await safe.recaller.evict(first, (safe.table.slabs[slab].lease,), 5.0)
        await safe.drained(slab)

    asyncio.run(body())

    assert safe.engine.figures.pages_disk_alone() == 0
    assert is_intact(client, 1)


def test_a_donor_that_left_is_emptied_only_into_other_donors_where_the_disk_fails(world: World) -> None:
    first = world.add_donor()
    client = world.connect()

    async def body() -> None:
        await heat(world, client, 3)
        fill(client, 3)
        world.context.disk_refused_s = world.context.clock.now_s()
        second = world.add_donor(room=0)
        leaving = asyncio.create_task(world.recaller.move_away(first, world.table.slabs_of(first)))
        await world.until(lambda: world.donors.by_number[second].asked)
        assert not world.context.slab_drains
        world.donors.by_number[second].room = 1
        await world.drained(0)
        await leaving

    asyncio.run(body())

    assert world.engine.cluster_count(3) == (64, 64)


def test_a_successor_finds_everything_where_it_was(world: World) -> None:
    donor = world.add_donor()
    client = world.connect()
    asyncio.run(heat(world, client, 1, 9))
    fill(client, 1)

    world.succeed()
    reconcile(world.context, world.recaller)

    assert sorted(world.table.mapped()) == [1, 9]
    assert world.table.slabs[0].donor == donor
    assert world.engine.donor_get(donor) is DonorState.UP
    world.check()


def test_a_successor_drops_what_the_engine_was_never_told(world: World) -> None:
    donor = world.add_donor()
    asyncio.run(heat(world, world.connect(), 1))
    # Killed between saving and telling: a lease and a granule that the engine does not know.
    world.table.add_slab(donor=donor, lease=9, token=9, epoch=1, region=0)
    slab = world.table.slabs[0]
    slab.granules[slab.free[0]] = 20
    world.table.save()

    world.succeed()
    reconcile(world.context, world.recaller)

    assert list(world.table.mapped()) == [1]
    assert world.table.slabs[1].returned
    world.check()


def test_a_successor_goes_on_emptying_what_its_predecessor_had_begun(world: World) -> None:
    donor = world.add_donor()
    asyncio.run(heat(world, world.connect(), 1))
    world.table.slabs[0].draining = world.table.slabs[0].is_recalled = True
    world.table.save()

    world.succeed()
    world.engine.link_attach_shm(donor)
    asyncio.run(resume(world, reconcile(world.context, world.recaller)))

    assert world.table.slabs == {}
    assert [lease for lease, _, _ in world.donors.by_number[donor].told_done] == [0]
