"""The API process: it listens, serves the application, and keeps the tasks beside it running."""

import asyncio
import logging
import os
import ssl
import sys
from asyncio import constants
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from socket import socket

import uvicorn

from farside.agent.mutual_proof import CODED_BYTES_MAX
from farside.config import ManagerConfig
from farside.config.check import names_in
from farside.endpoint import parse_endpoint
from farside.listen import allow_many_connections, close_listener, open_listener
from farside.log import RareFilter, get_log
from farside.notify import notify_systemd
from farside.scheduler.configured_rules import idle_rules_of, partitions_of, rules_of, tenancy_of
from farside.scheduler.manager.api.app import make_app
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.idempotency import TAKES
from farside.scheduler.manager.api.limit.connections import HEADER_LIMIT_S, Connections, say_rarely
from farside.scheduler.manager.api.limit.handshake import CountedListener, forget_failed
from farside.scheduler.manager.api.limit.http_connection import UVICORNS_LINE, LimitedProtocol
from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.auth.caller import Callers, peer_host
from farside.scheduler.manager.auth.tls_reload import TlsReload, files_of, renewed_tls
from farside.scheduler.manager.auth.web_session import WebSessions, session_key
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.queue_quota import QueueLimits
from farside.scheduler.manager.nodes.agent_socket import UVICORNS_REFUSAL, AgentSocketProtocol
from farside.scheduler.manager.nodes.sessions import AgentSessions
from farside.scheduler.manager.power.check_setup import PowerSetup
from farside.scheduler.manager.power.controller import LivePower
from farside.scheduler.manager.scheduler_watch import keep_asking
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.order.catalog import TIMED, needs_of
from farside.scrape import serve_metrics

# How long a thread of Python may run before another gets the interpreter.
SWITCH_S = 5e-4
# Between two pings to an agent, and for the answer to one: within half of node_timeout_s it is noticed that one is
# silent, and for how long it has been. [L9]
PING_SHARE, PING_MOST_S = 0.25, 10.0
MOVE_SHARE = 0.5  # of the time to empty a node: for its borrowers to move what they have

_log = get_log("manager")


class _Server(uvicorn.Server):
    """One that leaves signals to us."""

    capture_signals = nullcontext  # type: ignore[assignment]


async def serve(config: ManagerConfig, *, power: PowerSetup, first_tls: ssl.SSLContext | None) -> None:
    """Serves the API until it is cancelled. ``power``, ``first_tls``: what was read when the manager started."""
    _prepare(asyncio.get_running_loop())
    context = _context(config, power)
    app = make_app(context)
    secure = renewed_tls(config, first_tls)
    connections = Connections(frozenset({peer_host(0), peer_host(os.geteuid())}))
    metrics = ManagerCollector(context, names_jobs=config.metrics_jobs)
    with ExitStack() as stack:
        sockets = _listeners(config, connections, is_secure=secure is not None, stack=stack)
        if config.metrics_listen:
            scraped = await serve_metrics(config.metrics_listen, metrics.registry())
            stack.callback(scraped.close)
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(context.log.run(ready.set))
            # Before that the state is not the whole log, and answers would be wrong.
            await ready.wait()
            group.create_task(context.sessions.watch_silence())
            group.create_task(context.sessions.watch_tokens())
            group.create_task(context.power.run())
            if secure is not None:
                reload = TlsReload(secure, files_of(config), is_of_files=secure is not first_tls)
                group.create_task(reload.run())
            group.create_task(keep_asking(context.scheduler.ask))
            if config.metrics_listen:
                group.create_task(keep_asking(metrics.ask))
            for kind, listeners in sockets.items():
                if listeners:
                    ping_s = min(PING_MOST_S, config.node_timeout_s * PING_SHARE)
                    server = _server(app, connections, secure if kind == "tcp" else None, ping_s=ping_s)
                    group.create_task(server.serve(sockets=listeners))
            _log.info("ready", listen=", ".join(config.listen), entries=context.log.state.seq)
            # Sent each time that the API has begun, also after a restart by its parent.
            notify_systemd("READY=1")


