"""The forked half of `farside aggregator`: one engine, its callers, its manager's orders.

Ended or hung, it is replaced by its parent: members then find the next one behind the same listeners, and lose nothing.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from farside import admin
from farside.agent.aggregator.entrance import Entrance
from farside.agent.aggregator.handed_down import Heartbeat, KeptOrders
from farside.agent.aggregator.jobs import Jobs, Order, ServedJob
from farside.agent.aggregator.metrics import Totals, aggregator_metrics
from farside.agent.aggregator.movers import Movers
from farside.agent.aggregator.pairing import Pairing
from farside.agent.aggregator.plan import JobGrant, JobPlan, Number
from farside.agent.aggregator.status import AggregatorStatus, JobStatus
from farside.config import AggregatorConfig
from farside.daemon.control.keys import KeyRing
from farside.ending import on_end_signals
from farside.errors import ConfigError
from farside.kernel_file import boot_id
from farside.kmod_shim.engine.aggregation import THREADS_MAX, Aggregator, AggregatorEvent, AggregatorEventKind
from farside.log import get_log
from farside.scrape import registry_of, serve_metrics

_log = get_log("aggregator")

BEAT_PERIOD_S = 0.5
"""A quarter of the silence that the parent bears."""
LOOK_PERIOD_S = 1.0


class _OneOrder(msgspec.Struct, frozen=True):
    number: Number
    plan: JobPlan


class _Word(msgspec.Struct, frozen=True):
    """All that a manager has said."""

    plans: tuple[_OneOrder, ...]
    grants: tuple[JobGrant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a server has from its parent.

    Attributes:
        doors: Listeners for members.
        admin, metrics: Listeners, as the settings name them; metrics: None where they name none.
        unix, tcp: Where members reach the doors.
        restarts: Servers before this one.
    """

    doors: Sequence[socket.socket]
    admin: socket.socket
    metrics: socket.socket | None
    unix: str
    tcp: str
    heartbeat: Heartbeat
    orders: KeptOrders
    restarts: int


