"""A donor that is told the most that it may lend, beside its settings."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside import admin
from farside.daemon.control import messages as m
from farside.errors import PeerError
from tests.daemon.plane import SLAB, Borrower, Plane, running

DEADLINE_S = 600.0


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path, settings={"preallocate_slabs": 2, "psi_full_pct_limit": 10.0})


def scenario(plane: Plane, body: Callable[[Plane], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running(plane):
            await body(plane)

    asyncio.run(whole())


async def limit(plane: Plane, slabs: int | None, seconds: float = 2.0) -> None:
    """Told, and the donor has had its next look at memory."""
    await admin.ask(
        plane.folder / "admin.sock", "limit", bytes=None if slabs is None else slabs * SLAB, deadline_s=DEADLINE_S
    )
    await plane.pass_time(seconds)


async def done(borrower: Borrower, leases: tuple[int, ...]) -> None:
    for lease in leases:
        await borrower.ask(m.Done(lease=lease))


def test_what_is_lent_beyond_the_limit_goes_back_and_no_more_is_lent(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        leases = {lease.lease for lease in await borrower.map(5)}

        await limit(plane, 3)

        check = await borrower.notice()
        asked = check.message
        assert isinstance(asked, m.CheckActivity)
        recalled = (await borrower.notice()).message
        assert isinstance(recalled, m.Migrate)
        assert len(recalled.leases) == 2
        assert set(recalled.leases) <= leases
        await done(borrower, recalled.leases)
        await plane.pass_time(2)
        status = plane.status()
        assert (status.slab_counts["lent"], status.slab_counts["ready"]) == (3, 0)
        assert (status.memory.free_slabs, status.memory.limit_bytes) == (0, 3 * SLAB)
        assert isinstance(await borrower.ask(m.Map(device="swap", count=1)), m.Error)

    scenario(plane, body)


def test_a_limit_is_kept_at_once_and_not_at_the_next_look_at_memory(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)

        await admin.ask(plane.folder / "admin.sock", "limit", bytes=0, deadline_s=DEADLINE_S)

        async with asyncio.timeout(30):
            recalled = (await borrower.notice()).message
        assert isinstance(recalled, m.Migrate)
        assert len(recalled.leases) == 2

    scenario(plane, body)


def test_off_gives_everything_back_with_its_memory_and_on_lends_again(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        await limit(plane, 0)
        recalled = (await borrower.notice()).message
        assert isinstance(recalled, m.Migrate)
        await done(borrower, recalled.leases)
        await plane.pass_time(2)

        assert plane.status().slabs == ()
        assert len(plane.memory.views) == 0
        assert not plane.status().draining

        await limit(plane, None)
        assert plane.status().slab_counts["ready"] == 2
        assert len(await borrower.map(3)) == 3

    scenario(plane, body)


def test_a_borrower_that_does_not_move_loses_its_slabs_at_the_deadline(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        await limit(plane, 0, 20)
        assert plane.status().slab_counts["migrating"] == 2

        await plane.pass_time(DEADLINE_S + 5, step_s=5)

        assert plane.status().slabs == ()

    scenario(plane, body)


def test_shortage_of_memory_comes_before_the_time_to_move(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        await limit(plane, 0)

        plane.tell_pressure(full_pct=50.0)
        await plane.pass_time(5)

        assert plane.status().slabs == ()

    scenario(plane, body)


def test_a_limit_is_no_promise_of_memory_that_is_not_there(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        before = plane.status().memory.free_slabs

        await limit(plane, 10_000)

        assert plane.status().memory.free_slabs == before

    scenario(plane, body)


@pytest.mark.parametrize(("limit_bytes", "slabs"), [(SLAB - 1, 0), (2 * SLAB + 1, 2)])
def test_a_limit_counts_in_whole_slabs_and_less_than_one_lends_nothing(
    plane: Plane, limit_bytes: int, slabs: int
) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await admin.ask(plane.folder / "admin.sock", "limit", bytes=limit_bytes)
        await plane.pass_time(2)

        answer = await borrower.ask(m.Map(device="swap", count=5))

        assert plane.status().memory.limit_bytes == limit_bytes
        assert (len(answer.leases) if isinstance(answer, m.MrInfo) else 0) == slabs

    scenario(plane, body)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"bytes": -1}, "bytes is -1"),
        ({"bytes": 2**63}, "bytes is"),
        ({"bytes": "much"}, "bytes is not a whole number"),
        ({"bytes": True}, "bytes is not a whole number"),
        ({"bytes": 0, "deadline_s": "soon"}, "deadline_s is not"),
        ({"bytes": 0, "deadline_s": -1}, "deadline_s is -1"),
    ],
)
def test_what_is_no_limit_is_refused_and_changes_nothing(plane: Plane, arguments: dict[str, object], line: str) -> None:
    async def body(plane: Plane) -> None:
        with pytest.raises(PeerError, match=line):
            await admin.ask(plane.folder / "admin.sock", "limit", **arguments)  # type: ignore[arg-type]
        assert plane.status().memory.limit_bytes is None

    scenario(plane, body)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("limit"), st.one_of(st.none(), st.integers(0, 6))),
        st.tuples(st.sampled_from(("map", "done")), st.integers(1, 4)),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=6)
@given(_STEPS)
def test_whatever_is_asked_no_more_stays_lent_than_the_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int | None]]
) -> None:
    async def body(plane: Plane) -> None:
        borrower, most = await plane.borrower(), None
        for what, number in steps:
            if what == "limit":
                most = number
                await limit(plane, most)
            elif what == "map" and number is not None:
                before = plane.status().slab_counts
                lent_before = sum(before.values()) - before["ready"]
                answer = await borrower.ask(m.Map(device="swap", count=number))
                got = len(answer.leases) if isinstance(answer, m.MrInfo) else 0
                assert most is None or got == 0 or lent_before + got <= most
            else:
                going = [one.lease for one in plane.status().slabs if one.state in ("migrating", "evicting")]
                await done(borrower, tuple(lease for lease in going[:number] if lease is not None))
            await plane.pass_time(2)
            counts = plane.status().slab_counts
            assert most is None or counts["lent"] <= most
            out = sum(counts.values()) - counts["ready"]
            assert most is None or plane.status().memory.free_slabs <= max(0, most - out)

    scenario(Plane(tmp_path_factory.mktemp("donor")), body)
