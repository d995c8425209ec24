"""Chunks move between two Aggregator processes by plans that come through their admin sockets."""

import contextlib
import random
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from farside import admin
from farside.agent.aggregator.layout import Layout, Tensor, make_layout
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run
from farside.errors import PeerError, Unavailable
from farside.training.member import MemberSession
from tests.aggregation.service import TENSORS, Service, Training, service, training
from tests.support.ports import free_port
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

CHUNKS = len(make_layout(TENSORS).chunks)


class Manager:
    """Says one plan after the other to two Aggregators and all members."""

    def __init__(self, services: Sequence[Service], *, tcp: bool) -> None:
        self.services = services
        self.addresses = tuple(
            AggregatorAddress(number=number, tcp=one.tcp.removeprefix("tcp:"))
            if tcp
            else AggregatorAddress(number=number, unix=one.unix.removeprefix("unix:"))
            for number, one in enumerate(services)
        )
        self._key = secrets.token_bytes(32)
        self.start = 1
        self.changed = threading.Condition()
        self.plan: JobPlan | None = None
        self.closed = False
        self.asked = 0

    def say(self, run: Run, *, to: Sequence[int] = (0, 1)) -> None:
        """All chunks are as this run has it."""
        plan = JobPlan(
            job="j", start=self.start, key=self._key, members=2, digest=make_layout(TENSORS).digest,
            aggregators=self.addresses, runs=(run,),
        )  # fmt: skip
        for number in to:
            self.order(number, plan)
        with self.changed:
            self.plan = plan
            self.changed.notify_all()

    def order(self, number: int, *plans: JobPlan) -> None:
        """What an agent tells its Aggregator."""
        told = admin.call(
            self.services[number].socket, "plan", plans=[{"number": number, "plan": one} for one in plans]
        )
        assert told == {"problems": []}

    def jobs_of(self, number: int) -> list[dict[str, Any]]:
        """What an Aggregator says of its jobs."""
        jobs: list[dict[str, Any]] = self.services[number].status().get("jobs", [])
        return jobs


class Source:
    """A member's plans, as they come from a manager."""

    is_static = False
    job, members = "j", 2

    def __init__(self, manager: Manager, rank: int) -> None:
        self._manager, self.rank, self.start = manager, rank, manager.start
        self._closed = False

    def plan(self, layout: Layout, *, rule: str, after_epoch: int) -> JobPlan:
        """Waits for a newer one."""
        with self._manager.changed:
            self._manager.changed.wait_for(lambda: self._closed or self._epoch() > after_epoch)
            if self._closed or self._manager.plan is None:
                raise Unavailable("closed")
            self._manager.asked += 1
            return self._manager.plan

    def _epoch(self) -> int:
        return self._manager.plan.epoch if self._manager.plan else 0

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Nobody wants to know."""

    def close(self) -> None:
        """Ends what waits."""
        with self._manager.changed:
            self._closed = True
            self._manager.changed.notify_all()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Two Aggregators, which have no job between two tests."""
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        yield [stack.enter_context(service(folder, name, static=False, tcp_port=free_port())) for name in ("a", "b")]


@contextmanager
def two(services: Sequence[Service], rule: str, *, tcp: bool = False) -> Iterator[tuple[Manager, Training]]:
    """A job whose chunks are all at the first of two Aggregators."""
    manager = Manager(services, tcp=tcp)
    try:
        manager.say(Run(first=0, count=CHUNKS, owner=0, epoch=1))
        with training([Source(manager, rank) for rank in (0, 1)], rule) as job:
            yield manager, job
    finally:
        for one in services:
            admin.call(one.socket, "plan", plans=[])


def move(manager: Manager, job: Training, *, old: int, epoch: int) -> int:
    """Moves all chunks while the job trains; the epoch that they have then."""
    new = 1 - old
    manager.say(Run(first=0, count=CHUNKS, owner=old, epoch=epoch, next_owner=new, next_epoch=epoch + 1))

    def has_moved() -> bool:
        job.step()
        told = manager.jobs_of(new)[0]
        return all(
            sum(count for _first, count, at in told[kind] if at == epoch + 1) == CHUNKS for kind in ("copied", "pushed")
        )

    until(has_moved, what="all chunks are copied, and all members have pushed there")
    manager.say(Run(first=0, count=CHUNKS, owner=new, epoch=epoch + 1))
    return epoch + 1


@pytest.mark.parametrize(("rule", "tcp"), [("mean", False), ("adam", True)])
def test_chunks_move_to_and_fro_while_a_job_trains(services: list[Service], rule: str, tcp: bool) -> None:
    with two(services, rule, tcp=tcp) as (manager, job):
        job.step()
        epoch = 1
        for old in (0, 1, 0):
            epoch = move(manager, job, old=old, epoch=epoch)
            job.step()

        assert manager.jobs_of(1)[0]["updates"] > 0


def test_a_job_waits_while_nobody_can_say_where_its_aggregator_is(services: list[Service]) -> None:
    with two(services, "sgd") as (manager, job):
        job.step()
        services[0].kill()
        known = manager.addresses
        assert manager.plan is not None
        with manager.changed:
            # Its node does not offer it any more.
            away = tuple(AggregatorAddress(number=one.number) for one in known)
            manager.plan = replace(manager.plan, aggregators=away)
            manager.asked = 0
        job.push()
        until(lambda: manager.asked > 4, what="members that ask for a plan")
        services[0].start_again()
        services[0].wait_ready()
        manager.say(Run(first=0, count=CHUNKS, owner=0, epoch=1))

        job.check()
        job.step()


