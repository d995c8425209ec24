"""Folder of one task, through which agent and task supervisor exchange records; task_supervisor.py lists its files."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from farside.agent import messages as m
from farside.agent.run.account import Account
from farside.agent.run.hook import Hooks
from farside.agent.run.ledger import Key
from farside.agent.run.record_file import read_record, write_record
from farside.whole_file import lock_file


class Recipe(Struct, frozen=True, kw_only=True):
    """All that a task supervisor needs to know."""

    start: m.Start
    account: Account
    cgroup: str  # folder of the task's own cgroup; empty: the task supervisor's process tree holds it together
    mark: str  # in the environment of every process of the task, and of no other
    notify: str  # datagram socket of the agent; empty: it looks by itself
    hooks: Hooks = Hooks()
    profile: str = ""  # file for what its processes send; empty: they are not profiled


class Status(Struct, frozen=True, kw_only=True, rename={"supervisor_pid": "shepherd_pid"}):
    """State of the task, written by its supervisor. The file keeps the old name for agents of other versions."""

    state: m.TaskState
    supervisor_pid: int
    program_pid: int


class StopOrder(Struct, frozen=True, kw_only=True):
    """Order to end the task."""

    cause: str
    grace_s: float


def folder_name(key: Key) -> str:
    """``1.0-2`` for the second start of task 1.0."""
    return f"{key[0]}-{key[1]}"


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write what to run, before the task supervisor starts."""
    write_record(folder / "task.json", recipe)


def read_recipe(folder: Path) -> Recipe | None:
    """What to run, or None where the agent ended before it had written it."""
    return read_record(folder / "task.json", Recipe)


def write_status(folder: Path, status: Status) -> None:
    """Write the state of the task; the task supervisor calls this."""
    write_record(folder / "state.json", status)


def read_status(folder: Path) -> Status | None:
    """State of the task, or None where its supervisor has written none yet."""
    return read_record(folder / "state.json", Status)


def write_stop(folder: Path, order: StopOrder) -> None:
    """Write the order to stop; the agent calls this, and the task supervisor reads it on SIGUSR1."""
    write_record(folder / "stop.json", order)


def read_stop(folder: Path) -> StopOrder | None:
    """The order, if there is one."""
    return read_record(folder / "stop.json", StopOrder)


def lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None while somebody else does."""
    return lock_file(folder / "lock")


def is_locked(folder: Path) -> bool:
    """True while a task supervisor lives."""
    try:
        fd = lock(folder)
    except FileNotFoundError:  # the folder was never made
        return False
    if fd is not None:
        os.close(fd)
    return fd is None


def notify(path: str) -> None:
    """Wakes the agent, if one is there; it looks by itself too, so that a lost word costs a second at most."""
    if path:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(b"!", path)
