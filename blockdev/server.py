"""Server process: one engine with its donors and clients, over descriptors that the supervisor passes in.

How it works. It starts, imports everything, looks whether it understands the device's memory files, says "loaded" and
waits: until then whoever serves the device goes on. With "adopt" it has all descriptors, takes the device up where an
earlier process left it, reaches the donors first and the clients' sockets then, and says "ready". From "stop" on it
touches nothing any more; it lives on until "quit" only to answer the command that asked for the replacement. The
signals of a terminal or service manager are the supervisor's: here they are ignored.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress

from farside import admin
from farside.blockdev import fdpass
from farside.blockdev.client.listener import Clients, Listener
from farside.blockdev.client.stream import door_of
from farside.blockdev.device import BlockDevice
from farside.blockdev.metrics import DeviceCollector
from farside.blockdev.params import check_memory, decode_config, engine_params, export_of
from farside.blockdev.status import Reporter
from farside.blockdev.task import Tasks
from farside.config import BlockdevConfig
from farside.errors import ConfigError, EngineError, FarsideError, Unavailable
from farside.kmod_shim.engine.binding import Device
from farside.kmod_shim.guard import guard_memory, outlive_shutdown
from farside.listen import allow_many_connections
from farside.log import get_log, start_logging, write_behind
from farside.own_task import wait_first
from farside.scrape import registry_of, serve_metrics

RELEASE_LIMIT_S = 2.0  # for donors to confirm that their slabs are free
RELEASE_NOW_LIMIT_S = 0.8
HANDSHAKES_LIMIT_S = 1.0  # for those under way when we are replaced; later clients wait in the listen queue
ANSWER_LIMIT_S = 2.0  # for the command that had us replaced to take its answer
LINKS_LIMIT_S = 0.25  # the disk is slower than donors are to be reached, and clients wait all the while
SUCCEED_LIMIT_S = 120.0  # as long as a successor lives it may still come, on a slow machine under load too
REASON_MAX = 500  # characters of an error for the supervisor; a message has room for 4096 bytes

log = get_log("blockdev.server")


class Server:
    """One server process, from start to end."""

    def __init__(self, end: socket.socket, *, guarded: bool = False, kept: bool = False) -> None:
        self._end = end
        self._is_guarded = guarded
        self._is_kept = kept
        self._fds: dict[str, int] = {}
        self._check = asyncio.Event()
        self._adopt = asyncio.Event()
        self._leave = asyncio.Event()  # set by drain, now, stop or the supervisor's death; _how says which
        self._how = ""
        self._guard_mode = "off"  # the setting pressure_guard, once the settings are read
        self._now = asyncio.Event()  # a second SIGTERM: clients are not waited for any more
        # The successor's process id, once that serves; 0 where there is none because the supervisor has gone.
        self._requests = admin.Requests()  # of the admin socket
        self._quit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stays = asyncio.Event()  # the replacement that was asked for has ended, or could not be started

    # ---------------------------------------------------------------- messages

    def _on_readable(self) -> None:
        while True:
            try:
                message = fdpass.receive(self._end)
            except BlockingIOError:
                return
            if message is None:
                self._on_orphaned()
                return
            self._on_message(message)

    def _on_message(self, message: fdpass.Message) -> None:
        match message.op:
            case "fd":
                self._fds[message.name] = message.fd
            case "check":
                self._check.set()
            case "adopt":
                self._adopt.set()
            case "stop" | "drain" | "now":
                # The first word counts: a server that stops for its successor must not give back its leases because a
                # SIGTERM follows. The supervisor has the successor drain instead.
                self._how = self._how or message.op
                self._leave.set()
                if message.op == "now":
                    self._now.set()
            case "stays":
                self._stays.set()
            case "quit" if not self._quit.done():
                self._quit.set_result(message.number)

    def _on_orphaned(self) -> None:
        # A socket whose other side has ended stays readable, and would call this without end.
        asyncio.get_running_loop().remove_reader(self._end.fileno())
        if not self._adopt.is_set():
            os._exit(1)  # nothing was taken up yet, so there is nothing to give back
        log.error("the supervisor is gone; the server runs until the last client leaves")
        self._how = self._how or "drain"
        self._leave.set()
        if not self._quit.done():
            self._quit.set_result(0)

    def _tell(self, op: str, *, name: str = "", number: int = 0, fd: int = -1) -> None:
        with suppress(OSError):  # an orphaned server has no supervisor
            fdpass.send(self._end, op, name=name, number=number, fd=fd)

    # -------------------------------------------------------------------- life

    async def run(self) -> int:
        """Serve until asked to end; return the exit code."""
        self._end.setblocking(False)
        asyncio.get_running_loop().add_reader(self._end.fileno(), self._on_readable)
        await self._check.wait()
        try:
            config = decode_config(os.pread(self._fds["config"], 1 << 20, 0))
            start_logging(config.log_level)
            # From here on a thread writes the log: the disk or journal behind it may itself wait for pages that are
            # served here.
            if self._is_guarded:
                write_behind()
            self._guard_mode = config.pressure_guard
            # While the old server still serves: a version that can't read its state is refused before anybody stops.
            check_memory(config, self._fds)
            self._tell("loaded")
            await self._adopt.wait()
            await self._serve(config)
        except FarsideError as error:
            log.error("the server can't continue", reason=error)
            self._tell("failed", name=str(error)[:REASON_MAX], number=error.exit_code)
            return error.exit_code
        # The engine is destroyed by now, so the successor may adopt the state.
        if self._how == "stop":
            self._tell("stopped")
            await self._quit
            # The command that asked for the replacement is answered by this process.
            await self._requests.answered(ANSWER_LIMIT_S)
        return 0

    async def _serve(self, config: BlockdevConfig) -> None:
        # 1. the engine, over the state as the last process left it
        engine = Device(engine_params(config), self._fds["state"], self._fds.get("disk", -1))
        async with AsyncExitStack() as stack:
            # Registered first, so that it runs last: tasks and listeners below use the engine until they end.
            stack.callback(engine.destroy)
            self._prefault(engine)
            # 2. table, donors and the tick; start() handles events at once, so their handler is set before
            tasks = await stack.enter_async_context(Tasks())
            device = BlockDevice.over(engine, config, self._fds["control"], tasks)
            clients = Clients(
                engine,
                config.workers,
                hold=lambda worker, fd: self._tell("conn", number=worker, fd=fd),
                forget=lambda worker: self._tell("forget", number=worker),
            )
            device.events.on_conn_closed = clients.closed
            device.start()
            # 3. clients of before, then new ones; "ready" lets go of the old server
            await self._resume_clients(device, clients)
            reporter = Reporter(device, clients, engine)
            # A device with clients goes on, whatever has become of the files of TLS.
            tls = door_of(config, must=not engine.adopted)
            listener = Listener(
                export_of(config), clients, tasks, takes_unproved=config.listen_unproved, tls=tls
            )  # fmt: skip
            await self._open_doors(config, device, listener, reporter, stack)
            self._tell("ready")
            # 4. until told to leave
            await self._until_left(device, clients, listener)

    def _prefault(self, engine: Device) -> None:
        if self._is_guarded:
            try:
                engine.prefault()
            # No memory for it now, or a kernel without MADV_POPULATE_WRITE (Linux below 5.14).
            except EngineError as error:
                log.warning("memory for serving is allocated on demand, not ahead", reason=error)

    async def _resume_clients(self, device: BlockDevice, clients: Clients) -> None:
        """Serves the clients of before again, once their pages can be reached."""
        held = {int(name.removeprefix("conn:")): fd for name, fd in self._fds.items() if name.startswith("conn:")}
        config, engine = device.context.config, device.context.engine
        if engine.adopted:
            # With a disk every page has a second place. With replicas too, where one donor is missing: a page that it
            # alone has is waited for when it is asked for. With more missing a write would find no place at all.
            last_s = config.deadline_s if config.protection == "replica" else None
            await device.wait_for_links(LINKS_LIMIT_S if device.context.has_disk else config.grace_s, last_s=last_s)
        for worker in range(config.workers):
            if worker in held:
                clients.resume(worker, held[worker])
            # A client that left while nobody served: its unanswered writes are dropped with its connection.
            elif engine.conn_is_unfinished(worker):
                clients.drop(worker)

    async def _open_doors(
        self,
        config: BlockdevConfig,
        device: BlockDevice,
        listener: Listener,
        reporter: Reporter,
        stack: AsyncExitStack,
    ) -> None:
        handlers: Mapping[str, admin.Handler] = {
            "status": reporter.status,
            "figures": reporter.figures,
            "fault": reporter.fault,
            "trust": reporter.trust,
            "replace": self._replace,
            "guard": self._guard,
            "keep": self._keep,
        }
        try:
            self._requests = await stack.enter_async_context(admin.serve(config.admin_socket, handlers))
            if config.metrics_listen:
                await stack.enter_async_context(
                    await serve_metrics(
                        config.metrics_listen, registry_of(DeviceCollector(reporter).collect, has_process=False)
                    )
                )
        except ConfigError as error:
            if not device.context.engine.adopted:
                raise
            # Clients wait for this server, and a successor that refused to serve would leave them without any.
            log.error("server runs without admin socket or metrics", reason=error)
        # Without a disk no client is let in before every granule has its mappings; a signal counts meanwhile.
        await wait_first(self._leave.wait(), device.offered.wait())
        for name, fd in self._fds.items():
            if name.startswith("listen:") and device.offered.is_set():
                sock = socket.socket(fileno=fd)
                stack.callback(sock.detach)
                listener.open(sock)

    async def _until_left(self, device: BlockDevice, clients: Clients, listener: Listener) -> None:
        await self._leave.wait()
        if self._how == "stop":
            # A client in the middle of its handshake would be reset: the successor knows nothing of it.
            await listener.close(HANDSHAKES_LIMIT_S)
            device.context.engine.stop()
            # After the engine has stopped, so that nothing is counted any more. Leases are not given back: they are the
            # successor's.
            device.save()
            return
        # The listeners stay open: a new client gets the answer that the device is being shut down.
        clients.closing = True
        if clients.taken and not self._now.is_set():
            log.info("waiting for clients to leave", clients=len(clients.taken))
        await wait_first(clients.wait_until_none(), self._now.wait())
        await device.leave(RELEASE_NOW_LIMIT_S if self._now.is_set() else RELEASE_LIMIT_S)

    async def _replace(self, _: Mapping[str, object]) -> object:
        """Admin: has this process replaced, and answers when the next one serves."""
        return await self._succeeded_by("replace")

    async def _guard(self, _: Mapping[str, object]) -> object:
        """Admin: has the device made fit to be swapped to, by a successor; what could be had, others look at."""
        if self._guard_mode == "off":
            raise ConfigError(
                "pressure_guard is 'off' in this device's settings", hint="set it to 'attach' or 'start', and restart"
            )
        if self._is_guarded:
            return {"server_pid": os.getpid()}
        # Not in this process: its threads were made before, and lack what only a new thread inherits
        # (kmod_shim/guard.py).
        return await self._succeeded_by("guard")

    async def _keep(self, _: Mapping[str, object]) -> object:
        """Admin: the supervisor's next SIGTERM is a restart's; the device and its clients stay."""
        if not self._is_kept:
            raise ConfigError("no service manager keeps this device's descriptors", hint="start it with --fd-store")
        self._tell("keep")
        return {}

    async def _succeeded_by(self, op: str) -> object:
        # It may still be set by an earlier replacement that failed.
        self._stays.clear()
        self._tell(op)
        with suppress(TimeoutError):
            async with asyncio.timeout(SUCCEED_LIMIT_S):
                await wait_first(asyncio.wait([self._quit]), self._stays.wait())
        if not self._quit.done():
            raise Unavailable("the replacement did not start; the old server stays; see its log")
        return {"server_pid": self._quit.result()}


def main() -> None:
    """Entry of the process: ``python -m farside.blockdev.server FD [guarded] [kept]``, FD the end of a socketpair."""
    # A terminal sends its signals to the whole process group; only the supervisor acts on them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    # It came inheritable through the start of this program. A child that held it would keep the supervisor from
    # noticing this server's end.
    os.set_inheritable(end.fileno(), False)
    # Slabs of donors on this host are a descriptor each, and so is each connection.
    allow_many_connections()

    guarded = fdpass.GUARDED in sys.argv[2:]
    if guarded:
        guard_memory()  # before the first thread; guard_check.py finds in /proc what was refused
    kept = fdpass.KEPT in sys.argv[2:]
    if kept:
        outlive_shutdown()

    async def live() -> int:
        return await Server(end, guarded=guarded, kept=kept).run()

    sys.exit(asyncio.run(live()))


if __name__ == "__main__":
    main()
