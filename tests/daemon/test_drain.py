"""A donor that is taken out for maintenance."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farside import admin
from farside.daemon.control import messages as m
from farside.errors import PeerError
from tests.daemon.plane import SLAB, Plane, running
from tests.support.programs import outcome
from tests.support.sandbox import farside

DEADLINE_S = 600.0


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path, settings={"preallocate_slabs": 2, "psi_full_pct_limit": 10.0})


def scenario(plane: Plane, body: Callable[[Plane], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running(plane):
            await body(plane)

    asyncio.run(whole())


async def drain(plane: Plane) -> dict[str, object]:
    told: dict[str, object] = await admin.ask(plane.folder / "admin.sock", "drain", deadline_s=DEADLINE_S)
    await plane.at_rest()
    return told


def test_a_drained_donor_asks_for_everything_and_lends_no_more(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        leases = await borrower.map(3)

        told = await drain(plane)

        assert (told["slabs"], told["slab_bytes"]) == (3, SLAB)
        notice = (await borrower.notice()).message
        assert isinstance(notice, m.Migrate)
        assert set(notice.leases) == {lease.lease for lease in leases}
        refusal = await borrower.ask(m.Map(device="swap", count=1))
        assert isinstance(refusal, m.Error)
        assert refusal.code == m.ErrorCode.NOT_NOW
        assert plane.status().memory.free_slabs == 0
        assert plane.status().slab_counts["ready"] == 0

    scenario(plane, body)


def test_it_is_empty_when_borrowers_have_moved(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        leases = await borrower.map(2)
        await drain(plane)
        for lease in leases:
            await borrower.ask(m.Done(lease=lease.lease))
        await plane.pass_time(2)

        status = plane.status()
        assert status.draining
        assert status.slabs == ()
        assert len(plane.memory.views) == 0
        assert status.sessions[0].connected

    scenario(plane, body)


def test_a_borrower_that_does_not_move_loses_its_slabs_at_the_deadline(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        await drain(plane)

        await plane.pass_time(20)
        assert plane.status().slab_counts["migrating"] == 2
        await plane.pass_time(DEADLINE_S + 5, step_s=5)

        assert plane.status().slabs == ()

    scenario(plane, body)


def test_shortage_of_memory_ends_the_time_to_move(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        await drain(plane)

        plane.tell_pressure(full_pct=50.0)
        await plane.pass_time(5)

        assert plane.status().slabs == ()

    scenario(plane, body)


def test_it_lends_again_when_it_is_told_to(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await drain(plane)

        await admin.ask(plane.folder / "admin.sock", "undrain")
        await plane.pass_time(2)

        assert plane.status().slab_counts["ready"] == 2
        assert len(await borrower.map(1)) == 1

    scenario(plane, body)


def test_a_donor_that_two_have_drained_lends_again_when_both_have_taken_it_back(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        socket = plane.folder / "admin.sock"
        borrower = await plane.borrower()
        await drain(plane)
        told = await admin.ask(socket, "drain", deadline_s=DEADLINE_S, by="manager")
        assert told["drained_by"] == ["operator", "manager"]

        told = await admin.ask(socket, "undrain", by="manager")
        assert (told["is_draining"], told["drained_by"]) == (True, ["operator"])
        assert isinstance(await borrower.ask(m.Map(device="swap", count=1)), m.Error)
        await admin.ask(socket, "undrain")

        assert len(await borrower.map(1)) == 1

    scenario(plane, body)


def test_who_drains_is_somebody_that_is_known(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        with pytest.raises(PeerError, match="by is 'me'"):
            await admin.ask(plane.folder / "admin.sock", "drain", deadline_s=1.0, by="me")
        assert not plane.status().draining

    scenario(plane, body)


@pytest.mark.parametrize("deadline_s", [-1, 1e9, "soon", True])
def test_a_deadline_that_is_none_is_refused(plane: Plane, deadline_s: object) -> None:
    async def body(plane: Plane) -> None:
        with pytest.raises(PeerError, match="deadline_s is"):
            await admin.ask(plane.folder / "admin.sock", "drain", deadline_s=deadline_s)
        assert not plane.status().draining

    scenario(plane, body)


def test_the_command_says_that_nobody_is_there(tmp_path: Path) -> None:
    done = outcome(farside("daemon", "drain", "--socket", str(tmp_path / "none")))

    assert done.status == 1
    assert "no process answers there" in done.stderr
