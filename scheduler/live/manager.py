"""`farside manager`: the brain and the API, a process each, and this one, which starts them again when they end.

The brain may compute for a second; the API must answer meanwhile, so they share nothing but the store. Each can be
killed at any moment: what it knew is in the log, and its successor reads it (manager_parts.py has their keeper).
"""

import asyncio
import os
import ssl
import sys
from asyncio import constants
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial

from farside.config import ManagerConfig
from farside.config.check import names_in
from farside.endpoint import parse_endpoint
from farside.listen import allow_many_connections, close_listener, open_listener
from farside.log import get_log, start_logging
from farside.notify import notify_systemd
from farside.scheduler.live.accounts import tenancy_of
from farside.scheduler.live.api.renewal import Renewal
from farside.scheduler.live.housekeeping import keep_house
from farside.scheduler.live.manager_parts import Part, Parts
from farside.scheduler.live.power.setup import power_setup
from farside.scheduler.live.queued import QueueLimits
from farside.scheduler.live.rules import rules_of
from farside.scheduler.live.store.event_store import EventStore
from farside.scheduler.live.store.migrate import upgrade
from farside.tls import TlsFiles, server_tls

SWITCH_S = 5e-4
# A part's event loop that has not turned for so long hangs. The brain reads all of the log before its loop turns.
HANG_S = {"brain": 600.0, "api": 60.0}
_FRAME_BYTES = 1 << 20
MOVE_SHARE = 0.5  # of the time to empty a node: for its borrowers to move what they have

_log = get_log("manager")


def run(config: ManagerConfig) -> int:
    """Runs a manager until SIGTERM or SIGINT; returns the process's exit code.

    Raises:
        ConfigError: A setting, the store or an address cannot be used.
        FarsideError: The store cannot be brought up to date.
    """
    start_logging(config.log_level)
    rules_of(config)
    power_setup(config)
    _tls_of(config)
    config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
    store = EventStore(config.store_url)
    upgrade(store)
    store.close()
    works = {"brain": _brain, "api": _api}
    parts = {name: Part(work=work, hang_s=HANG_S[name]) for name, work in works.items()}
    return asyncio.run(Parts(config, parts).run(beside=keep_house(config)))


async def _brain(config: ManagerConfig) -> None:
    from farside.scheduler.live.brain import Brain

    holder = f"{config.node}:{os.getpid()}"
    await Brain(EventStore(config.store_url), rules_of(config), config.state_dir, holder).run()


