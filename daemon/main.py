"""`farside daemon`: starts a donor from its settings, runs it, and ends it.

Start: key, first memory sample, engine, listeners, slabs ready, then READY. The first SIGTERM or SIGINT ends it with
care: nothing new is lent, every slab is recalled with time to move its pages, and then the process goes; the second
ends it at once. Killed without warning it leaves nothing but socket files, which its successor clears away.
"""

import asyncio
import random
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager

from farside import admin
from farside.clock import Clock, RealClock
from farside.config import DaemonConfig
from farside.daemon.control.keys import KeyRing
from farside.daemon.counters import Counters
from farside.daemon.cycle import Cycle
from farside.daemon.memory import MemoryWatch
from farside.daemon.metrics import donor_metrics
from farside.daemon.newcomers import BACKLOG, DESCRIPTORS
from farside.daemon.server import Server
from farside.daemon.slab.drain import Drain
from farside.daemon.slab.lender import Exporter, Lender
from farside.daemon.slab.limit import Limit
from farside.daemon.slab.offered import OfferedMemory
from farside.daemon.slab.pool import Pool, SlabMemory
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import Ledger
from farside.daemon.status import DonorStatus, donor_status
from farside.daemon.tasks import Tasks
from farside.ending import leave_no_core_dump, on_end_signals
from farside.errors import ConfigError
from farside.kmod_shim.preflight import may_pin_memory
from farside.listen import allow_many_connections, close_listener, open_listener
from farside.log import get_log, start_logging
from farside.memory_sense import MemorySense
from farside.notify import notify_systemd, watchdog_period_s
from farside.own_task import wait_first
from farside.scrape import registry_of, serve_metrics

_log = get_log("daemon")

STATUS_PERIOD_S = 1.0
"""How old the picture may be that Prometheus gets."""


class _Ended(Exception):
    """Leaves the task group, so that what runs in it is cancelled."""


def run(config: DaemonConfig) -> int:
    """Run a donor until it is asked to stop; returns the process's exit code.

    Raises:
        ConfigError: a setting, the key file or an address cannot be used.
        Unavailable: memory use cannot be read here.
    """
    from farside.kmod_shim.engine import binding  # late: `--help` and tests of the rest need no engine

    start_logging(config.log_level)
    leave_no_core_dump()
    allow_many_connections()
    _warn_of_few_descriptors(len(config.listen))
    donor = Donor(
        config,
        exporter=binding.Exporter(),
        slab_memory=binding,
        clock=RealClock(),
        has_rdma=config.rdma == "auto" and binding.rdma_devices() > 0 and _may_lend_by_rdma(),
    )
    asyncio.run(donor.run())
    return 0


