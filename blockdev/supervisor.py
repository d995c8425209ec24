"""Supervisor, the process that outlives the server: holds what a successor needs, and starts one when a server ends.

How it works. It owns the memory files, the listening sockets and the disk, and a duplicate of every client's socket.
The server process (server.py) is given all of them; when it dies, the next one is given the same and goes on at the
request where the last one stopped. It touches no page and no donor, and does as little as it can, because a fault here
would end the device. If no process can be started now, for want of memory or descriptors, the server that serves goes
on, and another attempt follows.

    kill -9 of the server       its end closes -> the spare, which has all code loaded and waits: fds, adopt
    replace (SIGHUP, admin)     spawn, with the code as it is now on the disk, and the memory files to look at;
                                "loaded" -> old: stop; "stopped" -> new: fds, adopt; "ready" -> old: quit
    "stopped", and the new      the old one does not serve any more: a third server is started
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

# Five deaths within ten seconds are a fault that a start does not cure. Fewer are followed by a start at once, because
# clients wait.
CRASHES_MAX = 5
CRASH_WINDOW_S = 10.0
PAUSE_MAX_S = 10.0
# A server that does not stop for its successor is killed, and the successor adopts all the same. A healthy one takes
# less: HANDSHAKES_LIMIT_S (server.py), then the engine's stop, up to 2 s.
STOP_LIMIT_S = 5.0
NOW_LIMIT_S = 3.0  # after a second SIGTERM; the engine's stop and RELEASE_NOW_LIMIT_S (server.py) fit in it
EXIT_LIMIT_S = 0.5  # from closing its end to being gone; a killed one is gone already
RETRY_S = 1.0  # after a process could not be started
KEEP_LIMIT_S = 60.0  # from "keep" to the SIGTERM that it is said for
# Messages of one server in one turn of the loop. More than its socket holds, so that all that it said before a signal
# is read before the signal counts. Bounded, so that a server that never pauses holds up neither signals nor deadlines.
MESSAGES_MAX = 1024
MEMORY = ("config", "state", "control")  # what a new server looks at before anybody stops for it
NEVER_S = float("inf")

log = get_log("blockdev.supervisor")


# Without equality: lists and the selector must find this very server, not one with equal fields.
@dataclass(slots=True, eq=False)
class Server:
    """One server process."""

    process: Process
    end: socket.socket
    loaded: bool = False  # it has its code and understands the memory files; it may wait so for a long time
    adopted: bool = False  # it was given all descriptors, and may touch pages, donors and clients
    kill_at_s: float = field(default=NEVER_S)  # by the monotonic clock


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
        self._keep_until_s = 0.0  # a SIGTERM before this is a restart's; see KEEP_LIMIT_S
        self._is_leaving = False  # a successor of ours goes on with the server that serves
        self._watchdog_s = watchdog_period_s()
        self._is_guarded = False
        self._on_ready: Callable[[], None] | None = on_ready  # None once the device has served
        self._selector = selectors.DefaultSelector()
        self._current: Server | None = None
        self._successor: Server | None = None
        self._spare: Server | None = None  # loaded and idle, so that a death costs no start of Python
        self._leaving: list[Server] = []  # stopped; they wait for "quit", which says that their successor serves
        self._deaths: deque[float] = deque(maxlen=CRASHES_MAX)  # times of the last ones
        self._pause_s = 0.0
        self._spawn_at_s = 0.0  # when a server is started, if none serves
        self._spare_at_s = NEVER_S  # when a spare is started
        self._terms = 0  # SIGTERM and SIGINT so far: the first drains, the second ends
        # Python writes the number of each signal into this pipe, which ends select() below. It has to be non-blocking:
        # the write happens in the handler.
        self._signals, self._signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def guard(self) -> tuple[Failure, ...]:
        """Guard this process, and those that it starts from now on, so that they can serve swap; return what failed."""
        self._is_guarded = True
        # Kept as descriptors, so that a supervisor that comes after this one is guarded too, and hibernation stays
        # forbidden.
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
                # Even a supervisor that is asked to end starts servers as long as it holds a client's socket: the
                # client may be the kernel, with swap on the device, and its programs die with the connection.
                if not self._terms or self._held.has_clients:
                    self._start_what_is_due(time.monotonic())
                self._wait()
            return 0
        finally:
            # A server that is left alone here would serve on as an orphan, without the descriptors that its successor
            # needs. Only the one that serves is left alone, and only for the next supervisor.
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
        # The link is taken out first: what is left are the device's own descriptors, and all of them are stored.
        server = take_server(self._held.fds, self._on_client_message)
        self._held.store_all()
        # Before the replacement below: what is guarded here is inherited only by processes made later.
        if GUARDED in self._held.fds:
            self._guard_ourselves()
        if server is not None:
            process, end = server
            self._current = Server(process, end, loaded=True, adopted=True)
            self._selector.register(end, selectors.EVENT_READ, self._current)
            log.info("the previous server serves until its replacement is loaded", pid=process.pid)
            # Clients were never without a server: the service manager need not wait for the replacement.
            self._tell_ready()
            self._replace()

    def _is_over(self) -> bool:
        if self._is_leaving:
            return self._successor is None and not self._leaving  # a handover under way is brought to its end
        if self._current is not None or self._successor is not None:
            return False
        return self._terms > 1 or (bool(self._terms) and not self._held.has_clients)

    def _wait(self) -> None:
        # 1. wait for the first of messages, signals and deadlines
        times = [s.kill_at_s for s in (self._current, self._successor) if s is not None]
        if not self._terms or self._held.has_clients:
            times += [self._spare_at_s, *([self._spawn_at_s] if self._current is None else [])]
        if self._watchdog_s:
            notify_systemd("WATCHDOG=1")
            times.append(time.monotonic() + self._watchdog_s)
        until_s = min(times, default=NEVER_S)
        timeout_s = None if until_s == NEVER_S else max(0.0, until_s - time.monotonic())
        ready = [key.data for key, _ in self._selector.select(timeout_s)]
        # 2. messages. A signal has every server's messages read, not only those of servers that select() has named:
        # what was said before the signal, "keep" above all, counts for it.
        numbers = os.read(self._signals, 64) if None in ready else b""
        for server in [key.data for key in self._selector.get_map().values()] if numbers else ready:
            for _ in range(MESSAGES_MAX):
                if server is None or not self._hears(server):  # None is the signals' pipe
                    break
        # 3. signals
        self._on_signals(numbers)
        # 4. deadlines that have passed
        for server in (self._current, self._successor):
            if server is not None and time.monotonic() >= server.kill_at_s:
                log.error("the server does not end and is killed", pid=server.process.pid)
                server.kill_at_s = NEVER_S
                server.process.kill()

    def _catch_signals(self) -> None:
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Does nothing, but without a handler no number would be written into the pipe.
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
        # "keep" counts only while some server serves: otherwise the clients would wait until the next supervisor has
        # one.
        if self._terms == 1 and time.monotonic() < self._keep_until_s and self._current is not None:
            self._is_leaving = True
            log.info("supervisor ends; the server runs on for the next supervisor")
            return
        # A second signal is a stop, whatever was said before the first.
        self._is_leaving = False
        notify_systemd("STOPPING=1\nSTATUS=Waiting for clients to leave; the kernel does at `farside swap detach`")
        self._end_servers("drain" if self._terms == 1 else "now")

    def _end_servers(self, how: str) -> None:
        for server in (self._current, self._successor):
            if server is None:
                continue
            if how == "now":
                server.kill_at_s = min(server.kill_at_s, time.monotonic() + NOW_LIMIT_S)
            # A server that has adopted nothing yet gets the word in _hand_over: the clients wait for it to serve first.
            if server.adopted:
                self._tell(server, how)

    # --------------------------------------------------------------- processes

    def _start_what_is_due(self, now_s: float) -> None:
        if self._current is None and now_s >= self._spawn_at_s:
            # The spare may still be loading its code; _on_loaded then hands over.
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
            ours.setblocking(False)  # a server that does not read must not hold up the supervisor
            # A new interpreter and not a fork: a replacement is to run the code that is on the disk now.
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
        # Only these, to be looked at. The other descriptors follow when it may touch the device (_hand_over).
        for name in MEMORY:
            self._tell(server, "fd", name=name, fd=self._held.fds[name])
        self._tell(server, "check")
        return server

    # Words on a server's command line: they count before the first message can be read.
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
            # The server passes it on to the command that asked for the replacement, and now need not wait.
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
            # Before it touches anything: the supervisor after us must find this server, or two would serve.
            store_fd(link_name(server.process), server.end.fileno())
        for name, fd in self._held.fds.items():
            if name not in MEMORY:
                self._tell(server, "fd", name=name, fd=fd)
        self._tell(server, "adopt")
        if self._terms and not self._is_leaving:
            self._tell(server, "drain" if self._terms == 1 else "now")

    # Sends one message, or drops it where the server does not take it.
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

    def _on_client_message(self, message: fdpass.Message) -> None:
        match message.op:
            case "conn":
                self._held.hold_client(message.number, message.fd)
            case "forget":
                self._held.forget_client(message.number)

    def _on_message(self, server: Server, message: fdpass.Message) -> None:
        self._on_client_message(message)
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
            case "replace":
                self._replace()
            case "guard":
                self._guard()
            case "keep":
                self._keep_until_s = time.monotonic() + KEEP_LIMIT_S

    def _on_loaded(self, server: Server) -> None:
        # A spare goes on waiting.
        if server is self._spare:
            return
        if server is self._successor and self._current is not None:
            self._dismiss_spare()  # its code may be older than what we are to go on with
            log.info("the replacement is loaded; the old server is stopped", pid=server.process.pid)
            self._current.kill_at_s = time.monotonic() + STOP_LIMIT_S
            self._tell(self._current, "stop")
        else:
            # It is the only server, so nobody has to stop for it.
            self._hand_over(server)

    def _on_stopped(self, server: Server) -> None:
        if server is not self._current:
            return
        # It touches nothing any more, and lives on only to answer the command that asked for the replacement.
        server.kill_at_s = NEVER_S
        self._leaving.append(server)
        # None where the successor has died meanwhile: the loop then starts a third server.
        self._current, self._successor = self._successor, None
        if self._current is not None:
            self._hand_over(self._current)

    def _on_server_ready(self, server: Server) -> None:
        for old in self._leaving:
            # The successor's process id is the answer to the command that asked for the replacement.
            self._tell(old, "quit", number=server.process.pid)
        self._tell_ready()
        log.info("serving", pid=server.process.pid)
        self._spare_at_s = time.monotonic()

    def _tell_ready(self) -> None:
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    def _on_failed(self, server: Server, message: fdpass.Message) -> None:
        # Later failures are no reason to end: clients hold connections, and the next server may do better.
        if self._on_ready is not None and server is self._current:
            kind = ConfigError if message.number == ConfigError.exit_code else FarsideError
            raise kind(message.name)

    def _on_end(self, server: Server) -> None:
        self._selector.unregister(server.end)
        server.end.close()
        # Otherwise the next supervisor would be handed a link with nobody at its other end.
        if self._held.are_stored and server.adopted:
            drop_fd(link_name(server.process))
        try:
            status = server.process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            # It closed its end and lives on. Two servers over one device would both write its state.
            server.process.kill()
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
            # A successor that is still loading is handed the device by _on_loaded.
            if self._current.loaded:
                self._hand_over(self._current)
            return
        # After a first SIGTERM a dead server is succeeded as long as there are clients, after a second one it is not.
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
