"""A donor that lends no more, or less, as a manager wants it: told by the agent, a real donor, on its admin socket."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farside import admin
from farside.agent import messages as m
from farside.agent.service import donor
from farside.agent.service.donor import DonorSense, Lent
from farside.agent.service.memory_rules import NO_RULES, MemoryRules
from farside.daemon.control import messages as d
from tests.agent.donor import DONOR
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


# ---- the most that it may lend


@pytest.mark.parametrize("answers", [0, 1])
def test_a_donor_that_is_too_late_to_say_what_it_has_lent_is_asked_again_soon_if_a_job_may_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """A busy one; the next look was a report's period later, and a job waited for that."""
    monkeypatch.setattr(donor, "ASK_LIMIT_S", 0.2)

    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        left = answers
        ask = admin.ask

        async def late(path: Path, command: str, **arguments: Any) -> Any:
            nonlocal left
            left -= 1
            return await ask(path if left >= 0 else silent, command, **arguments)

        await borrower.map(2)
        await sense.read()
        with socket.socket(socket.AF_UNIX) as listener:
            silent = tmp_path / "silent.sock"
            listener.bind(str(silent))
            listener.listen()
            with monkeypatch.context() as patched:
                patched.setattr(admin, "ask", late)
                await sense.read()
                nobody_waits = sense.is_recalling
                left = answers
                sense.lend(at_most(plane.status().slab_bytes))
                await sense.read()
            assert (nobody_waits, sense.is_recalling) == (False, True)
        sense.lend(at_most(None))
        await sense.read()
        assert not sense.is_recalling

    scenario(tmp_path, story)


def at_most(lend_bytes: int | None) -> m.DonorOrder:
    return m.DonorOrder(closed_by=0, deadline_s=MOVE_S, lend_bytes=lend_bytes)


def sense_of(folder: Path, plane: Plane, rules: MemoryRules = NO_RULES) -> DonorSense:
    return DonorSense(folder / "admin.sock", control="", clock=plane.clock, rules=rules)


async def limit_of(plane: Plane, sense: DonorSense) -> tuple[int | None, str]:
    """What the donor has, after the agent's next look, and why that is not what was ordered."""
    found = await sense.read()
    await settled()
    assert found.limit_bytes == plane.status().memory.limit_bytes
    return found.limit_bytes, found.limit_problem


def test_a_bound_is_told_to_the_donor_and_told_again_to_one_that_was_started_again(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        slab_bytes = plane.status().slab_bytes
        await borrower.map(2)

        sense.lend(at_most(slab_bytes))
        was_recalling = sense.is_recalling
        assert await limit_of(plane, sense) == (slab_bytes, "")
        assert (was_recalling, sense.is_recalling) == (False, True)
        await plane.pass_time(2)
        assert isinstance((await borrower.notice()).message, d.CheckActivity)
        assert isinstance((await borrower.notice()).message, d.Migrate)
        assert plane.donor.lender is not None
        plane.donor.lender.limit_bytes = None  # as one that has just been started
        assert await limit_of(plane, sense) == (slab_bytes, "")

        sense.lend(at_most(None))
        assert await limit_of(plane, sense) == (None, "")

    scenario(tmp_path, story)


def test_a_donor_that_may_lend_nothing_is_no_donor_to_borrow_from(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        sense = DonorSense(tmp_path / "admin.sock", control="tcp:10.0.0.1:7677", clock=plane.clock)
        await borrower.map(2)
        sense.lend(at_most(0))

        donor = (await sense.read()).donor

        assert donor is not None
        assert (donor.lends, donor.lasting(donor.control).capacity_bytes) == (False, 0)
        assert plane.status().drained_by == ()

    scenario(tmp_path, story)


def test_an_agent_that_was_started_again_undoes_no_bound_before_a_manager_has_spoken(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        slab_bytes = plane.status().slab_bytes
        sense.lend(at_most(3 * slab_bytes))
        await limit_of(plane, sense)

        anew, owner = sense_of(tmp_path, plane), sense_of(tmp_path, plane, MemoryRules(lend_bytes=slab_bytes))

        assert await limit_of(plane, anew) == (3 * slab_bytes, "")
        assert await limit_of(plane, owner) == (slab_bytes, "")
        anew.lend(at_most(None))
        assert await limit_of(plane, anew) == (None, "")

    scenario(tmp_path, story)


def test_the_owner_of_a_node_has_the_last_word_and_the_difference_is_told(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        slab_bytes = plane.status().slab_bytes
        bounded = sense_of(tmp_path, plane, MemoryRules(lend_bytes=slab_bytes))
        deaf = sense_of(tmp_path, plane, MemoryRules(orders="none"))

        bounded.lend(at_most(2 * slab_bytes))
        limit_bytes, why = await limit_of(plane, bounded)
        deaf.lend(at_most(0))
        unlimited, refused = await limit_of(plane, deaf)

        assert (limit_bytes, unlimited) == (slab_bytes, None)
        assert "in its agent.toml" in why
        refusal = msgspec.json.decode(deaf.facts(), type=m.DonorFacts).refusal
        assert refused == refusal == 'memory_orders is "none" in its agent.toml'

    scenario(tmp_path, story)


def test_a_bound_below_a_slab_is_taken_and_lends_nothing(tmp_path: Path) -> None:
    async def story(plane: Plane, borrower: Borrower, sense: DonorSense) -> None:
        sense = DonorSense(tmp_path / "admin.sock", control="tcp:10.0.0.1:7677", clock=plane.clock)
        await borrower.map(2)
        sense.lend(at_most(1))

        assert await limit_of(plane, sense) == (1, "")
        found = await sense.read()

        assert found.donor is not None
        assert found.lent is not None
        assert (found.donor.lends, found.lent.lendable_bytes) == (False, 0)
        assert isinstance(await borrower.ask(d.Map(device="swap", count=1)), d.Error)

    scenario(tmp_path, story)


def test_a_donor_of_the_version_before_takes_no_limit_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> Lent:
        sense = DonorSense(tmp_path / "d.sock", control="", clock=VirtualClock())
        sense.lend(at_most(0))
        async with admin.serve(tmp_path / "d.sock", {"status": told}):
            await sense.read()
            return await sense.read()

    async def told(_: object) -> object:
        return DONOR

    found = asyncio.run(run())
    assert "does not take the limit" in found.limit_problem
    assert caplog.text.count("does not keep to its bound") == 1
    assert found.lent is not None


@pytest.mark.parametrize(("ordered", "problem"), [(0, ""), (1 << 30, "no donor answers")])
def test_without_a_donor_nothing_is_lent_which_is_a_problem_where_something_was_to_be(
    ordered: int, problem: str, tmp_path: Path
) -> None:
    sense = DonorSense(tmp_path / "none", control="", clock=VirtualClock())
    sense.lend(at_most(ordered))

    assert asyncio.run(sense.read()).limit_problem == problem