def _warn_of_few_descriptors(listeners: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS * listeners
    if limit < needed:
        _log.warning(
            "the limit of open files is low: strangers' connections can leave none for borrowers' slabs and data",
            limit=limit,
            strangers_may_hold=needed,
            hint="raise it above that (LimitNOFILE, ulimit -Hn)",
        )


class Donor:
    """All parts of one donor, put together."""

    def __init__(
        self,
        config: DaemonConfig,
        *,
        exporter: Exporter,
        slab_memory: SlabMemory,
        clock: Clock,
        has_rdma: bool = False,
    ) -> None:
        """Reads the key and the first memory sample; nothing is listened on yet."""
        self.node = config.node or socket.gethostname()
        self.ready = asyncio.Event()
        self._config = config
        self._exporter = exporter
        self._clock = clock
        self._keys = KeyRing(config.key_file)
        self._sense = MemorySense(proc_root=config.proc_root, cgroup=config.cgroup)
        memory = self._memory = MemoryWatch(config, self._sense.read())
        self._has_rdma = has_rdma
        self._slab_memory = OfferedMemory(slab_memory, exporter)
        self._pool = Pool(self._slab_memory, slab_bytes=config.slab_bytes, huge_slabs_free=memory.huge_slabs_free)
        self._ledger = Ledger(lease_expiry_s=config.lease_expiry_s, quota_slabs=config.quota_slabs_per_borrower)
        self._told = 0  # how often we were told to stop
        self._told_again = asyncio.Event()
        self._latest: DonorStatus | None = None
        self.lender: Lender | None = None  # while it runs

    async def run(self) -> None:
        """Lends until ``stop`` is called."""
        with ExitStack() as stack:
            # Called in the reverse order: signals first, the pool last.
            stack.callback(self._pool.close)
            stack.callback(self._exporter.destroy)  # before the pool: its threads touch slabs
            stack.callback(self._slab_memory.close)  # before the exporter: slabs may still be made and freed
            stack.enter_context(on_end_signals(self.stop))
            # Listeners outlive the tasks that accept on them.
            listeners = [stack.enter_context(_listening(endpoint)) for endpoint in self._config.listen]
            try:
                async with asyncio.TaskGroup() as group:
                    await self._run(group, listeners)
            except* _Ended:
                pass
            except* ConfigError as only:
                raise only.exceptions[0] from None

    def stop(self) -> None:
        """End the donor after its slabs are back; a second call ends it at once."""
        self._told += 1
        self._told_again.set()

    async def _run(self, group: asyncio.TaskGroup, listeners: Sequence[socket.socket]) -> None:
        config = self._config
        lender = self.lender = Lender(
            pool=self._pool,
            ledger=self._ledger,
            exporter=self._exporter,
            memory=self._memory,
            clock=self._clock,
            counters=Counters(),
            tasks=Tasks(group),
        )
        recaller = Recaller(
            lender,
            clock=self._clock,
            rng=random.Random(),
            evict_extra=config.evict_extra,
            evict_deadline_s=config.evict_deadline_s,
        )
        # Before anybody can ask: the metrics show the last picture, and there must be one.
        self._publish(lender)
        drain = Drain(lender, recaller, Tasks(group))
        handlers = {"status": self._on_status(lender), **drain.handlers, **Limit(lender).handlers}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(admin.serve(config.admin_socket, handlers))
            if config.metrics_listen:
                scraped = await serve_metrics(
                    config.metrics_listen, registry_of(lambda: donor_metrics(self._picture()))
                )
                await stack.enter_async_context(scraped)
            await self._serve(group, lender, recaller, listeners)
        # A task group ends its tasks only when its body fails.
        raise _Ended

    async def _serve(
        self, group: asyncio.TaskGroup, lender: Lender, recaller: Recaller, listeners: Sequence[socket.socket]
    ) -> None:
        tasks = Tasks(group)
        cycle = Cycle(
            lender=lender,
            recaller=recaller,
            sense=self._sense,
            clock=self._clock,
            period_s=self._config.sample_period_s,
            tasks=tasks,
        )
        server = Server(
            node=self.node,
            keys=self._keys,
            lender=lender,
            recaller=recaller,
            slab_bytes=self._config.slab_bytes,
            tasks=tasks,
            has_rdma=self._has_rdma,
            rdma_address=self._config.rdma_address,
        )
        # A first round before borrowers come, so that slabs are ready for the first of them.
        await cycle.step()
        group.create_task(cycle.run())
        group.create_task(self._keep_publishing(lender))
        group.create_task(server.watch_data())
        group.create_task(self._feed_watchdog())
        # Last of all: from here on borrowers are answered.
        for listener in listeners:
            group.create_task(server.accept(listener))
        _log.info(
            "donor ready",
            node=self.node,
            listen=" ".join(self._config.listen),
            ready_slabs=self._pool.ready,
            rdma=self._has_rdma,
        )
        notify_systemd("READY=1")
        self.ready.set()
        await self._until_told(1)
        await self._give_up(lender, recaller)

    async def _give_up(self, lender: Lender, recaller: Recaller) -> None:
        """Recall all slabs; a second signal, or the deadlines, end the wait."""
        notify_systemd("STOPPING=1")
        lender.is_closing = True
        _log.info("donor stopping", lent=len(self._ledger.loans))
        await wait_first(recaller.recall_all(self._config.migrate_deadline_s), self._until_told(2))
        _log.info("donor stopped", taken=len(self._ledger.loans))

    async def _until_told(self, times: int) -> None:
        while self._told < times:
            self._told_again.clear()
            await self._told_again.wait()

    # ---- status

    def _on_status(self, lender: Lender) -> admin.Handler:
        async def status(_: Mapping[str, object]) -> object:
            return self._status(lender)

        return status

    def _status(self, lender: Lender) -> DonorStatus:
        return donor_status(self.node, lender, listen=self._config.listen, has_rdma=self._has_rdma)

    def _publish(self, lender: Lender) -> None:
        self._latest = self._status(lender)

    def _picture(self) -> DonorStatus:
        assert self._latest is not None
        return self._latest

    async def _keep_publishing(self, lender: Lender) -> None:
        while True:
            await self._clock.sleep_until_s(self._clock.now_s() + STATUS_PERIOD_S)
            try:
                self._publish(lender)
            # The next picture may be possible again; a donor must not end for want of one.
            except Exception as error:
                _log.error("unexpected fault", cause=error, work="status")

    async def _feed_watchdog(self) -> None:
        # From the loop itself: a service manager restarts a donor whose loop hangs.
        while (period_s := watchdog_period_s()) > 0:
            notify_systemd("WATCHDOG=1")
            await self._clock.sleep_until_s(self._clock.now_s() + period_s)


@contextmanager
def _listening(endpoint: str) -> Iterator[socket.socket]:
    listener = open_listener(endpoint, backlog=BACKLOG)
    try:
        yield listener
    finally:
        close_listener(listener)


def _may_lend_by_rdma() -> bool:
    # Without that, borrowers would get queue pairs here, and no key to anything.
    if may_pin_memory():
        return True
    _log.warning("no RDMA: this process may not pin what it lends; `ulimit -l unlimited`, or LimitMEMLOCK=infinity")
    return False
