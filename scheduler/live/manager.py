"""`farside manager`: the brain and the API, a process each, and this one, which starts them again when they end.

How it works
  The brain may compute for a second; the API must answer meanwhile, so they share nothing but the store. Each can be
  killed at any moment: what it knew is in the log, and its successor reads it. When this process is killed, they notice
  by a pipe that closes, and end too.

  A part that hangs is as bad as one that has ended: each writes the time into memory that it shares with the parent,
  from its event loop, and one that has not for `HANG_S` is killed and started again. systemd watches the parent.
"""

import asyncio
import json
import multiprocessing
import os
import ssl
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, nullcontext, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from farside.config import ManagerConfig, SlurmConfig
from farside.config.check import names_in
from farside.ending import on_end_signals
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError, FarsideError
from farside.listen import close_listener, open_listener
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, watchdog_period_s
from farside.scheduler.domain import Rules, reserve_after
from farside.scheduler.live.accounts import tenancy_of
from farside.scheduler.live.store.event_store import EventStore
from farside.scheduler.live.store.migrate import upgrade
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

PIDS = "manager.json"
# Between the end of a part and its next start: short at first, longer when it keeps ending.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
# A part that ran so long has not been ending at once.
LONG_ENOUGH_S = 10.0
END_LIMIT_S = 10.0
SWITCH_S = 5e-4
# A part's event loop that has not turned for so long hangs. The brain reads all of the log before its loop turns.
HANG_S = {"brain": 600.0, "api": 60.0}
BEAT_PERIOD_S = 1.0
_FRAME_BYTES = 1 << 20

Beat: TypeAlias = "Synchronized[float]"

_log = get_log("manager")


def run(config: ManagerConfig) -> int:
    """Runs a manager until SIGTERM or SIGINT; returns the process's exit code.

    Raises:
        ConfigError: A setting, the store or an address cannot be used.
        FarsideError: The store cannot be brought up to date.
    """
    start_logging(config.log_level)
    rules_of(config)
    config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
    store = EventStore(config.store_url)
    upgrade(store)
    store.close()
    return asyncio.run(_Parts(config).run())


def rules_of(config: ManagerConfig | SlurmConfig) -> Rules:
    """By what jobs are scheduled.

    Raises:
        ConfigError: No such policy or placement, or it can't be used on real nodes.
    """
    told = named_settings("policy_settings", config.policy_settings)
    placement = make_placement(config.placement, {})
    if placement.ledger(()).is_pooled:
        raise ConfigError(f"placement: {config.placement} does not say on which nodes", hint="take consolidate")
    try:
        reserve_after_s = reserve_after(config.reserve_after_s)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Rules(
        order=make_order(config.policy, told),
        placement=placement,
        min_run_s=config.min_run_s,
        reserve_after_s=reserve_after_s,
        tenancy=tenancy_of(config) if isinstance(config, ManagerConfig) else None,
    )


def named_settings(of: str, text: str) -> Mapping[str, str]:
    """Values by name of ``NAME=VALUE; NAME=VALUE``.

    Raises:
        ConfigError: A part has no equals sign.
    """
    told: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{of}: '{part}' is not NAME=VALUE")
        told[name.strip()] = value.strip()
    return told


# ---------------------------------------------------------------------------------------------- the parent


