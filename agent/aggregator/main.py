"""`farside aggregator`: a parent that has everything imported, and the server that it forks again when that ends.

The parent is single-threaded, holds the listeners, and does nothing else: it has next to nothing to fail by. The server
serves. When it ends, the next one is forked in milliseconds behind the same listeners; when it shows no life for
`HANG_LIMIT_S`, it is killed first. The kernel ends the server with its parent.
"""

import asyncio
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from farside.agent.aggregator.handed_down import Heartbeat, KeptOrders
from farside.agent.aggregator.server import Inherited, Server
from farside.config import AggregatorConfig
from farside.daemon.control.keys import read_keys
from farside.ending import ENDING, leave_no_core_dump, run_forked
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError
from farside.listen import allow_many_connections, close_listener, open_listener
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, watchdog_period_s
from farside.units import format_bytes

_log = get_log("aggregator.parent")

HANG_LIMIT_S = 2.0
LOOK_PERIOD_S = 0.5
START_LIMIT_S = 30.0
"""For the first sign of life: a machine without a free processor forks slowly."""
STOP_LIMIT_S = 5.0
SHORT_LIFE_S = 1.0
"""Servers that end sooner, one after the other, are replaced later and later."""
PAUSE_FIRST_S = 0.025
PAUSE_MAX_S = 0.2
"""For servers that served: jobs wait for the next one."""
PAUSE_UNREADY_MAX_S = 5.0
"""For servers that never did: so will the next one not."""
MEMORY_SHARE = 4
"""memory_bytes = 0: this part of the machine's memory."""
_MEMBERS_MODE = 0o666  # members are users' processes; the key decides


def run(config: AggregatorConfig) -> int:
    """Serves until it is asked to stop; returns the process's exit code.

    Raises:
        ConfigError: a setting, the key file or an address cannot be used.
    """
    start_logging(config.log_level)
    leave_no_core_dump()
    allow_many_connections()
    has_cores = len(os.sched_getaffinity(0))
    if config.cores > has_cores:
        raise ConfigError(f"cores: is {config.cores}, and this machine has {has_cores}; lower it")
    if config.memory_bytes > _machine_bytes():
        has, said = format_bytes(_machine_bytes()), format_bytes(config.memory_bytes)
        raise ConfigError(f"memory_bytes: is {said}, and this machine has {has}; lower it")
    if config.key_file.is_absolute():
        read_keys(config.key_file)
    with ExitStack() as stack:
        parent = Parent(config, stack)
        return parent.run()


