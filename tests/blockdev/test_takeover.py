"""What a successor knows of the process before it."""

from dataclasses import replace
from pathlib import Path

import pytest

from farside.blockdev.device import BlockDevice
from farside.blockdev.mapping.activity import RegionState
from farside.cli.keygen import make_key
from farside.daemon.control.keys import KeyRing
from tests.blockdev.world import World
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    make_key(tmp_path / "key")
    return KeyRing(tmp_path / "key")


def device(world: World, keys: KeyRing) -> BlockDevice:
    """The device of a process that serves this world now, not started."""
    return BlockDevice(
        config=world.config,
        engine=world.engine,
        table=world.table,
        keys=keys,
        clock=VirtualClock(),
        tasks=world.tasks,
    )


def test_a_successor_knows_how_busy_regions_and_slabs_were(tmp_path: Path, keys: KeyRing) -> None:
    world = World(tmp_path)
    before = device(world, keys)
    rates = (5000.0, *before.context.activity.rates[1:])
    before.context.activity = replace(before.context.activity, rates=rates)
    before.context.slab_rates = {3: 700.0}

    before.save()
    world.succeed()
    after = device(world, keys)
    world.close()

    assert after.context.activity.rates == rates
    assert after.context.activity.states[:2] == (RegionState.HOT, RegionState.COLD)
    assert after.context.slab_rates == {3: 700.0}


def test_an_idle_device_saves_that_it_has_become_idle(tmp_path: Path, keys: KeyRing) -> None:
    world = World(tmp_path)
    busy = device(world, keys)
    busy.context.activity = replace(busy.context.activity, rates=(5000.0, *busy.context.activity.rates[1:]))
    busy.save()

    for _ in range(60):
        busy.tick()
    world.succeed()
    after = device(world, keys)
    world.close()

    assert after.context.activity.rates[0] < 1.0