class _Parts:
    """The parts by name, started again as often as they end."""

    def __init__(self, config: ManagerConfig) -> None:
        self._config = config
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[str, SpawnProcess] = {}
        self._beats: dict[str, Beat] = {}
        self._stop = asyncio.Event()
        self._failure = 0

    async def run(self) -> int:
        with on_end_signals(self._stop.set):
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch())
                keeping = [group.create_task(self._keep(name)) for name in _PARTS]
                await asyncio.wait(keeping)
                watching.cancel()
        self._pids_file.unlink(missing_ok=True)
        return self._failure

    @property
    def _pids_file(self) -> Path:
        """For `farside status`, and whoever wants to end a part."""
        return self._config.state_dir / PIDS

    async def _keep(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            begun_s = time.monotonic()
            beat = self._beats[name] = self._context.Value("d", 0.0, lock=False)
            process = self._context.Process(target=_part, args=(name, self._config, beat), name=f"farside-{name}")
            process.start()
            self._running[name] = process
            self._write_pids()
            code = await self._end_of(process)
            if self._stop.is_set():
                return
            if code == ConfigError.exit_code:
                self._failure = code
                self._stop.set()
                return
            pause_s = FIRST_PAUSE_S if time.monotonic() - begun_s > LONG_ENOUGH_S else pause_s
            _log.error("a part ended, and is started again", part=name, exit_code=code, pause_s=pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _watch(self) -> None:
        """Kills parts that hang, and tells systemd that this process does not."""
        while True:
            if watchdog_period_s() > 0:
                notify_systemd("WATCHDOG=1")
            for name, process in self._running.items():
                beat_s = self._beats[name].value  # 0: it is still being loaded
                silent_s = time.monotonic() - beat_s
                if beat_s and process.is_alive() and silent_s > HANG_S[name]:
                    _log.error("a part hangs, and is killed", part=name, silent_s=silent_s)
                    process.kill()
            await asyncio.sleep(BEAT_PERIOD_S)

    async def _end_of(self, process: SpawnProcess) -> int:
        """Its exit code, once it has ended by itself, or was told to as all shall."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, ended.set)
        try:
            stopping = asyncio.ensure_future(self._stop.wait())
            ending = asyncio.ensure_future(ended.wait())
            await asyncio.wait((stopping, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ended.is_set():
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_LIMIT_S):
                        await ended.wait()
            if not ended.is_set():
                process.kill()
                await ended.wait()
            stopping.cancel()
            ending.cancel()
        finally:
            loop.remove_reader(process.sentinel)
        process.join()
        return process.exitcode or 0

    def _write_pids(self) -> None:
        told = {"manager": os.getpid()} | {name: process.pid for name, process in self._running.items()}
        part = self._pids_file.with_suffix(".part")
        part.write_text(json.dumps({"pids": told, "listen": self._config.listen}))
        part.replace(self._pids_file)


# ---------------------------------------------------------------------------------------------- the parts


def _part(name: str, config: ManagerConfig, beat: Beat) -> None:
    """What runs in a process of its own."""
    start_logging(config.log_level)
    try:
        asyncio.run(_until_told(_PARTS[name](config), beat))
    except* FarsideError as several:
        error = _first(several)
        _log.error("ends", part=name, reason=error)
        os._exit(error.exit_code)


def _first(group: BaseExceptionGroup[FarsideError]) -> FarsideError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


async def _until_told(work: Coroutine[None, None, None], beat: Beat) -> None:
    """Runs until a signal, or until the parent is gone."""
    stop = asyncio.Event()
    parent = multiprocessing.parent_process()
    loop = asyncio.get_running_loop()
    if parent is not None:
        loop.add_reader(parent.sentinel, stop.set)
    with on_end_signals(stop.set):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(work)
            stopping = group.create_task(stop.wait())
            beating = group.create_task(_keep_beating(beat))
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (running, stopping, beating):
                task.cancel()


async def _keep_beating(beat: Beat) -> None:
    while True:
        beat.value = time.monotonic()  # of the whole machine, so that the parent can compare it with its own
        await asyncio.sleep(BEAT_PERIOD_S)


async def _brain(config: ManagerConfig) -> None:
    from farside.scheduler.live.brain import Brain

    holder = f"{config.node}:{os.getpid()}"
    await Brain(EventStore(config.store_url), rules_of(config), config.state_dir, holder).run()


async def _api(config: ManagerConfig) -> None:
    import uvicorn

    from farside.scheduler.live.api.agents import AgentSessions
    from farside.scheduler.live.api.app import make_app
    from farside.scheduler.live.api.caller import Callers, PeerProtocol
    from farside.scheduler.live.api.metrics import ManagerCollector
    from farside.scheduler.live.api.web_session import WebSessions, session_key
    from farside.scheduler.live.follow import LiveLog
    from farside.scrape import serve_metrics

    # The store is read in a thread; by default that one keeps the loop waiting for 5 ms at each turn.
    sys.setswitchinterval(SWITCH_S)

    class Server(uvicorn.Server):
        """One that leaves signals to us."""

        capture_signals = nullcontext  # type: ignore[assignment]

    log = LiveLog(EventStore(config.store_url), config.state_dir)
    operators = frozenset(names_in(config.operators))
    callers = Callers(config.tokens_file, operators, os.geteuid(), WebSessions(session_key(config.state_dir)))
    sessions = AgentSessions(log, callers, config.node_timeout_s)
    app = make_app(
        log, callers, config.state_dir, sessions, may_tokens_submit=config.token_submit,
        tenancy=tenancy_of(config), gpu_power_w=config.gpu_power_w,
    )  # fmt: skip

    def server(kind: str) -> uvicorn.Server:
        secure: Mapping[str, str] = {}
        if kind == "tcp" and config.tls_cert.is_absolute():
            secure = {"ssl_certfile": str(config.tls_cert), "ssl_keyfile": str(config.tls_key)}
        return Server(
            uvicorn.Config(
                app, http=PeerProtocol, ws="websockets-sansio", ws_max_size=_FRAME_BYTES, ws_ping_interval=10.0,
                ws_ping_timeout=10.0, lifespan="off", log_config=None, access_log=False, proxy_headers=False,
                server_header=False, timeout_graceful_shutdown=2, **secure,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    with ExitStack() as stack:
        sockets = {"unix": [], "tcp": []}  # type: dict[str, list[object]]
        for endpoint in config.listen:
            listener = open_listener(endpoint)
            stack.callback(close_listener, listener)
            where = parse_endpoint(endpoint)
            if isinstance(where, str):
                os.chmod(where, 0o666)  # noqa: S103 - anybody may connect: the kernel says who it is
            sockets[endpoint.partition(":")[0]].append(listener)
        _check_tls(config)
        metrics = ManagerCollector(log, sessions, app.state.glance, config.state_dir)
        if config.metrics_listen:
            scraped = await serve_metrics(config.metrics_listen, metrics.registry())
            stack.callback(scraped.close)
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(log.run(ready.set))
            await ready.wait()
            group.create_task(sessions.watch_silence())
            if config.metrics_listen:
                group.create_task(metrics.keep_asking())
            for kind, listeners in sockets.items():
                if listeners:
                    group.create_task(server(kind).serve(sockets=listeners))  # type: ignore[arg-type]
            _log.info("ready", listen=", ".join(config.listen), entries=log.state.seq)
            notify_systemd("READY=1")


def _check_tls(config: ManagerConfig) -> None:
    if not config.tls_cert.is_absolute():
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert {config.tls_cert}: {error}", hint="name a PEM certificate and its key") from error


_PARTS: Mapping[str, Callable[[ManagerConfig], Coroutine[None, None, None]]] = {"brain": _brain, "api": _api}
