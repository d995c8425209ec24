"""The process that outlives the block server: it holds what a successor needs, and starts one when the server ends.

How it works. It owns the memory files, the listening sockets and the disk, and a duplicate of every client's socket.
The server process (server.py) is given all of them; when it dies, the next one is given the same and goes on at the
request where the last one stopped. It touches no page and no donor, and does as little else as it can, because
everything that can go wrong here would end the device.

    kill -9 of the server       its end closes -> the spare, which has all code loaded and waits: fds, adopt
    replace (SIGHUP, admin)     spawn, with the code as it is now on the disk; "loaded" -> old: stop;
                                "stopped" -> new: fds, adopt; "ready" -> old: quit
    SIGTERM                     server: drain (no new clients, wait for the old ones, leases back); exit 0
    second SIGTERM              server: now

A server that ends CRASHES_MAX times within CRASH_WINDOW_S is started again after a growing pause; never is it given up.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from farside.blockdev import fdpass
from farside.log import get_log

CRASHES_MAX = 5
CRASH_WINDOW_S = 10.0
PAUSE_MAX_S = 10.0
STOP_LIMIT_S = 5.0  # a server that does not stop for its successor is killed: that adopts all the same
NOW_LIMIT_S = 3.0
EXIT_LIMIT_S = 0.5  # from closing its end to being gone; a killed one is gone already

log = get_log("blockdev.supervisor")


@dataclass(slots=True, eq=False)
class Server:
    """One server process."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    loaded: bool = False
    adopted: bool = False
    stopped: bool = False
    kill_at_s: float = field(default=float("inf"))