async def _api(config: ManagerConfig) -> None:
    import uvicorn

    from farside.scheduler.live.api.agent_socket import AgentSocketProtocol
    from farside.scheduler.live.api.agents import AgentSessions
    from farside.scheduler.live.api.app import make_app
    from farside.scheduler.live.api.brain_watch import keep_asking
    from farside.scheduler.live.api.caller import Callers, peer_host
    from farside.scheduler.live.api.connection import LimitedProtocol
    from farside.scheduler.live.api.crowd import HEADER_LIMIT_S, Crowd, say_rarely
    from farside.scheduler.live.api.handshake import CountedListener, forget_failed
    from farside.scheduler.live.api.metrics import ManagerCollector
    from farside.scheduler.live.api.once import TAKES
    from farside.scheduler.live.api.web_session import WebSessions, session_key
    from farside.scheduler.live.follow import LiveLog
    from farside.scheduler.live.power.keep import LivePower
    from farside.scrape import serve_metrics

    # The store is read in a thread; by default that one keeps the loop waiting for 5 ms at each turn.
    sys.setswitchinterval(SWITCH_S)
    allow_many_connections()
    say_rarely(asyncio.get_running_loop())
    forget_failed(asyncio.get_running_loop())
    # Of a handshake of TLS, which comes before a header; uvicorn passes no other on.
    constants.SSL_HANDSHAKE_TIMEOUT = HEADER_LIMIT_S

    class Server(uvicorn.Server):
        """One that leaves signals to us."""

        capture_signals = nullcontext  # type: ignore[assignment]

    log = LiveLog(EventStore(config.store_url), config.state_dir)
    operators = frozenset(names_in(config.operators))
    callers = Callers(
        config.tokens_file, operators, os.geteuid(), WebSessions(session_key(config.state_dir)),
        munge_socket=config.munge_socket if config.auth == "munge" else None,
    )  # fmt: skip
    sessions = AgentSessions(log, callers, config.node_timeout_s, move_s=config.power_drain_s * MOVE_SHARE)
    setup = power_setup(config)
    power = LivePower(setup, log, sessions, config.state_dir)
    app = make_app(
        log, callers, config.state_dir, sessions, may_tokens_submit=config.token_submit,
        only_uid=os.geteuid() if config.run_as == "starter" else None,
        tenancy=tenancy_of(config), gpu_power_w=config.gpu_power_w, power=power,
        queue_limits=QueueLimits(
            jobs=config.max_queued_jobs_per_user, size_bytes=config.max_queued_bytes_per_user,
            hourly_jobs=config.max_hourly_jobs_per_user,
        ),
    )  # fmt: skip

    secure = _tls_of(config)
    crowd = Crowd(frozenset({peer_host(0), peer_host(os.geteuid())}))
    protocol = partial(LimitedProtocol, crowd=crowd)

    def server(kind: str) -> uvicorn.Server:
        return Server(
            uvicorn.Config(
                app, http=protocol,  # type: ignore[arg-type]
                ws=AgentSocketProtocol, ws_max_size=_FRAME_BYTES, ws_ping_interval=10.0,
                ws_ping_timeout=10.0, lifespan="off", log_config=None, access_log=False, proxy_headers=False,
                server_header=False, timeout_graceful_shutdown=2, headers=list(TAKES.items()),
                ssl_context_factory=None if secure is None or kind != "tcp" else _always(secure),
            )
        )  # fmt: skip

    with ExitStack() as stack:
        sockets = {"unix": [], "tcp": []}  # type: dict[str, list[object]]
        for endpoint in config.listen:
            listener = open_listener(endpoint)
            if secure is not None and endpoint.startswith("tcp:"):
                listener = CountedListener(listener, crowd)
            stack.callback(close_listener, listener)
            where = parse_endpoint(endpoint)
            if isinstance(where, str) and config.run_as == "submitter":
                os.chmod(where, 0o666)  # noqa: S103 - anybody may connect: the kernel says who it is
            sockets[endpoint.partition(":")[0]].append(listener)
        metrics = ManagerCollector(log, sessions, app.state.glance, app.state.brain)
        if config.metrics_listen:
            scraped = await serve_metrics(config.metrics_listen, metrics.registry())
            stack.callback(scraped.close)
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(log.run(ready.set))
            await ready.wait()
            group.create_task(sessions.watch_silence())
            group.create_task(power.run())
            if secure is not None:
                group.create_task(Renewal(secure, _files_of(config)).run())
            group.create_task(keep_asking(app.state.brain.ask))
            if config.metrics_listen:
                group.create_task(keep_asking(metrics.ask))
            for kind, listeners in sockets.items():
                if listeners:
                    group.create_task(server(kind).serve(sockets=listeners))  # type: ignore[arg-type]
            _log.info("ready", listen=", ".join(config.listen), entries=log.state.seq)
            notify_systemd("READY=1")


def _always(context: ssl.SSLContext) -> Callable[..., ssl.SSLContext]:
    return lambda *_: context


def _files_of(config: ManagerConfig) -> TlsFiles:
    return TlsFiles(ca=config.tls_client_ca, cert=config.tls_cert, key=config.tls_key)


def _tls_of(config: ManagerConfig) -> ssl.SSLContext | None:
    if not config.tls_cert.is_absolute():
        return None
    return server_tls(_files_of(config), is_required=config.tls_client_required)
