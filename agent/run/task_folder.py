"""Folder of one task, through which agent and task supervisor exchange records; task_supervisor.py lists its files."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from farside.agent import messages as m
from farside.agent.gpu_files import NO_RULES, DeviceRules
from farside.agent.run.account import Account
from farside.agent.run.hook import Hooks
from farside.agent.run.ledger import Key
from farside.agent.run.record_file import Damaged, RecordT, read_record, write_record
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
    devices: DeviceRules = NO_RULES  # what its cgroup may open
    gpu_names: dict[int, str] = {}  # what CUDA calls its GPUs behind these rules, by index
    gpu_uuids: dict[int, str] = {}  # of its GPUs as its agent counted them; without those whose driver tells none
    fence: str = ""  # record of when the manager was last heard; empty: there is no fence


class Status(Struct, frozen=True, kw_only=True, rename={"supervisor_pid": "shepherd_pid"}):
    """State of the task, written by its supervisor. The file keeps the old name for agents of other versions."""

    state: m.TaskState
    supervisor_pid: int
    program_pid: int


class StopOrder(Struct, frozen=True, kw_only=True):
    """Order to end the task."""

    cause: str
    grace_s: float


class LimitOrder(Struct, frozen=True, kw_only=True):
    """The task may run so long from its start, if that is longer than its recipe says."""

    time_limit_s: float


def folder_name(key: Key) -> str:
    """``1.0-2`` for the second start of task 1.0."""
    return f"{key[0]}-{key[1]}"


_NAMES: Mapping[type, str] = {
    Recipe: "task.json", Status: "state.json", StopOrder: "stop.json", LimitOrder: "limit.json",
}  # fmt: skip


def write(folder: Path, record: Recipe | Status | StopOrder | LimitOrder) -> None:
    """Write one of the task's records.

    Raises:
        OSError: it cannot be written.
    """
    write_record(folder / _NAMES[type(record)], record)


def read(folder: Path, kind: type[RecordT]) -> RecordT | None:
    """The task's record of this kind; None: nobody has written it yet.

    Raises:
        Damaged, OSError: it cannot be read.
    """
    return read_record(folder / _NAMES[kind], kind)


def time_limit_s(folder: Path, start: m.Start) -> float:
    """How long a task may run from its start, as ordered last; 0: for ever."""
    own_s = start.spec.time_limit_s
    return max(own_s, ordered_limit_s(folder)) if own_s else 0.0


def ordered_limit_s(folder: Path) -> float:
    """The longer limit of a task that was ordered last; 0: there is none, or it can't be read."""
    try:
        order = read(folder, LimitOrder)
    except (Damaged, OSError):  # then it ends too early, and not too late
        return 0.0
    return order.time_limit_s if order is not None else 0.0


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
            # An agent that hangs must not hold a task's end up: its queue may be full.
            sock.setblocking(False)
            sock.sendto(b"!", path)