class Supervisor:
    """Holds one device's descriptors and keeps a server process over them."""

    def __init__(self, fds: dict[str, int], *, on_ready: Callable[[], None]) -> None:
        """``fds`` by name, owned from now on. ``on_ready`` is called when clients may connect, once."""
        self._fds = fds
        self._on_ready: Callable[[], None] | None = on_ready
        self._selector = selectors.DefaultSelector()
        self._current: Server | None = None
        self._successor: Server | None = None
        self._spare: Server | None = None  # loaded and idle, so that a death costs no start of Python
        self._leaving: list[Server] = []  # stopped, waiting to be told that their successor serves
        self._deaths: deque[float] = deque(maxlen=CRASHES_MAX)
        self._pause_s = 0.0
        self._spawn_at_s = 0.0
        self._terms = 0
        self._signals, self._signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Supervises until told to end; returns the exit code."""
        self._catch_signals()
        try:
            while not (self._terms and self._current is None and self._successor is None):
                if self._current is None and not self._terms and time.monotonic() >= self._spawn_at_s:
                    self._start_next()
                self._wait()
            return 0
        finally:
            for server in [self._current, self._successor, self._spare, *self._leaving]:
                if server is not None:
                    server.process.kill()
                    server.process.wait()
            for fd in self._fds.values():
                os.close(fd)

    # ---------------------------------------------------------------- the loop

    def _wait(self) -> None:
        times = [s.kill_at_s for s in (self._current, self._successor) if s is not None]
        times += [self._spawn_at_s] if self._current is None and not self._terms else []
        until_s = min(times, default=float("inf"))
        timeout_s = None if until_s == float("inf") else max(0.0, until_s - time.monotonic())
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._on_signals(os.read(self._signals, 64))
            else:
                self._on_message(key.data)
        for server in (self._current, self._successor):
            if server is not None and time.monotonic() >= server.kill_at_s:
                log.error("the server does not end, killing it", pid=server.process.pid)
                server.kill_at_s = float("inf")
                server.process.kill()

    def _catch_signals(self) -> None:
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGHUP:
                self._replace()
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._terms += 1
                self._end_servers("drain" if self._terms == 1 else "now")

    def _end_servers(self, how: str) -> None:
        self._dismiss_spare()
        for server in (self._current, self._successor):
            if server is None:
                continue
            if how == "now":
                server.kill_at_s = min(server.kill_at_s, time.monotonic() + NOW_LIMIT_S)
            self._tell(server, how)

    # --------------------------------------------------------------- processes

    def _spawn(self) -> Server:
        ours, theirs = fdpass.pair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "farside.blockdev.server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        server = Server(process, ours)
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, server)
        log.info("server process started", pid=process.pid)
        return server

    def _start_next(self) -> None:
        self._current, self._spare = self._spare or self._spawn(), None
        if self._current.loaded:
            self._hand_over(self._current)

    def _replace(self) -> None:
        if self._current is None or not self._current.adopted or self._successor is not None or self._terms:
            log.info("no replacement now: one is under way, or there is no server")
            return
        self._dismiss_spare()  # its code may be older than what we are to go on with
        self._successor = self._spawn()

    def _dismiss_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._selector.unregister(spare.end)
            spare.end.close()  # it ends by itself: it has taken nothing up
            spare.process.wait()

    def _hand_over(self, server: Server) -> None:
        server.adopted = True
        for name, fd in self._fds.items():
            self._tell(server, "fd", name=name, fd=fd)
        self._tell(server, "adopt")

    def _tell(self, server: Server, op: str, *, name: str = "", number: int = 0, fd: int = -1) -> None:
        # The other side is gone, or stuck with a full queue: its end is noticed by itself.
        with suppress(OSError):
            fdpass.send(server.end, op, name=name, number=number, fd=fd)

    # ---------------------------------------------------------------- messages

    def _on_message(self, server: Server) -> None:
        if server.end.fileno() < 0:
            return  # dismissed a moment ago
        try:
            message = fdpass.receive(server.end)
        except BlockingIOError:
            return
        if message is None:
            self._on_end(server)
            return
        match message.op:
            case "loaded":
                server.loaded = True
                self._on_loaded(server)
            case "ready":
                self._on_server_ready(server)
            case "stopped":
                self._on_stopped(server)
            case "conn":
                self._forget(message.number)
                self._fds[f"conn:{message.number}"] = message.fd
            case "forget":
                self._forget(message.number)
            case "replace":
                self._replace()

    def _on_loaded(self, server: Server) -> None:
        if server is self._spare:
            return
        if server is self._successor and self._current is not None:
            self._current.kill_at_s = time.monotonic() + STOP_LIMIT_S
            self._tell(self._current, "stop")
        else:
            self._hand_over(server)

    def _on_stopped(self, server: Server) -> None:
        server.stopped = True
        server.kill_at_s = float("inf")
        if server is self._current and self._successor is not None:
            self._leaving.append(server)
            self._current, self._successor = self._successor, None
            self._hand_over(self._current)

    def _on_server_ready(self, server: Server) -> None:
        for old in self._leaving:
            self._tell(old, "quit", number=server.process.pid)
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
        log.info("serving", pid=server.process.pid)
        if self._spare is None and not self._terms:
            self._spare = self._spawn()

    def _forget(self, worker: int) -> None:
        fd = self._fds.pop(f"conn:{worker}", None)
        if fd is not None:
            os.close(fd)

    def _on_end(self, server: Server) -> None:
        self._selector.unregister(server.end)
        server.end.close()
        try:
            status = server.process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            server.process.kill()  # it closed its end and lives on: two servers must never be
            status = server.process.wait()
        if server in self._leaving:
            self._leaving.remove(server)
        elif server is self._spare:
            self._spare = None  # the next one comes with the next server
        elif server is self._successor:
            self._successor = None
            log.error("the replacement ended before it was ready; the old server stays", status=status)
            if self._current is not None:
                self._current.kill_at_s = float("inf")
        elif server is self._current:
            self._current, self._successor = self._successor, None
            self._after_death(status)

    def _after_death(self, status: int) -> None:
        now_s = time.monotonic()
        if self._terms:
            log.info("server process ended", status=status)
            return
        self._deaths.append(now_s)
        log.error("server process ended; its clients wait for the next", status=status)
        if self._current is not None:
            if self._current.loaded:
                self._hand_over(self._current)
            return
        if len(self._deaths) == CRASHES_MAX and now_s - self._deaths[0] < CRASH_WINDOW_S:
            self._pause_s = min(PAUSE_MAX_S, max(1.0, 2 * self._pause_s))
            log.error("the server ends again and again", times=CRASHES_MAX, pause_s=self._pause_s)
        else:
            self._pause_s = 0.0
        self._spawn_at_s = now_s + self._pause_s