class Parent:
    """Holds what outlives servers, and one server."""

    def __init__(self, config: AggregatorConfig, stack: ExitStack) -> None:
        """Opens the listeners, which ``stack`` closes."""
        self._config = config
        self._doors = [stack.enter_context(_listening(one, "listen", _MEMBERS_MODE)) for one in config.listen]
        self._admin = stack.enter_context(_listening(f"unix:{config.admin_socket}", "admin_socket", 0o600))
        metrics = config.metrics_listen
        self._metrics = stack.enter_context(_listening(f"tcp:{metrics}", "metrics_listen", 0)) if metrics else None
        self._memory_bytes = config.memory_bytes or _machine_bytes() // MEMORY_SHARE
        self._heartbeat = Heartbeat()
        self._orders = KeptOrders()
        self._pid = 0
        self._started_s = 0.0
        self._restarts = -1
        self._short_lives = 0
        self._stops = 0  # how often we were told to
        self._is_ready = False
        self._woken, self._wake = socket.socketpair()
        stack.callback(self._woken.close)
        stack.callback(self._wake.close)

    def run(self) -> int:
        """Keeps a server until a signal ends both."""
        for sock in (self._woken, self._wake):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for number in ENDING:
            signal.signal(number, self._on_end)
        # What is imported stays shared with all servers: the collector would touch, and so copy, each page of it.
        gc.collect()
        gc.freeze()
        self._fork()
        watchdog_s = watchdog_period_s()
        next_watchdog_s = 0.0
        while not self._stops:
            self._sleep(LOOK_PERIOD_S)
            if watchdog_s and time.monotonic() >= next_watchdog_s:
                notify_systemd("WATCHDOG=1")
                next_watchdog_s = time.monotonic() + watchdog_s
            status = self._ended()
            if status is None:
                self._check_life()
            else:
                self._replace(status)
        return self._stop()

    # --- the server

    def _fork(self) -> None:
        self._heartbeat.reset()
        self._restarts += 1
        self._started_s = time.monotonic()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            run_forked(parent, self._become_server, lambda error: _log.error("server can't go on", reason=error))

    def _become_server(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *ENDING):
            signal.signal(number, signal.SIG_DFL)
        gc.enable()
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        inherited = Inherited(
            doors=self._doors,
            admin=self._admin,
            metrics=self._metrics,
            unix=_unix_of(self._config),
            tcp=_tcp_of(self._config),
            heartbeat=self._heartbeat,
            orders=self._orders,
            restarts=self._restarts,
        )
        await Server(self._config, inherited, memory_bytes=self._memory_bytes).run()

    def _ended(self) -> int | None:
        """How the server ended; None: it has not."""
        pid, status = os.waitpid(self._pid, os.WNOHANG) if self._pid else (0, 0)
        if not pid:
            return None
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _replace(self, status: int) -> None:
        lived_s = time.monotonic() - self._started_s
        self._short_lives = self._short_lives + 1 if lived_s < SHORT_LIFE_S else 0
        _log.warning("server ended; another one is forked", how=_how(status), lived_s=round(lived_s, 3))
        if self._short_lives > 1:
            most_s = PAUSE_UNREADY_MAX_S if self._heartbeat.age_s() is None else PAUSE_MAX_S
            self._sleep(min(PAUSE_FIRST_S * 2 ** min(self._short_lives, 10), most_s))
        if not self._stops:
            self._fork()

    def _check_life(self) -> None:
        age_s = self._heartbeat.age_s()
        if age_s is None:
            hangs = time.monotonic() - self._started_s > START_LIMIT_S
        else:
            hangs = age_s > HANG_LIMIT_S
            if not self._is_ready:
                self._is_ready = True
                self._say_ready()
        if hangs:
            _log.error("server shows no life; it is killed", pid=self._pid, silent_s=age_s and round(age_s, 3))
            os.kill(self._pid, signal.SIGKILL)

    def _say_ready(self) -> None:
        _log.info(
            "aggregator ready",
            node=self._config.node,
            listen=" ".join(self._config.listen),
            memory=format_bytes(self._memory_bytes),
            static_jobs=self._config.key_file.is_absolute(),
        )
        notify_systemd("READY=1")

    # --- ends

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1

    def _stop(self) -> int:
        """Ends the server; a second signal, or its silence, does so at once."""
        notify_systemd("STOPPING=1")
        deadline_s = time.monotonic() + STOP_LIMIT_S
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
        while self._pid and self._ended() is None:
            if self._stops > 1 or time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
            self._sleep(LOOK_PERIOD_S)
        _log.info("aggregator stopped")
        return 0

    def _sleep(self, limit_s: float) -> None:
        """Waits for a signal, at most that long."""
        ready, _, _ = select.select([self._woken], [], [], limit_s)
        if ready:
            self._woken.recv(4096)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """For SIGCHLD to wake the parent there must be a handler."""


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"


@contextmanager
def _listening(endpoint: str, setting: str, mode: int) -> Iterator[socket.socket]:
    listener = open_listener(endpoint, setting=setting, mode=mode)
    try:
        yield listener
    finally:
        close_listener(listener)


def _unix_of(config: AggregatorConfig) -> str:
    return next((one.removeprefix("unix:") for one in config.listen if one.startswith("unix:")), "")


def _tcp_of(config: AggregatorConfig) -> str:
    """Where members on other machines reach it."""
    if config.address:
        return config.address
    ports = (where[1] for where in map(parse_endpoint, config.listen) if not isinstance(where, str))
    return next((f"{config.node}:{port}" for port in ports), "")


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
