"""One running device: what its own loops outlive."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from farside.blockdev import context as context_module
from farside.blockdev import device as device_module
from farside.blockdev.client.listener import Clients
from farside.blockdev.device import BlockDevice
from farside.blockdev.status import Reporter
from farside.blockdev.task import Tasks
from farside.clock import RealClock
from farside.daemon.control.keys import KeyRing
from farside.kmod_shim.engine.binding import DonorState, EngineEvent, EventKind, Fault
from tests.blockdev.world import PAGE, World, page
from tests.support.nbd_client import Command


@pytest.fixture(params=["hot"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(device_module, "TICK_S", 0.01)
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "peers.toml").touch()
    made = World(tmp_path, donors_hold=request.param)
    object.__setattr__(made.config, "peers_file", tmp_path / "peers.toml")
    yield made
    made.close()


def play(world: World, body: Callable[[BlockDevice], Coroutine[object, object, None]]) -> None:
    async def live() -> None:
        async with Tasks() as tasks:
            device = BlockDevice(
                config=world.config,
                engine=world.engine,
                table=world.table,
                keys=KeyRing(world.config.peers_file.with_name("key")),
                clock=RealClock(),
                tasks=tasks,
            )
            device.start()
            await body(device)
            asyncio.get_running_loop().remove_reader(world.engine.event_fd)

    asyncio.run(live())


class Flaky:
    """Calls that end in a fault nobody has thought of."""

    def __init__(self) -> None:
        self.calls = 0

    def now(self) -> None:
        self.calls += 1
        raise AssertionError("never thought of")

    async def soon(self) -> None:
        self.now()


def test_a_second_that_goes_wrong_is_not_the_last(world: World) -> None:
    flaky = Flaky()

    async def body(device: BlockDevice) -> None:
        device.tick = flaky.now  # type: ignore[method-assign]  # whatever may go wrong in there
        await world.until(lambda: flaky.calls >= 2)

    play(world, body)


def test_mapping_that_goes_wrong_is_tried_again(world: World) -> None:
    flaky = Flaky()

    async def body(device: BlockDevice) -> None:
        device._map_now = flaky.soon  # type: ignore[method-assign]  # whatever may go wrong in there
        await world.until(lambda: flaky.calls >= 2)

    play(world, body)


def lend(world: World, device: BlockDevice) -> int:
    """The device's donors are the world's, of which there is one more; its number."""
    donor = world.add_donor()
    device.context.donors = world.donors
    return donor


async def write_to_disk(world: World) -> bytes:
    """Pages that the disk alone has."""
    client = world.connect()
    client.write(0, data := b"".join(map(page, range(100))))
    await world.until(lambda: world.engine.figures.pages_disk_alone() == 100)
    return data


@pytest.mark.parametrize("world", ["all"], indirect=True)
def test_where_donors_hold_all_no_page_stays_on_the_disk_alone(world: World) -> None:
    async def body(device: BlockDevice) -> None:
        data = await write_to_disk(world)
        lend(world, device)
        await world.until(lambda: world.engine.figures.pages_disk_alone() == 0)
        os.ftruncate(world.disk_fd, 0)
        assert world.clients[0].read(0, len(data)) == data

    play(world, body)


@pytest.mark.parametrize("world", ["twice"], indirect=True)
def test_where_donors_hold_all_twice_what_the_disk_had_is_read_without_it_and_without_one_of_them(world: World) -> None:
    async def body(device: BlockDevice) -> None:
        data = await write_to_disk(world)
        first = lend(world, device)
        lend(world, device)
        await world.until(
            lambda: world.engine.figures.pages_disk_alone() == 0 and world.engine.figures.pages_single() == 0
        )
        os.ftruncate(world.disk_fd, 0)
        world.engine.donor_set(first, DonorState.FAILED)
        assert world.clients[0].read(0, len(data)) == data

    play(world, body)


def test_what_the_disk_alone_has_goes_to_donors_when_the_disk_begins_to_fail(world: World) -> None:
    async def body(device: BlockDevice) -> None:
        data = await write_to_disk(world)
        lend(world, device)
        device.context.wanted.clear()
        assert world.engine.cluster_count(0) == (100, 0)

        world.engine.disk_fault_set(Fault.ERROR, 1, 0)
        world.clients[0].error_of(Command.WRITE, 40 << 20, data=page(1))
        await world.until(lambda: world.engine.figures.pages_disk_alone() == 0)
        os.ftruncate(world.disk_fd, 0)
        assert world.clients[0].read(0, len(data)) == data

    play(world, body)


@pytest.mark.parametrize("world", ["all"], indirect=True)
def test_the_figures_say_where_the_pages_are_and_whether_the_disk_fails(world: World) -> None:
    async def body(device: BlockDevice) -> None:
        clients = Clients(world.engine, 1, hold=lambda worker, fd: None, forget=lambda worker: None)
        reporter = Reporter(device, clients, world.engine)

        def pages() -> tuple[int, int, bool]:
            told = reporter.pages()
            return told["pages_remote"], told["pages_disk_alone"], told["disk_failed"]

        await write_to_disk(world)
        assert pages() == (0, 100, False)
        lend(world, device)
        await world.until(lambda: pages() == (100, 0, False))
        world.clients[0].write(0, bytes(10 * PAGE))
        await world.until(lambda: pages() == (90, 0, False))
        assert sum(world.engine.cluster_count(granule)[1] for granule in range(4)) == 90

        world.engine.disk_fault_set(Fault.ERROR, 1, 0)
        world.clients[0].write(20 * PAGE, page(1))
        await world.until(lambda: pages() == (90, 0, True))
        told: Any = await reporter.figures({})
        assert sum(told["latency_buckets"]["write"]) == world.engine.stats().requests_write

    play(world, body)


def test_a_disk_that_can_not_be_read_has_begun_to_fail(world: World) -> None:
    async def body(device: BlockDevice) -> None:
        await write_to_disk(world)
        os.ftruncate(world.disk_fd, 50 * PAGE)
        assert world.clients[0].error_of(Command.READ, 60 * PAGE, PAGE)
        lend(world, device)
        await world.until(lambda: world.engine.figures.pages_disk_alone() == 50)

    play(world, body)


def test_a_disk_that_has_been_well_for_a_while_is_trusted_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(device: BlockDevice) -> None:
        world.engine.disk_fault_set(Fault.ERROR, 1, 0)
        world.connect().error_of(Command.WRITE, 0, data=page(1))
        await world.until(lambda: device._is_lifting)
        world.engine.disk_fault_set(Fault.ERROR, 0, 0)
        monkeypatch.setattr(context_module, "DISK_TRUSTED_S", 0.05)
        await world.until(lambda: not device._is_lifting)

    play(world, body)


def test_a_disk_that_nobody_asks_is_not_trusted_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "DISK_TRUSTED_S", 0.05)

    async def body(device: BlockDevice) -> None:
        client = world.connect()
        client.write(0, page(1))
        await world.until(lambda: world.engine.stats().pages_out_disk == 1 and device._pages_written == 1)
        device.events._on_disk_error(EngineEvent(kind=EventKind.DISK_ERROR, a=5))
        refused_s, seen = device.context.disk_refused_s, device._ticked_s
        await world.until(lambda: device.context.clock.now_s() - refused_s > 0.1 and device._ticked_s > seen)
        assert not device.context.is_disk_well

        client.write(PAGE, page(2))
        await world.until(lambda: device.context.is_disk_well)

    play(world, body)