def _prepare(loop: asyncio.AbstractEventLoop) -> None:
    """Sets what holds for the whole process."""
    # The store is read in a thread; by default that one keeps the loop waiting for 5 ms at each turn.
    sys.setswitchinterval(SWITCH_S)
    allow_many_connections()
    say_rarely(loop)
    strangers = logging.getLogger("uvicorn.error")
    strangers.addFilter(lambda line: line.msg not in (UVICORNS_LINE, UVICORNS_REFUSAL))  # ours say more
    strangers.addFilter(RareFilter())
    forget_failed(loop)
    # Of a handshake of TLS, which comes before a header; uvicorn passes no other on.
    constants.SSL_HANDSHAKE_TIMEOUT = HEADER_LIMIT_S


def _context(config: ManagerConfig, power: PowerSetup) -> Context:
    log = LiveLog(EventStore(config.store_url), config.state_dir)
    callers = Callers(
        config.tokens_file, frozenset(names_in(config.operators)), os.geteuid(),
        WebSessions(session_key(config.state_dir)),
        munge_socket=config.munge_socket if config.auth == "munge" else None,
        admissions=lambda: log.state.admissions,
    )  # fmt: skip
    sessions = AgentSessions(
        log, callers, config.node_timeout_s, move_s=config.power_drain_s * MOVE_SHARE,
        takes_unproved=config.accept_unproved_agents, secret=log.store.secret(), idle=idle_rules_of(config),
        recall_s=config.recall_s, rest_after_s=config.rest_after_s,
    )  # fmt: skip
    return Context(
        log=log,
        callers=callers,
        folder=config.state_dir,
        sessions=sessions,
        power=LivePower(power, log, sessions, config.state_dir),
        may_tokens_submit=config.token_submit,
        gpu_power_w=config.gpu_power_w,
        only_uid=os.geteuid() if config.run_as == "starter" else None,
        tenancy=tenancy_of(config),
        colocation_nodes=frozenset(names_in(config.colocation_nodes)),
        partitions=partitions_of(config),
        cpus_in_proportion=config.cpus_in_proportion,
        goes_by_run_times=needs_of(rules_of(config).order) in TIMED,
        queue_limits=QueueLimits(
            jobs=config.max_queued_jobs_per_user,
            size_bytes=config.max_queued_bytes_per_user,
            hourly_jobs=config.max_hourly_jobs_per_user,
        ),
        paces_users=True,
    )


def _listeners(
    config: ManagerConfig, connections: Connections, *, is_secure: bool, stack: ExitStack
) -> Mapping[str, list[socket]]:
    """Sockets by kind, unix and tcp, which ``stack`` closes."""
    found: dict[str, list[socket]] = {"unix": [], "tcp": []}
    for endpoint in config.listen:
        listener = open_listener(endpoint)
        if is_secure and endpoint.startswith("tcp:"):
            listener = CountedListener(listener, connections)
        stack.callback(close_listener, listener)
        where = parse_endpoint(endpoint)
        if isinstance(where, str) and config.run_as == "submitter":
            os.chmod(where, 0o666)  # noqa: S103 - anybody may connect: the kernel says who it is
        found[endpoint.partition(":")[0]].append(listener)
    return found


def _server(app: object, connections: Connections, secure: ssl.SSLContext | None, *, ping_s: float) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app, http=partial(LimitedProtocol, connections=connections),  # type: ignore[arg-type]
            ws=AgentSocketProtocol, ws_max_size=CODED_BYTES_MAX, ws_ping_interval=ping_s,
            ws_ping_timeout=ping_s, lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, timeout_graceful_shutdown=2, headers=list(TAKES.items()),
            ssl_context_factory=None if secure is None else lambda *_: secure,
        )
    )  # fmt: skip
