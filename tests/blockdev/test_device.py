"""One running device: what its own loops outlive."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from farside.blockdev import device as device_module
from farside.blockdev.device import BlockDevice
from farside.blockdev.task import Tasks
from farside.clock import RealClock
from farside.daemon.keys import KeyRing
from tests.blockdev.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(device_module, "TICK_S", 0.01)
    (tmp_path / "key").write_text("00" * 32)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "peers.toml").touch()
    made = World(tmp_path)
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
