"""Supervisor, the process that outlives the server: holds what a successor needs, and starts one when a server ends.

How it works. It owns the memory files, the listening sockets and the disk, and a duplicate of every client's socket.
The server process (server.py) is given all of them; when it dies, the next one is given the same and goes on at the
request where the last one stopped. It touches no page and no donor, and does as little else as it can, because
everything that can go wrong here would end the device. That no process can be started now, for want of memory or
descriptors, ends nothing: what serves goes on serving, and another attempt follows.

    kill -9 of the server       its end closes -> the spare, which has all code loaded and waits: fds, adopt
    replace (SIGHUP, admin)     spawn, with the code as it is now on the disk, and the memory files to look at;
                                "loaded" -> old: stop; "stopped" -> new: fds, adopt; "ready" -> old: quit
    "stopped", and the new      the old one serves no more: a third is started
    one has died meanwhile
    guard (admin, once)         what the children inherit, then as replace: a thread that was made before lacks it
    SIGTERM                     server: drain (no new clients, wait for the old ones, leases back); exit 0
    second SIGTERM              server: now
    the first server "failed"   nobody uses the device yet: the end, with its reason
    "keep", then SIGTERM        the end, and the server serves on: a service manager keeps what we hold, and starts
                                our successor, which goes on with all of it (inherited.py), and replaces the server

A server that ends CRASHES_MAX times within CRASH_WINDOW_S is started again after a growing pause; once the device has
served, it is never given up.
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
from farside.blockdev.held_descriptors import GUARDED, HeldDescriptors
from farside.blockdev.inherited import Process, link_name, take_server
from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.guard import Failure, forbid_hibernation, guard_family, guard_memory
from farside.log import get_log, write_behind
from farside.notify import drop_fd, notify_systemd, store_fd, watchdog_period_s

CRASHES_MAX = 5
CRASH_WINDOW_S = 10.0
PAUSE_MAX_S = 10.0
STOP_LIMIT_S = 5.0  # a server that does not stop for its successor is killed: that adopts all the same
NOW_LIMIT_S = 3.0
EXIT_LIMIT_S = 0.5  # from closing its end to being gone; a killed one is gone already
RETRY_S = 1.0  # after a process could not be started
KEEP_LIMIT_S = 60.0  # from "keep" to the SIGTERM that it is said for
MESSAGES_MAX = 1024  # of a server in a turn: more than its socket holds, and one that never pauses holds up nothing
MEMORY = ("config", "state", "control")  # what a new server looks at before anybody stops for it
NEVER_S = float("inf")

log = get_log("blockdev.supervisor")


@dataclass(slots=True, eq=False)
class Server:
    """One server process."""

    process: Process
    end: socket.socket
    loaded: bool = False
    adopted: bool = False
    kill_at_s: float = field(default=NEVER_S)


class Supervisor:
    """Holds one device's descriptors and keeps a server process over them."""

    def __init__(
        self, fds: dict[str, int], *, on_ready: Callable[[], None], name: str = "device", keeps_fds: bool = False
    ) -> None:
        """``fds`` by name, owned from now on. ``on_ready`` is called when clients may connect, once.

        ``keeps_fds``: the service manager keeps them too, and ``fds`` may be what it kept of a supervisor before us.
        """
        self._name = name
        self._held = HeldDescriptors(fds, are_stored=keeps_fds)
        self._keep_until_s = 0.0
        self._is_leaving = False  # a successor of ours goes on with the server that serves
        self._watchdog_s = watchdog_period_s()
        self._is_guarded = False
        self._on_ready: Callable[[], None] | None = on_ready
        self._selector = selectors.DefaultSelector()
        self._current: Server | None = None
        self._successor: Server | None = None
        self._spare: Server | None = None  # loaded and idle, so that a death costs no start of Python
        self._leaving: list[Server] = []  # stopped, waiting to be told that their successor serves
        self._deaths: deque[float] = deque(maxlen=CRASHES_MAX)
        self._pause_s = 0.0
        self._spawn_at_s = 0.0
        self._spare_at_s = NEVER_S
        self._terms = 0
        self._signals, self._signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def guard(self) -> tuple[Failure, ...]:
        """Guard this process, and those that it starts from now on, so that they can serve swap; return what failed."""
        self._is_guarded = True
        if GUARDED not in self._held.fds:
            self._held.keep(GUARDED, os.memfd_create("farside-guarded", os.MFD_CLOEXEC))
            secret = forbid_hibernation()
            if secret is not None:
                self._held.keep("no-hibernation", secret)
        failures = (*guard_family(self._name), *guard_memory())
        write_behind()  # by a thread that is guarded too
        return failures

    def run(self) -> int:
        """Supervise until asked to end; return the exit code.

        Raises:
            FarsideError: The first server failed, before clients could connect; its own words.
        """
        self._catch_signals()
        try:
            self._begin()
            while not self._is_over():
                if not self._terms or self._held.has_clients:
                    self._start_what_is_due(time.monotonic())
                self._wait()
            return 0
        finally:
            kept = self._current if self._is_leaving else None
            for server in [self._current, self._successor, self._spare, *self._leaving]:
                if server is not None and server is not kept:
                    server.process.kill()
                    server.process.wait()
            self._held.close()

    # ---------------------------------------------------------------- the loop

    def _begin(self) -> None:
        if not self._held.are_stored:
            return
        server = take_server(self._held.fds)
        self._held.store_all()
        if GUARDED in self._held.fds:
            self._guard_ourselves()
        if server is not None:
            process, end = server
            self._current = Server(process, end, loaded=True, adopted=True)
            self._selector.register(end, selectors.EVENT_READ, self._current)
            log.info("the previous server serves until its replacement is loaded", pid=process.pid)
            self._tell_ready()
            self._replace()

    def _is_over(self) -> bool:
        if self._is_leaving:
            return self._successor is None and not self._leaving  # a handover under way is brought to its end
        if self._current is not None or self._successor is not None:
            return False
        return self._terms > 1 or (bool(self._terms) and not self._held.has_clients)

    def _wait(self) -> None:
        times = [s.kill_at_s for s in (self._current, self._successor) if s is not None]
        if not self._terms or self._held.has_clients:
            times += [self._spare_at_s, *([self._spawn_at_s] if self._current is None else [])]
        if self._watchdog_s:
            notify_systemd("WATCHDOG=1")
            times.append(time.monotonic() + self._watchdog_s)
        until_s = min(times, default=NEVER_S)
        timeout_s = None if until_s == NEVER_S else max(0.0, until_s - time.monotonic())
        ready = [key.data for key, _ in self._selector.select(timeout_s)]
        numbers = os.read(self._signals, 64) if None in ready else b""
        for server in [key.data for key in self._selector.get_map().values()] if numbers else ready:
            # All that was said before a signal came, "keep" above all, counts for it.
            for _ in range(MESSAGES_MAX):
                if server is None or not self._hears(server):
                    break
        self._on_signals(numbers)
        for server in (self._current, self._successor):
            if server is not None and time.monotonic() >= server.kill_at_s:
                log.error("the server does not end and is killed", pid=server.process.pid)
                server.kill_at_s = NEVER_S
                server.process.kill()

    def _catch_signals(self) -> None:
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        # Our unit starts us with it blocked, so that one that comes before this does not kill us over a device in use.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGHUP:
                self._replace()
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._on_term()

    def _on_term(self) -> None:
        self._terms += 1
        self._dismiss_spare()
        if self._successor is not None and not self._successor.loaded:
            self._dismiss(self._successor)  # nobody has stopped for it
            self._successor = None
        if self._terms == 1 and time.monotonic() < self._keep_until_s and self._current is not None:
            self._is_leaving = True
            log.info("supervisor ends; the server runs on for the next supervisor")
            return
        self._is_leaving = False
        notify_systemd("STOPPING=1\nSTATUS=Waiting for clients to leave; the kernel does at `farside swap detach`")
        self._end_servers("drain" if self._terms == 1 else "now")

    def _end_servers(self, how: str) -> None:
        for server in (self._current, self._successor):
            if server is None:
                continue
            if how == "now":
                server.kill_at_s = min(server.kill_at_s, time.monotonic() + NOW_LIMIT_S)
            if server.adopted:  # one that is not hears it with what it adopts: its clients wait for it
                self._tell(server, how)

    # --------------------------------------------------------------- processes

    def _start_what_is_due(self, now_s: float) -> None:
        if self._current is None and now_s >= self._spawn_at_s:
            self._current, self._spare = self._spare or self._spawn(), None
            if self._current is None:
                self._spawn_at_s = now_s + RETRY_S
            elif self._current.loaded:
                self._hand_over(self._current)
        if now_s >= self._spare_at_s:
            self._spare = self._spare or self._spawn()
            self._spare_at_s = NEVER_S if self._spare else now_s + RETRY_S

    def _spawn(self) -> Server | None:
        """Start a server process, or return None: no memory, descriptor or process can be had now."""
        ends: tuple[socket.socket, ...] = ()
        try:
            ends = ours, theirs = fdpass.pair()
            ours.setblocking(False)
            process = subprocess.Popen(
                [sys.executable, "-m", "farside.blockdev.server", str(theirs.fileno()), *self._how_to_live()],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
            server = Server(process, ours)
            self._selector.register(ours, selectors.EVENT_READ, server)
        except OSError as error:
            log.error("a server process could not be started", reason=error)
            for end in ends:
                end.close()  # a process that has got this far ends with it
            return None
        theirs.close()
        log.info("server process started", pid=process.pid)
        for name in MEMORY:
            self._tell(server, "fd", name=name, fd=self._held.fds[name])
        self._tell(server, "check")
        return server

    def _how_to_live(self) -> list[str]:
        return [*([fdpass.GUARDED] if self._is_guarded else []), *([fdpass.KEPT] if self._held.are_stored else [])]

    def _guard(self) -> None:
        self._guard_ourselves()
        self._dismiss_spare()
        self._replace()

    def _guard_ourselves(self) -> None:
        for failure in self.guard():
            log.warning("a guard against memory pressure is missing", what=failure.what, reason=failure.reason)

    def _replace(self) -> None:
        if self._current is None or not self._current.adopted or self._successor is not None or self._terms:
            log.info("replacement refused: one is under way, or there is no server")
            return
        self._successor = self._spawn()
        if self._successor is None:
            self._tell(self._current, "stays")

    def _dismiss_spare(self) -> None:
        self._spare_at_s = NEVER_S
        if self._spare is not None:
            self._dismiss(self._spare)
            self._spare = None

    def _dismiss(self, server: Server) -> None:
        """Kill a server that has taken nothing over, and wait for its end."""
        self._selector.unregister(server.end)
        server.end.close()
        server.process.kill()
        server.process.wait()

    def _hand_over(self, server: Server) -> None:
        server.adopted = True
        if self._held.are_stored:
            store_fd(link_name(server.process), server.end.fileno())  # before it touches anything
        for name, fd in self._held.fds.items():
            if name not in MEMORY:
                self._tell(server, "fd", name=name, fd=fd)
        self._tell(server, "adopt")
        if self._terms and not self._is_leaving:
            self._tell(server, "drain" if self._terms == 1 else "now")

    def _tell(self, server: Server, op: str, *, name: str = "", number: int = 0, fd: int = -1) -> None:
        # The other side is gone, or stuck with a full queue: its end is noticed by itself.
        with suppress(OSError):
            fdpass.send(server.end, op, name=name, number=number, fd=fd)

    # ---------------------------------------------------------------- messages

    def _hears(self, server: Server) -> bool:
        """Acts on the next message of a server; False: there is none."""
        if server.end.fileno() < 0:
            return False  # dismissed a moment ago
        try:
            message = fdpass.receive(server.end)
        except BlockingIOError:
            return False
        if message is None:
            self._on_end(server)
            return False
        self._on_message(server, message)
        return True

    def _on_message(self, server: Server, message: fdpass.Message) -> None:
        match message.op:
            case "loaded":
                server.loaded = True
                self._on_loaded(server)
            case "ready":
                self._on_server_ready(server)
            case "stopped":
                self._on_stopped(server)
            case "failed":
                self._on_failed(server, message)
            case "conn":
                self._held.hold_client(message.number, message.fd)
            case "forget":
                self._held.forget_client(message.number)
            case "replace":
                self._replace()
            case "guard":
                self._guard()
            case "keep":
                self._keep_until_s = time.monotonic() + KEEP_LIMIT_S

    def _on_loaded(self, server: Server) -> None:
        if server is self._spare:
            return
        if server is self._successor and self._current is not None:
            self._dismiss_spare()  # its code may be older than what we are to go on with
            log.info("the replacement is loaded; the old server is stopped", pid=server.process.pid)
            self._current.kill_at_s = time.monotonic() + STOP_LIMIT_S
            self._tell(self._current, "stop")
        else:
            self._hand_over(server)

    def _on_stopped(self, server: Server) -> None:
        if server is not self._current:
            return
        server.kill_at_s = NEVER_S
        self._leaving.append(server)
        self._current, self._successor = self._successor, None
        if self._current is not None:
            self._hand_over(self._current)

    def _on_server_ready(self, server: Server) -> None:
        for old in self._leaving:
            self._tell(old, "quit", number=server.process.pid)
        self._tell_ready()
        log.info("serving", pid=server.process.pid)
        self._spare_at_s = time.monotonic()

    def _tell_ready(self) -> None:
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    def _on_failed(self, server: Server, message: fdpass.Message) -> None:
        if self._on_ready is not None and server is self._current:
            kind = ConfigError if message.number == ConfigError.exit_code else FarsideError
            raise kind(message.name)

    def _on_end(self, server: Server) -> None:
        self._selector.unregister(server.end)
        server.end.close()
        if self._held.are_stored and server.adopted:
            drop_fd(link_name(server.process))
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
                self._current.kill_at_s = NEVER_S
                self._tell(self._current, "stays")
        elif server is self._current:
            self._current, self._successor = self._successor, None
            self._after_death(status)

    def _after_death(self, status: int) -> None:
        now_s = time.monotonic()
        if self._current is not None:
            log.error("server process ended before it had stopped for its successor", status=status)
            if self._current.loaded:
                self._hand_over(self._current)
            return
        if self._terms and not (self._terms == 1 and self._held.has_clients):
            log.info("server process ended", status=status)
            return
        self._deaths.append(now_s)
        log.error("server process ended; its clients wait for the next", status=status)
        if len(self._deaths) == CRASHES_MAX and now_s - self._deaths[0] < CRASH_WINDOW_S:
            self._pause_s = min(PAUSE_MAX_S, max(1.0, 2 * self._pause_s))
            log.error("the server keeps crashing", times=CRASHES_MAX, pause_s=self._pause_s)
        else:
            self._pause_s = 0.0
        self._spawn_at_s = now_s + self._pause_s
