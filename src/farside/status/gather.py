"""Requests for `farside status`: finds the admin sockets, and asks each process."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from farside import admin
from farside.client.manager_client import STANDARD, UnixConnection
from farside.config.agent import AgentConfig
from farside.config.aggregator import AggregatorConfig
from farside.config.blockdev import BlockdevConfig
from farside.config.daemon import DaemonConfig
from farside.config.manager import ManagerConfig
from farside.errors import PeerError
from farside.sandbox.layout import RUN_FOLDER, ProcessRecord, read_record

ANSWER_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process and what it says of itself.

    `status` is the JSON of its admin socket, empty when it does not answer; then `error` says why in one line.
    """

    name: str
    role: str
    pid: int
    socket: str
    status: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def gather(*, state: Path | None, socket: Path | None) -> tuple[ProcessStatus, ...]:
    """The processes behind one socket, in one sandbox's folder, or at the default sockets of this machine.

    Raises:
        FarsideError: none of them answers.
    """
    if socket is not None:
        found = [_ask("", "", socket)]
    elif state is not None:
        record = read_record(state)
        found = [_ask(record.blockdev.name, "blockdev", Path(record.blockdev.admin_socket), pid=record.blockdev.pid)]
        found += [_ask(donor.name, "daemon", Path(donor.admin_socket), pid=donor.pid) for donor in record.donors]
        if record.cluster is not None:
            found += [_manager_of(record.cluster.manager)]
            found += [_ask(one.name, "agent", Path(one.admin_socket), pid=one.pid) for one in record.cluster.agents]
            shared = record.cluster.aggregators
            found += [_ask(one.name, "aggregator", Path(one.admin_socket), pid=one.pid) for one in shared]
    else:
        places = (
            ("blockdev", BlockdevConfig().admin_socket),
            ("daemon", DaemonConfig().admin_socket),
            ("agent", AgentConfig().admin_socket),
            ("aggregator", AggregatorConfig().admin_socket),
            ("aggregator", AgentConfig().aggregator_socket),
        )
        found = [_ask("", role, Path(place)) for role, place in places if Path(place).exists()]
        manager = Path(STANDARD.removeprefix("unix:"))
        if manager.exists():
            found.append(_manager("manager", manager, lambda: _pid_in(ManagerConfig().state_dir)))
    if not any(process.status for process in found):
        why = found[0].error if found else "no Farside process runs on this machine"
        raise PeerError(why, hint="" if found else "name its socket with --socket, or a sandbox's folder with --state")
    return tuple(found)


def statuses_of(processes: Iterable[ProcessStatus], role: str) -> list[dict[str, Any]]:
    """What those of this role say of themselves."""
    return [process.status for process in processes if process.role == role and process.status]


def _manager_of(record: ProcessRecord) -> ProcessStatus:
    """The manager of a sandbox. A manager that the sandbox did not start has its process id in its folder."""
    folder = Path(record.config).parent / RUN_FOLDER
    return _manager(record.name, Path(record.admin_socket), lambda: record.pid or _pid_in(folder))


def _manager(name: str, socket: Path, pid_of: Callable[[], int]) -> ProcessStatus:
    """The manager's health, asked by HTTP."""
    connection = UnixConnection(str(socket))
    connection.timeout = ANSWER_LIMIT_S
    try:
        connection.request("GET", "/v1/health")
        health: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        return ProcessStatus(name=name, role="manager", pid=pid_of(), socket=str(socket), error=f"{socket}: {why}")
    finally:
        connection.close()
    pid = pid_of()
    return ProcessStatus(name=name, role="manager", pid=pid, socket=str(socket), status={"pid": pid, **health})


def _pid_in(folder: Path) -> int:
    """Process id of the manager with this `state_dir`; 0 if its file is not there yet."""
    try:
        return int(json.loads((folder / "manager.json").read_text())["pids"]["manager"])
    except (OSError, ValueError, KeyError):
        return 0


def _ask(name: str, role: str, socket: Path, *, pid: int = 0) -> ProcessStatus:
    try:
        told = admin.call(socket, "status", timeout_s=ANSWER_LIMIT_S)
    except PeerError as error:
        return ProcessStatus(name=name, role=role, pid=pid, socket=str(socket), error=str(error))
    return ProcessStatus(
        name=str(told.get("node", name)),
        # A donor says nothing of the kind, but only a donor has memory of its own to tell of.
        role=role or str(told.get("kind", "")) or ("daemon" if "memory" in told else "blockdev"),
        pid=pid or int(told.get("pid", 0)),
        socket=str(socket),
        status=told,
    )
