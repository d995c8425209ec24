"""What an agent says of its node's borrowers and donor, from what these say at their admin sockets."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farside import admin
from farside.agent import messages as m
from farside.agent.service.borrower import BorrowerService, borrowed_of
from farside.agent.service.donor import DonorSense, lent_of
from tests.agent.donor import DONOR
from tests.support.virtual_clock import VirtualClock

PAGE = 4096


def figures(*, remote: int = 0, alone: int = 0, exposed: int = 0, failed: bool | None = False, **more: Any) -> Any:
    buckets = {"read": [0] * 32, "write": [0] * 32, **more.pop("latency", {})}
    return {
        "pending_bytes": 0, "pages_remote": remote, "pages_disk_alone": alone, "pages_exposed": exposed,
        "disk_failed": failed, "rates": {"reads_per_s": 1.5, "writes_per_s": 2.0, "pages_per_s": 9.0},
        "latency_buckets": buckets, **more,
    }  # fmt: skip


def buckets(counts: Mapping[int, int]) -> list[int]:
    return [counts.get(at, 0) for at in range(32)]


async def told_by(folder: Path, *devices: Any) -> list[m.BorrowerFacts]:
    """What a node's agent says of borrowers that answer so, and once they have gone."""
    sockets = [folder / f"b{at}.sock" for at in range(len(devices))]
    service = BorrowerService(None, swap=lambda: None, clock=VirtualClock(), sockets=sockets)
    said = []
    async with AsyncExitStack() as stack:
        for socket, device in zip(sockets, devices, strict=True):

            async def answer(_: object, device: Any = device) -> object:
                return device

            await stack.enter_async_context(admin.serve(socket, {"figures": answer}))
        await service.look()
        said.append(service.facts())
    await service.look()
    said.append(service.facts())
    return [msgspec.json.decode(one, type=m.BorrowerFacts) for one in said]


def test_a_borrower_is_told_of_while_it_answers_and_is_none_when_it_has_gone(tmp_path: Path) -> None:
    there, gone = asyncio.run(told_by(tmp_path, figures(remote=3, alone=2, exposed=1, pending_bytes=PAGE)))

    assert there.borrowed == m.BorrowedMemory(
        remote_bytes=3 * PAGE, on_disk_bytes=2 * PAGE, pending_bytes=PAGE, pages_at_risk=1, disk_failed=False,
        reads_per_s=1.5, writes_per_s=2.0,
    )  # fmt: skip
    assert gone.borrowed is None


def test_several_devices_of_a_node_are_told_of_as_one(tmp_path: Path) -> None:
    well, failing = figures(remote=1, alone=4, failed=None), figures(remote=2, alone=8, failed=True)

    borrowed = asyncio.run(told_by(tmp_path, well, failing))[0].borrowed

    assert borrowed is not None
    assert (borrowed.remote_bytes, borrowed.on_disk_bytes, borrowed.disk_failed) == (3 * PAGE, 12 * PAGE, True)
    assert borrowed.pages_at_risk == 8  # what the disk alone has that fails
    assert borrowed.reads_per_s == 3.0


@pytest.mark.parametrize("answer", [{}, figures(remote=-1), {**figures(), "latency_buckets": {"read": 3}}, [1]])
def test_what_is_no_borrowers_figures_is_none_and_costs_nothing_else(tmp_path: Path, answer: Any) -> None:
    assert [one.borrowed for one in asyncio.run(told_by(tmp_path, answer))] == [None, None]


def test_latencies_are_those_of_the_requests_since_the_agent_asked_before() -> None:
    before = {"read": buckets({10: 500}), "write": buckets({})}
    now = figures(latency={"read": buckets({10: 598, 20: 2}), "write": buckets({})})

    found = borrowed_of(now, before)

    assert found.read_p99_s == 2**21 / 1e9  # 2 of 100 took longer than bucket 10
    assert found.write_p99_s is None
    assert borrowed_of(now, {}).read_p99_s is None


def test_a_donor_that_no_other_node_reaches_is_told_of_with_what_it_lends_and_could_lend() -> None:
    lent = lent_of({**DONOR, "listen": ["unix:/run/d.sock"]})

    assert lent.donor is None
    assert lent.lent == m.LentMemory(lent_bytes=sum(range(70)) << 26, lendable_bytes=3 << 26)


@pytest.mark.parametrize("end", ["closing", "draining"])
def test_a_donor_that_ends_could_lend_nothing(end: str) -> None:
    lent = lent_of({**DONOR, end: True}).lent

    assert lent is not None
    assert lent.lendable_bytes == 0


def test_a_donors_rates_are_over_the_time_between_two_questions_to_the_same_process(tmp_path: Path) -> None:
    answers = [{"pid": 7, "read": 0}, {"pid": 7, "read": 5000}, {"pid": 8, "read": 100}]

    async def told(_: object) -> object:
        now = answers.pop(0)
        return {**DONOR, "pid": now["pid"], "traffic": {"read_bytes": now["read"], "written_bytes": 0}}

    async def run() -> list[float | None]:
        clock = VirtualClock()
        sense, seen = DonorSense(tmp_path / "d.sock", control="", clock=clock), []
        async with admin.serve(tmp_path / "d.sock", {"status": told}):
            while answers:
                lent = (await sense.read()).lent
                seen.append(None if lent is None else lent.read_bytes_per_s)
                await clock.advance(5.0)
        return seen

    assert asyncio.run(run()) == [None, 1000.0, None]
