"""Actions on a running sandbox, for the demo and tests: kill, start, squeeze, replace.

Everything takes the sandbox's folder and a donor's name. Killing is `kill -9`, with nothing said to anybody before.
"""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import PeerError
from farside.sandbox import pressure
from farside.sandbox.layout import SandboxRecord, read_record
from farside.sandbox.waiting import wait_until

ANSWER_LIMIT_S = 15.0
# What was asked to start a process answers when that is ready, which on a busy machine takes its time.
START_LIMIT_S = 90.0
END_LIMIT_S = 5.0
LOOK_EVERY_S = 0.01

Status = Mapping[str, Any]
"""A process's status as its admin socket tells it: JSON."""


def kill_donor(state: Path, name: str) -> None:
    """Ends a donor with SIGKILL and returns when the sandbox has noticed."""
    pid = read_record(state).donor(name).pid
    if pid == 0:
        raise PeerError(f"donor {name} does not run")
    os.kill(pid, signal.SIGKILL)
    _until_noticed(lambda: read_record(state).donor(name).pid != pid, f"donor {name} (process {pid})")


def start_donor(state: Path, name: str) -> None:
    """Starts a donor that was killed, with the memory of a fresh process, and returns when it answers."""
    _start(state, "start_donor", name=name)


def kill_manager(state: Path) -> None:
    """Ends the manager with SIGKILL and returns when the sandbox has noticed."""
    pid = _manager_pid(state)
    os.kill(pid, signal.SIGKILL)
    _until_noticed(lambda: _manager_pid(state) != pid, f"the manager (process {pid})")


def start_manager(state: Path) -> None:
    """Starts the manager that was killed, and returns when it answers."""
    _start(state, "start_manager")


def start_agent(state: Path, name: str) -> None:
    """Starts an agent that was killed or left for later, and returns when it has reached the manager."""
    _start(state, "start_agent", name=name)


def kill_aggregator(state: Path, name: str) -> None:
    """Ends an Aggregator with SIGKILL, parent and server, and returns when the sandbox has noticed."""
    pid = read_record(state).aggregator(name).pid
    os.killpg(pid, signal.SIGKILL)
    _until_noticed(lambda: read_record(state).aggregator(name).pid != pid, f"Aggregator {name} (process {pid})")


def start_aggregator(state: Path, name: str) -> None:
    """Starts an Aggregator that was killed, and returns when it answers."""
    _start(state, "start_aggregator", name=name)


def squeeze(state: Path, name: str, used_bytes: int) -> None:
    """Makes the donor's own programs use that much of its memory from now on (simulated; see `pressure`)."""
    read_record(state).donor(name)
    pressure.squeeze(state, name, used_bytes)


def crowd(state: Path, name: str, free_bytes: int) -> int:
    """Lets the donor's own programs grow until only so much is free beside what it lends now; returns what they use.

    Less than the headroom makes the donor recall slabs, with the more time to move them the more is free; to take all
    and more at once, `squeeze` to the donor's whole memory.
    """
    found = read_record(state)
    lent = pressure.lent_bytes(found.donor(name).pid)
    used = max(0, found.donor_memory_bytes - lent - free_bytes)
    pressure.squeeze(state, name, used)
    return used


def replace(state: Path) -> None:
    """Replaces the borrower's server process by a new one, in the planned way, and returns when that serves."""
    ask(Path(read_record(state).blockdev.admin_socket), "replace")


def kill_blockdev(state: Path) -> int:
    """Ends the borrower's server process (not its supervisor) with SIGKILL; returns the process id it had."""
    pid = int(blockdev_status(state)["server_pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


def blockdev_status(state: Path) -> Status:
    """The borrower's status."""
    return ask(Path(read_record(state).blockdev.admin_socket), "status")


def donor_status(state: Path, name: str) -> Status:
    """A donor's status."""
    return ask(Path(read_record(state).donor(name).admin_socket), "status")


def record(state: Path) -> SandboxRecord:
    """What runs in the sandbox."""
    return read_record(state)


def ask(socket: Path, command: str, **arguments: Any) -> Status:
    """The answer of the process behind an admin socket.

    Raises:
        PeerError: nothing runs there, or it refused.
    """
    answer: Status = admin.call(socket, command, timeout_s=ANSWER_LIMIT_S, **arguments)
    return answer


def _start(state: Path, command: str, **arguments: Any) -> None:
    admin.call(Path(read_record(state).admin_socket), command, timeout_s=START_LIMIT_S, **arguments)


def _manager_pid(state: Path) -> int:
    cluster = read_record(state).cluster
    if cluster is None:
        raise PeerError("this sandbox has no manager", hint="start it with --cluster")
    return cluster.manager.pid


def _until_noticed(look: Callable[[], bool], what: str) -> None:
    wait_until(look, f"the end of {what}", limit_s=END_LIMIT_S, every_s=LOOK_EVERY_S)
