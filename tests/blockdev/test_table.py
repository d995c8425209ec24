"""The slab table."""

import os
from collections.abc import Iterator

import msgspec
import pytest

from farside.blockdev.mapping.activity import Assignment
from farside.blockdev.mapping.table import Slab, Table
from farside.blockdev.state import StateFile, control_bytes
from farside.errors import Unavailable
from farside.geometry import SLABS_MAX


@pytest.fixture
def file() -> Iterator[StateFile]:
    fd = os.memfd_create("control")
    os.truncate(fd, 1 << 20)
    yield StateFile(fd)
    os.close(fd)


def table(file: StateFile) -> Table:
    return Table(file, extents=4)


def with_slab(file: StateFile, donor: str = "d1", lease: int = 3) -> Table:
    made = table(file)
    made.add_slab(donor=made.donor(donor).donor, lease=lease, token=99, epoch=1, region=0)
    return made


def take(made: Table, granule: int, slab: int, extent: int) -> None:
    made.take([Assignment(granule=granule, slab=slab, extent=extent)])


def test_a_donor_keeps_its_number(file: StateFile) -> None:
    made = table(file)
    first, second = made.donor("d1").donor, made.donor("d2").donor
    made.save()

    again = table(file)

    assert (again.donor("d2").donor, again.donor("d1").donor) == (second, first)
    assert again.node(second) == "d2"


def test_what_was_saved_is_there_again(file: StateFile) -> None:
    made = with_slab(file)
    take(made, 7, 0, 2)
    made.counters.migrations = 5
    made.save()

    again = table(file)

    assert again.mappings(7) == {0: 2}
    assert again.slabs[0] == made.slabs[0]
    assert again.counters.migrations == 5


def test_what_was_not_saved_is_not(file: StateFile) -> None:
    made = with_slab(file)
    made.save()
    take(made, 7, 0, 2)

    assert table(file).mappings(7) == {}


def test_an_extent_is_free_again_after_give(file: StateFile) -> None:
    made = with_slab(file)
    take(made, 7, 0, 2)

    made.give(7, 0)
    made.give(7, 0)

    assert made.slabs[0].free == (0, 1, 2, 3)
    assert list(made.mapped()) == []


def test_a_full_or_draining_slab_is_not_offered(file: StateFile) -> None:
    made = with_slab(file)
    for extent in range(4):
        take(made, extent, 0, extent)

    assert made.open_views() == ()
    made.give(2, 0)
    assert [view.free for view in made.open_views()] == [(2,)]
    made.slabs[0].draining = True
    assert made.open_views() == ()


def test_a_dropped_slab_takes_its_granules_mappings_along(file: StateFile) -> None:
    made = with_slab(file)
    made.add_slab(donor=made.donor("d2").donor, lease=1, token=1, epoch=1, region=0)
    take(made, 7, 0, 2)
    take(made, 7, 1, 0)

    made.drop_slab(0)

    assert made.mappings(7) == {1: 0}


def test_slab_numbers_are_used_again(file: StateFile) -> None:
    made = with_slab(file)
    made.drop_slab(0)

    assert made.add_slab(donor=0, lease=8, token=1, epoch=2, region=0).slab == 0


def full(file: StateFile) -> Table:
    made = table(file)
    for number in range(SLABS_MAX):
        made.slabs[number] = Slab(
            slab=number, donor=255, lease=number, token=2**64 - 1, epoch=2**32 - 1, region=2**31,
            granules=[2**23 - 1] * 4, draining=True, failed=True, is_recalled=True, evicted=True, returned=True,
        )  # fmt: skip
    return made


def test_there_is_room_for_as_many_slabs_as_the_engine_knows() -> None:
    fd = os.memfd_create("control")
    os.truncate(fd, control_bytes(extents=4))
    full(StateFile(fd)).save()

    again = table(StateFile(fd))

    assert len(again.slabs) == SLABS_MAX
    os.close(fd)


def test_one_slab_more_than_that_is_refused(file: StateFile) -> None:
    made = full(file)

    assert made.is_full
    with pytest.raises(Unavailable):
        made.add_slab(donor=0, lease=8, token=1, epoch=2, region=0)


def test_live_mappings_are_those_on_slabs_that_stay(file: StateFile) -> None:
    made = with_slab(file)
    made.add_slab(donor=1, lease=1, token=1, epoch=1, region=0)
    take(made, 7, 0, 2)
    take(made, 7, 1, 0)

    made.slabs[0].draining = True

    assert [slab.slab for slab in made.live_mappings(7)] == [1]
    assert made.residents(0) == (7,)


def test_a_donors_lease_is_found_by_its_number(file: StateFile) -> None:
    made = with_slab(file, lease=3)

    found = made.slab_by_lease(0, 3)

    assert found is not None
    assert found.slab == 0
    assert made.slab_by_lease(0, 4) is None


def test_another_version_finds_the_names_it_knows_in_what_was_saved(file: StateFile) -> None:
    made = with_slab(file)
    made.save()

    saved = msgspec.msgpack.decode(file.read() or b"")

    assert saved.keys() >= {"donors", "slabs", "counters", "committed", "peers", "totals", "range_rates", "slab_rates"}
    assert saved["slabs"][0].keys() >= {"slab", "donor", "lease", "home_range", "clusters", "told", "returned"}
