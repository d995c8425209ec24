"""A donor that lends no more because its node is to sleep: told by the agent, a real donor, on its admin socket."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from farside import admin
from farside.agent import messages as m
from farside.agent.service.donor import DonorSense
from farside.daemon.control import messages as d
from tests.daemon.plane import Borrower, Plane, running, settled
from tests.support.virtual_clock import VirtualClock

MOVE_S = 600.0
Story = Callable[[Plane, Borrower, DonorSense], Awaitable[None]]


def scenario(folder: Path, story: Story) -> None:
    async def whole() -> None:
        plane = Plane(folder)
        async with running(plane):
            borrower = await plane.borrower()
            await story(plane, borrower, DonorSense(folder / "admin.sock", control="", clock=plane.clock))

    asyncio.run(whole())


def closed_by(number: int) -> m.DonorOrder:
    return m.DonorOrder(closed_by=number, deadline_s=MOVE_S)


async def drained(sense: DonorSense) -> m.Drained | None:
    found = (await sense.read()).drained
    await settled()
    return found


def test_a_donor_whose_node_is_to_sleep_lends_no_more_and_says_what_is_left(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        leases = await borrower.map(2)
        assert (await sense.read()).loans == (m.Loan(borrower="b1", bytes=2 * plane.status().slab_bytes, slabs=2),)
        assert await drained(sense) is None

        sense.lend(closed_by(7))

        assert await drained(sense) == m.Drained(number=7, slabs=2)
        assert isinstance((await borrower.notice()).message, d.Migrate)
        assert isinstance(await borrower.ask(d.Map(device="swap", count=1)), d.Error)
        for lease in leases:
            await borrower.ask(d.Done(lease=lease.lease))
        assert await drained(sense) == m.Drained(number=7, slabs=0)

        sense.lend(closed_by(0))
        assert await drained(sense) is None
        assert len(await borrower.map(1)) == 1

    scenario(tmp_path, story)


def test_a_donor_that_was_started_again_is_told_again(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        sense.lend(closed_by(3))
        await drained(sense)
        assert plane.donor.lender is not None
        plane.donor.lender.drained_by = ()  # as one that has just been started

        assert await drained(sense) == m.Drained(number=3, slabs=0)
        assert plane.status().drained_by == ("manager",)

    scenario(tmp_path, story)


def test_what_an_operator_has_drained_stays_so_when_the_node_need_not_sleep_any_more(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        await admin.ask(tmp_path / "admin.sock", "drain", deadline_s=MOVE_S)
        sense.lend(closed_by(3))
        await drained(sense)

        sense.lend(closed_by(0))
        await drained(sense)

        assert plane.status().drained_by == ("operator",)

    scenario(tmp_path, story)


def test_a_node_without_a_donor_is_closed_at_once_and_one_whose_donor_does_not_answer_is_not(tmp_path: Path) -> None:
    async def story() -> None:
        clock = VirtualClock()
        dead, silent = tmp_path / "dead.sock", tmp_path / "silent.sock"
        with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as listener:
            gone.bind(str(dead))  # a donor that was killed leaves its socket's file
            listener.bind(str(silent))
            listener.listen()
            senses = [DonorSense(path, control="", clock=clock) for path in (None, tmp_path / "none", dead, silent)]
            for sense in senses:
                sense.lend(closed_by(5))
            found = [(await sense.read()).drained for sense in senses]

        assert found == [*[m.Drained(number=5, slabs=0)] * 3, None]

    asyncio.run(story())
