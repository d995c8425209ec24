"""The node service `aggregator`: what the Aggregator says is said, and it has the manager's plans, whoever is new."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from farside import admin
from farside.agent import messages as m
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run
from farside.agent.service.aggregator import GONE_S, AggregatorService, facts_of, relay_key
from tests.support.virtual_clock import VirtualClock

JOB = {"job": "7", "start": 1, "lanes": 2, "updates": 4, "busy_s": 0.5, "pushed_bytes": 9, "copied": [[0, 3, 8]]}


def plan(job: str = "7") -> JobPlan:
    return JobPlan(
        job=job, start=1, key=b"x" * 32, members=2, digest="d", aggregators=(AggregatorAddress(number=0, unix="/a"),),
        runs=(Run(first=0, count=3, owner=0, epoch=1),),
    )  # fmt: skip


def order(*plans: m.NumberedPlan) -> Raw:
    return Raw(msgspec.json.encode(m.AggregatorOrder(plans=plans)))


class Aggregator:
    """What an Aggregator answers by its admin socket."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.jobs: list[dict[str, Any]] = []
        self.plans: list[object] = []

    async def status(self, _: Mapping[str, object]) -> object:
        return {
            "kind": "aggregator", "incarnation": self.incarnation, "cores": 2, "memory_bytes": 100, "used_bytes": 7,
            "unix": "/a", "tcp": "h:1", "machine": "b", "jobs": self.jobs,
        }  # fmt: skip

    async def plan(self, request: Mapping[str, object]) -> object:
        self.plans.append(request["plans"])
        return {}


def service(socket: Path | None, clock: VirtualClock) -> AggregatorService:
    return AggregatorService(socket, None, key=b"k" * 32, uid_of=lambda _: 0, hasten=lambda: None, clock=clock)


def said(one: AggregatorService) -> m.AggregatorFacts:
    return msgspec.json.decode(one.facts(), type=m.AggregatorFacts)


def test_an_aggregator_gets_its_own_plans_once_and_again_when_another_process_answers(tmp_path: Path) -> None:
    async def act() -> None:
        aggregator, clock = Aggregator(), VirtualClock()
        one = service(tmp_path / "a.sock", clock)
        handlers = {"status": aggregator.status, "plan": aggregator.plan}
        async with admin.serve(tmp_path / "a.sock", handlers):
            await one.look()
            assert (said(one).offer.cores, said(one).used_bytes, one.drained()) == (2, 7, True)
            assert aggregator.plans == []  # no manager has said anything
            one.obey(order(m.NumberedPlan(plan=plan(), number=0), m.NumberedPlan(plan=plan("8"), has_members=True)))
            for _ in range(2):
                await one.look()
            assert len(aggregator.plans) == 1
            assert not one.drained()
            aggregator.incarnation = 2
            await one.look()
            assert len(aggregator.plans) == 2
            (told,) = msgspec.convert(aggregator.plans[1], list[dict[str, Any]])
            assert (told["number"], msgspec.convert(told["plan"], JobPlan)) == (0, plan())
            aggregator.jobs = [JOB]
            await one.look()
            assert said(one).held[0].copied == ((0, 3, 8),)
            one.obey(order())
            aggregator.jobs = []
            await one.look()
            assert one.drained()

    asyncio.run(act())


def test_an_aggregator_is_gone_when_it_has_not_answered_for_a_moment(tmp_path: Path) -> None:
    async def act() -> None:
        aggregator, clock = Aggregator(), VirtualClock()
        one = service(tmp_path / "a.sock", clock)
        async with admin.serve(tmp_path / "a.sock", {"status": aggregator.status}):
            await one.look()
        await one.look()
        assert said(one).offer.cores == 2  # its parent may be about to start the next one
        await clock.advance(GONE_S)
        await one.look()
        assert said(one).offer.cores == 0

    asyncio.run(act())


@given(st.integers(0, 400))
def test_what_is_said_is_never_longer_than_what_is_carried(count: int) -> None:
    told = {"offer": {}, "jobs": [{**JOB, "job": f"job{at}", "copied": [[at, 1, 2**62]] * 64} for at in range(count)]}
    one = service(None, VirtualClock())
    one._facts = facts_of(told)  # as it was read

    assert len(one.facts()) <= m.SERVICE_BYTES_MAX
    assert len(said(one).held) >= min(count, 1)


def test_the_key_of_tokens_outlives_the_agent_and_is_its_own(tmp_path: Path) -> None:
    key = relay_key(tmp_path)

    assert relay_key(tmp_path) == key
    assert (tmp_path / "relay.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "relay.key").write_bytes(b"half")
    assert len(relay_key(tmp_path)) == 32