class Watch:
    """What the manager does while chunks move: it completes the move, or ends it where one end came anew."""

    def __init__(self, manager: Manager, *, old: int) -> None:
        self._manager, self._old, self._new = manager, old, 1 - old
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.said: Run | None = None

    def _run(self) -> None:
        while not self._stops.wait(0.02):
            self.said = self.said or self._decided()
            if self.said is not None:
                with contextlib.suppress(PeerError):  # one that is being forked anew gets it the next time
                    self._manager.say(self.said)

    def _decided(self) -> Run | None:
        told = {number: (self._manager.jobs_of(number) or [{}])[0] for number in (0, 1)}
        if told[self._old].get("broken_here"):
            return Run(first=0, count=CHUNKS, owner=self._new, epoch=3)
        if told[self._old].get("broken_there"):
            return Run(first=0, count=CHUNKS, owner=self._old, epoch=3)
        moved = [sum(count for _first, count, _at in told[self._new].get(kind, ())) for kind in ("copied", "pushed")]
        return Run(first=0, count=CHUNKS, owner=self._new, epoch=2) if moved == [CHUNKS, CHUNKS] else None

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stops.set()
        self._thread.join()


@pytest.mark.parametrize("dies", [(0,), (1,), (0, 1)], ids=["owner", "next owner", "both"])
@pytest.mark.parametrize("rule", ["mean", "adam"])
def test_a_move_whose_end_is_killed_before_its_commit_loses_nothing(
    services: list[Service], rule: str, dies: tuple[int, ...]
) -> None:
    rng = random.Random(str(dies))
    with two(services, rule) as (manager, job):
        job.step()
        manager.say(Run(first=0, count=CHUNKS, owner=0, epoch=1, next_owner=1, next_epoch=2))
        job.push_some(rng)
        for number in dies:
            services[number].kill_server()
        with Watch(manager, old=0) as watch:
            job.push_rest()
            job.check()

            def has_ended() -> bool:
                job.step()
                return watch.said is not None

            until(has_ended, what="the end of the move")
            job.step(3)


def test_a_server_that_is_killed_remembers_its_managers_plans(services: list[Service]) -> None:
    with two(services, "sgd") as (_manager, job):
        job.step()
        before = services[0].status()["restarts"]

        services[0].kill_server()

        job.step(2)
        assert services[0].status()["restarts"] == before + 1


def test_a_job_that_the_plan_has_no_longer_is_let_go(services: list[Service]) -> None:
    with two(services, "sgd") as (manager, job):
        job.step()

        manager.order(0)

        assert manager.jobs_of(0) == []


def test_the_next_start_of_a_job_goes_on_from_what_is_here(services: list[Service]) -> None:
    with two(services, "sgd") as (manager, job):
        job.step(3)
        job.close()
        manager.start = 2
        manager.say(Run(first=0, count=CHUNKS, owner=0, epoch=1))

        again = Training([Source(manager, rank) for rank in (0, 1)], "sgd")
        try:
            for session in again.sessions:
                session.connect()
            assert [session.first_version for session in again.sessions] == [3, 3]
        finally:
            again.close()


def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(services: list[Service]) -> None:
    for plans in (7, [7], [{"number": 64, "plan": {}}], [{"number": 0, "plan": {"job": ""}}]):
        with pytest.raises(PeerError, match="plans: "):
            admin.call(services[0].socket, "plan", plans=plans)

    assert services[0].status()["jobs"] == []


def test_members_leave_an_aggregator_that_the_plan_has_no_longer(services: list[Service]) -> None:
    with two(services, "mean") as (manager, job):
        job.step()
        epoch = move(manager, job, old=0, epoch=1)
        manager.addresses = manager.addresses[1:]

        manager.say(Run(first=0, count=CHUNKS, owner=1, epoch=epoch), to=())
        admin.call(services[0].socket, "plan", plans=[])

        until(lambda: all(len(session.plan.aggregators) == 1 for session in job.sessions), what="the newest plan")
        job.step(2)
        assert set(services[0].status()["refused"]) <= {"plan"}


def test_another_model_on_another_node_is_refused_by_the_tensor_that_differs_whoever_comes_first(
    services: list[Service],
) -> None:
    manager = Manager(services, tcp=False)
    other = MemberSession(Source(manager, 1), rule="mean", tensors=(TENSORS[0], Tensor("norm.weight", 301, "f32")))
    right = MemberSession(Source(manager, 0), rule="mean", tensors=TENSORS)
    refused: list[str] = []

    def connect() -> None:
        with pytest.raises(PeerError) as why:
            other.connect()
        refused.append(str(why.value))

    with contextlib.closing(other), contextlib.closing(right):
        try:
            manager.say(Run(first=0, count=CHUNKS, owner=0, epoch=1))
            coming = threading.Thread(target=connect)
            coming.start()
            until(lambda: services[0].status()["refused"].get("request"), what="the wrong one, which came first")
            right.connect()
            coming.join()
        finally:
            admin.call(services[0].socket, "plan", plans=[])

    assert "another one than rank 0's: tensor 'norm.weight': elements 301 here and 300 at rank 0" in refused[0]
    assert "\n" not in refused[0]