class Server:
    """One Aggregator process."""

    def __init__(self, config: AggregatorConfig, inherited: Inherited, *, memory_bytes: int) -> None:
        """``memory_bytes``: what jobs may take."""
        self._config = config
        self._inherited = inherited
        self._memory_bytes = memory_bytes
        self._incarnation = secrets.randbits(62)
        threads = min(config.cores, THREADS_MAX)
        self._engine = Aggregator(memory_bytes, threads=threads)
        ring = KeyRing(config.key_file) if config.key_file.is_absolute() else None
        self._jobs = Jobs(
            self._engine,
            jobs_max=config.max_jobs,
            keep_s=config.keep_s,
            memory_bytes=memory_bytes,
            threads=threads,
            secrets=lambda: ring.current() if ring else (),
        )
        self._pairing = Pairing(rdma=config.rdma)
        self._entrance = Entrance(self._engine, self._jobs, incarnation=self._incarnation, pairing=self._pairing)
        self._movers = Movers(self._engine, self._jobs)
        self._totals = Totals()
        self._problems: tuple[str, ...] = ()
        self._ends = asyncio.Event()

    async def run(self) -> None:
        """Serves until a signal to end."""
        loop = asyncio.get_running_loop()
        kept = self._inherited.orders.read()
        if kept:
            self._problems = self._jobs.take_orders(*_orders_in(kept))
        loop.add_reader(self._engine.fileno(), self._take_events)
        with on_end_signals(self._ends.set):
            try:
                async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
                    await self._serve(stack, group)
                    await self._ends.wait()
                    # A task group ends its tasks only when its body fails.
                    raise _Ended
            except* _Ended:
                pass
            finally:
                loop.remove_reader(self._engine.fileno())
                self._engine.close()

    async def _serve(self, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        given = self._inherited
        handlers = {"status": self._on_status, "plan": self._on_plan}
        await stack.enter_async_context(admin.serve(self._config.admin_socket, handlers, listener=given.admin))
        if given.metrics is not None:
            registry = registry_of(lambda: aggregator_metrics(*self._figures()))
            address = self._config.metrics_listen
            await stack.enter_async_context(await serve_metrics(address, registry, listener=given.metrics))
        for listener in given.doors:
            group.create_task(self._entrance.accept(listener))
        group.create_task(self._movers.run())
        group.create_task(self._look())
        # Last: the parent says that the service is ready when it sees this.
        group.create_task(self._beat())
        _log.info("server ready", pid=os.getpid(), incarnation=self._incarnation, jobs_known=self._jobs.ordered)

    async def _beat(self) -> None:
        while True:
            self._inherited.heartbeat.beat()
            await asyncio.sleep(BEAT_PERIOD_S)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_PERIOD_S)
            self._jobs.drop_idle()

    def _take_events(self) -> None:
        while (event := self._engine.next_event()) is not None:
            job = self._jobs.of(event.job)
            if job is not None:
                self._take_event(job, event)

    def _take_event(self, job: ServedJob, event: AggregatorEvent) -> None:
        if event.kind is AggregatorEventKind.LOST:
            if not job.is_lost:
                _log.error(
                    "job can't go on: nobody has the optimizer's state of a chunk", job=job.name, chunk=event.chunk
                )
            job.is_lost = True
        elif event.kind is AggregatorEventKind.LANE_ENDED:
            _log.debug("lane ended", job=job.name, rank=event.rank, error=event.error)
        elif event.kind is AggregatorEventKind.NEXT_ENDED:
            self._movers.lane_ended(job, event.rank)

    # --- what is said and ordered

    async def _on_status(self, _: Mapping[str, object]) -> object:
        return self._status()

    async def _on_plan(self, request: Mapping[str, object]) -> object:
        orders = msgspec.json.encode({"plans": request.get("plans"), "grants": request.get("grants", ())})
        try:
            found = _orders_in(orders)
        except msgspec.ValidationError as error:
            raise ConfigError(f"plans: {error}") from error
        # Kept first: a server that ends while it follows them is replaced by one that begins with them.
        self._inherited.orders.write(orders)
        self._problems = self._jobs.take_orders(*found)
        self._movers.plan_changed()
        return {"problems": self._problems}

    def _status(self) -> AggregatorStatus:
        jobs = tuple(self._job_status(job) for job in self._jobs)
        given = self._inherited
        return AggregatorStatus(
            node=self._config.node,
            pid=os.getpid(),
            incarnation=self._incarnation,
            cores=self._config.cores,
            memory_bytes=self._memory_bytes,
            used_bytes=sum(job.memory_bytes for job in jobs),
            unix=given.unix,
            tcp=given.tcp,
            machine=boot_id(),
            restarts=given.restarts,
            rdma=self._pairing.lacks or "auto",
            rdma_fallbacks=self._pairing.fallbacks,
            jobs=jobs,
            refused=dict(self._entrance.refused),
            problems=self._problems,
        )

    def _job_status(self, job: ServedJob) -> JobStatus:
        stats = self._jobs.stats(job)
        told: dict[AggregatorEventKind, list[tuple[int, int, int]]] = {}
        for run in self._engine.told(job.engine_number):
            told.setdefault(run.kind, []).append((run.chunk, run.count, run.epoch))
        kinds = AggregatorEventKind
        return JobStatus(
            job=job.name,
            start=job.start,
            members=job.members,
            rule=job.rule,
            chunks=len(job.layout.chunks),
            lanes=stats.lanes,
            updates=stats.updates,
            busy_s=stats.busy_ns / 1e9,
            pushed_bytes=stats.pushed_bytes,
            result_bytes=stats.result_bytes,
            memory_bytes=stats.memory_bytes,
            size_squares=stats.size_squares,
            size_times=stats.size_times / 1e9,
            lanes_shm=stats.shm_lanes,
            lanes_rdma=stats.rdma_lanes,
            lanes_without_codes=stats.uncoded_lanes,
            wrong_codes=stats.wrong_codes,
            waits_for=stats.waits_for if stats.waits_for < job.members else None,
            is_static=bool(job.static_runs),
            copied=tuple(told.get(kinds.COPIED, ())),
            pushed=tuple(told.get(kinds.PUSHED, ())),
            broken_here=tuple(told.get(kinds.BROKEN_HERE, ())),
            broken_there=tuple(told.get(kinds.BROKEN_THERE, ())),
            lost=job.is_lost,
        )

    def _figures(self) -> tuple[AggregatorStatus, dict[str, float]]:
        status = self._status()
        return status, self._totals.take(status)


class _Ended(Exception):
    """Leaves the task group, so that what runs in it is cancelled."""


def _orders_in(text: bytes) -> tuple[list[Order], dict[tuple[str, int], bytes]]:
    word = msgspec.json.decode(text, type=_Word)
    orders = [Order(number=one.number, plan=one.plan) for one in word.plans]
    return orders, {(one.job, one.start): one.key for one in word.grants}
