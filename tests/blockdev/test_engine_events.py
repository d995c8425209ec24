"""Which damaged copies count against the donor that had them [H1]."""

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from farside.blockdev.context import Context
from farside.blockdev.donor.donors import DonorList
from farside.blockdev.engine_events import EngineEvents
from farside.blockdev.mapping.activity import Assignment
from farside.blockdev.mapping.mapper import Mapper
from farside.blockdev.mapping.recall import Recaller
from farside.blockdev.task import Tasks
from farside.kmod_shim.engine.binding import EngineEvent, EventKind
from tests.blockdev.test_donor import Scene


@pytest.mark.parametrize(
    ("control", "is_evicted", "is_empty", "counted"),
    [
        ("unix:/x", False, False, 1),  # it wants the slab back, and has changed a page of it
        ("unix:/x", False, True, 1),  # it asked for the slab politely, and has taken a page already
        ("unix:/x", True, False, 1),  # memory that was taken back is zeros and nothing else
        ("tcp:127.0.0.1:1", True, True, 1),  # over a network it would have refused
        ("unix:/x", True, True, 0),  # it waited for the slab in vain
    ],
)
def test_damage_in_a_slab_that_its_donor_wants_back_counts_unless_the_donor_has_taken_it(
    tmp_path: Path, control: str, is_evicted: bool, is_empty: bool, counted: int
) -> None:
    """A donor that recalled its slabs damaged each page of them without being counted: it says when it recalls."""
    scene = Scene(tmp_path, transport="auto")
    peers = tmp_path / "peers.toml"
    peers.write_text(f'[[donor]]\nnode = "d1"\ncontrol = "{control}"\n')
    object.__setattr__(scene.parts.config, "peers_file", peers)
    record = scene.table.donor("d1")
    slab = scene.table.add_slab(donor=record.donor, lease=1, token=1, epoch=1, region=0)
    scene.table.take([Assignment(granule=0, slab=slab.slab, extent=0)])
    slab.draining = slab.is_recalled = True
    slab.evicted = is_evicted
    told = deque([EngineEvent(kind=EventKind.CHECKSUM, a=record.donor, b=0, c=int(is_empty))])
    engine = SimpleNamespace(event_next=lambda: told.popleft() if told else None)
    context = SimpleNamespace(engine=engine, table=scene.table, clock=scene.parts.clock)

    async def live() -> None:
        async with Tasks() as tasks:
            donors = DonorList(scene.parts, tasks)
            donors.start()
            EngineEvents(
                cast(Context, context), donors, cast(Mapper, None), cast(Recaller, None), map_soon=asyncio.Event()
            ).pump()

    asyncio.run(live())

    assert scene.table.damaged_pages.get("d1", 0) == counted
