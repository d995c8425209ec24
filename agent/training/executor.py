"""`farside executor`: a parent with the listeners, and the process that it forks to give turns on this node.

The parent does nothing but wait for the other one, so that workers that come back find somebody within moments. Nothing
has to outlive either: workers say where they are, and go on without turns meanwhile.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from farside import admin
from farside.agent.messages import GroupOrder
from farside.agent.training.group import GroupHost, GroupMember
from farside.agent.training.turn_record import JobRecord, row_of
from farside.agent.training.turn_server import Group, TurnServer
from farside.daemon.control.keys import read_keys
from farside.ending import ENDING, on_end_signals, run_forked
from farside.endpoint import parse_address
from farside.errors import ConfigError
from farside.listen import close_listener, open_listener
from farside.log import get_log, start_logging

_log = get_log("executor")

SHORT_LIFE_S = 1.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
TRACE_ROWS_MAX = 3000
"""Turns in one answer; its line is at most 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an executor serves.

    Attributes:
        socket: Of workers.
        admin_socket: Of `farside admin`.
        node: This one's name in its group.
        nodes: The group, this node first; empty: this node alone, or a group whose first node is another one, or the
            groups that an agent names.
        group_listen: HOST:PORT for the other nodes; without ``nodes``: of groups that an agent names.
        synchronizer: HOST:PORT of the group's first node, on all others.
        key_file: The group's key.
    """

    socket: Path
    admin_socket: Path
    node: str = "node"
    nodes: tuple[str, ...] = ()
    group_listen: str = ""
    synchronizer: str = ""
    key_file: Path | None = None


def run(wanted: Wanted) -> int:
    """Serves until it is asked to stop; the process's exit code.

    Raises:
        ConfigError: the options do not fit each other, or an address can't be used.
    """
    start_logging("info")
    key = _checked(wanted)
    with ExitStack() as stack:
        workers = _listening(wanted.socket)
        stack.callback(_unlink, wanted.socket, workers)
        group = None
        if wanted.group_listen:
            group = open_listener(f"tcp:{wanted.group_listen}", setting="--group-listen")
            stack.callback(group.close)
        admin_listener = open_listener(f"unix:{wanted.admin_socket}", setting="--admin-socket")
        stack.callback(close_listener, admin_listener)
        return _Parent(wanted, key, workers, group, admin_listener).run()


def _checked(wanted: Wanted) -> bytes:
    is_group = bool(wanted.nodes or wanted.synchronizer)
    if wanted.nodes and wanted.synchronizer:
        raise ConfigError("--nodes and --synchronizer exclude each other", hint="the group's first node has --nodes")
    if wanted.nodes and (wanted.nodes[0] != wanted.node or len(set(wanted.nodes)) < len(wanted.nodes)):
        raise ConfigError(f"--nodes: names this node ('{wanted.node}') first, and each node once")
    if wanted.nodes and not wanted.group_listen:
        raise ConfigError("--nodes and --group-listen belong together")
    if wanted.synchronizer and wanted.group_listen:
        raise ConfigError("--synchronizer and --group-listen exclude each other", hint="the first node listens")
    if wanted.synchronizer:
        try:
            parse_address(wanted.synchronizer)
        except ValueError as error:
            raise ConfigError(f"--synchronizer {wanted.synchronizer}: {error}") from error
    if is_group and wanted.key_file is None:
        raise ConfigError("a group of several nodes needs --key-file", hint="`farside keygen` makes one")
    return read_keys(wanted.key_file)[0] if wanted.key_file is not None else b""


class _Parent:
    """Forks the process that serves, again and again."""

    def __init__(
        self, wanted: Wanted, key: bytes, workers: socket.socket, group: socket.socket | None, admin_: socket.socket
    ) -> None:
        self._wanted, self._key = wanted, key
        self._workers, self._group, self._admin = workers, group, admin_
        self._pid = 0
        self._pause_s = PAUSE_FIRST_S
        self._stops = 0  # how often we were asked to

    def run(self) -> int:
        """Until a signal ends it."""
        for number in ENDING:
            signal.signal(number, self._on_end)
        while not self._stops:
            began_s, parent = time.monotonic(), os.getpid()
            # Blocked, so that a signal finds the number of the process that it is meant for.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            self._pid = os.fork()
            if self._pid == 0:
                run_forked(parent, self._serve, lambda error: _log.error("the executor can't go on", reason=error))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            _, status = os.waitpid(self._pid, 0)
            self._pid = 0
            self._rest(os.waitstatus_to_exitcode(status), time.monotonic() - began_s)
        return 0

    def _rest(self, code: int, lived_s: float) -> None:
        """Before another one is forked: longer where the last ones ended soon."""
        if self._stops:
            return
        _log.warning("the process that gives turns has ended; another one is forked", status=code)
        self._pause_s = PAUSE_FIRST_S if lived_s > SHORT_LIFE_S else min(2 * self._pause_s, PAUSE_MAX_S)
        time.sleep(self._pause_s)

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._pid:
            with suppress(ProcessLookupError):  # it has ended, and we were just told
                os.kill(self._pid, signal.SIGTERM)

    def _serve(self) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        asyncio.run(_Executor(self._wanted, self._key).serve(self._workers, self._group, self._admin))


class _Executor:
    """The process that serves."""

    def __init__(self, wanted: Wanted, key: bytes) -> None:
        self._wanted, self._key = wanted, key
        self._server: TurnServer | None = None
        self._group: GroupHost | GroupMember | None = None
        self._order: GroupOrder | None = None  # an agent's
        self._tasks: asyncio.TaskGroup | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._regrouping = asyncio.Lock()

    async def serve(self, workers: socket.socket, group: socket.socket | None, admin_: socket.socket) -> None:
        """Until a signal ends it."""
        ended = asyncio.Event()
        server = self._server = TurnServer(workers, self._made_group)
        handlers = {"status": self._on_status, "trace": self._on_trace, "group": self._on_group}
        async with asyncio.TaskGroup() as tasks, admin.serve(self._wanted.admin_socket, handlers, listener=admin_):
            self._tasks = tasks
            beating = tasks.create_task(server.beat())
            self._keep()
            links = await asyncio.start_server(self._converse, sock=group) if group is not None else None
            with on_end_signals(ended.set):
                _log.info("executor ready", socket=self._wanted.socket, nodes=" ".join(self._wanted.nodes))
                await ended.wait()
            beating.cancel()
            await self._leave()
            if links is not None:
                links.close()
            server.close()

    def _made_group(self, server: TurnServer) -> Group:
        order = self._order
        node, nodes, address = self._wanted.node, self._wanted.nodes, self._wanted.synchronizer
        key = self._key if order is None else order.key
        if order is not None:
            node, nodes = order.node, order.nodes
            address = "" if nodes[0] == node else order.synchronizer
        if address:
            self._group = GroupMember(server.told, lambda: server.queue.epoch, node=node, key=key, address=address)
        else:
            whole = frozenset(nodes or (node,))
            self._group = GroupHost(server.told, node=node, nodes=whole, key=key, epoch=server.queue.epoch)
        return self._group

    def _keep(self) -> None:
        """Keeps the link to the synchroniser, where that is on another node."""
        assert self._tasks is not None
        if isinstance(self._group, GroupMember):
            self._keeping = self._tasks.create_task(self._group.keep())

    async def _leave(self) -> None:
        """Ends this node's links."""
        if self._group is not None:
            self._group.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            self._keeping = None

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A link of another node."""
        if isinstance(self._group, GroupHost) and self._group.has_others:
            await self._group.converse(reader, writer)
        else:
            writer.close()

    async def _on_group(self, request: Mapping[str, object]) -> object:
        """Joins the group of several nodes that an agent names, live, or leaves the last one."""
        assert self._server is not None
        if self._wanted.nodes or self._wanted.synchronizer:
            raise ConfigError("its group was given to it", hint="start it without --nodes and --synchronizer")
        try:
            order = msgspec.convert(request.get("group"), GroupOrder | None)
            if order is not None:
                parse_address(order.synchronizer)
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"group: {error}") from error
        if order is not None and not self._wanted.group_listen:
            raise ConfigError("it can't be reached by other nodes", hint="start it with --group-listen HOST:PORT")
        async with self._regrouping:
            if order != self._order:
                await self._leave()
                self._order = order
                self._server.join(self._made_group)
                self._keep()
                _log.info("group", nodes=" ".join(order.nodes if order else ()), epoch=order.epoch if order else 0)
        return {"epoch": order.epoch if order is not None else 0}

    async def _on_status(self, _: Mapping[str, object]) -> object:
        assert self._server is not None
        assert self._group is not None
        queue, record = self._server.queue, self._server.record
        jobs = {}
        for job, worker in queue.workers.items():
            jobs[job] = {
                "pid": self._server.pid_of(job),
                "worker": worker.worker,
                "place": worker.place,
                "position": worker.position,
                **record.jobs.get(job, JobRecord()).status,
            }
            climber = self._server.spilling.jobs.get(job)
            if climber is not None:
                keep = climber.keep
                jobs[job] |= {"spilled": keep.spilled, "by_peer": keep.by_peer, "has_settled": climber.step is None}
        return {
            "pid": os.getpid(),
            "node": self._wanted.node if self._order is None else self._order.node,
            "listen": "" if self._wanted.nodes else self._wanted.group_listen,
            "group": 0 if self._order is None else self._order.epoch,
            "epoch": queue.epoch,
            "is_apart": queue.is_apart,
            "spills": True,  # it decides for workers whose input need not fit in memory
            "nodes_there": sorted(self._group.there),
            "hung_up": self._server.hung_up,
            "jobs": jobs,
        }

    async def _on_trace(self, request: Mapping[str, object]) -> object:
        assert self._server is not None
        first = request.get("first", 0)
        if not isinstance(first, int) or first < 0:
            raise ConfigError(f"first: is {first!r}; the number of a turn, from 0")
        start, rows = self._server.record.trace(first, TRACE_ROWS_MAX)
        return {"first": start, "rows": [row_of(turn) for turn in rows]}


def _listening(path: Path) -> socket.socket:
    """Workers' socket: users' processes come, and the kernel says whose each is."""
    made = open_listener(f"unix:{path}", setting="--socket")  # refuses where somebody serves already
    close_listener(made)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(str(path))
        path.chmod(0o666)
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--socket {path}: {error.strerror}") from error
    return sock


def _unlink(path: Path, sock: socket.socket) -> None:
    sock.close()
    path.unlink(missing_ok=True)
