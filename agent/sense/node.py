"""All that is known of this node: read in a thread of its own, because drivers and /proc may take their time."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farside import admin
from farside.agent import messages as m
from farside.agent.outbox import Reading
from farside.agent.sense.gpu import GpuSense
from farside.agent.sense.headroom import headroom_bytes, promised_bytes
from farside.agent.sense.pressure import read_psi
from farside.agent.sense.usage import Usage, usage_below
from farside.errors import FarsideError
from farside.log import get_log
from farside.memory_sense import MemorySense

DONOR_LIMIT_S = 1.0
RESERVE_SHARE = 16
"""Of the node's memory, where the operator names no reserve: what the system and the agent itself need."""

_log = get_log("agent.sense")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """What the node's memory needs to know of a live task."""

    name: str
    shepherd_pid: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Memory that this node's donor has in slabs, and which borrower has how much of it."""

    slabs_bytes: int = 0
    loans: tuple[m.Loan, ...] = ()


NOTHING_LENT = Lent()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """The node at one moment."""

    reading: Reading
    usage: Mapping[str, Usage]  # by task


class NodeSense:
    """Reads the node.

    Attributes:
        total_bytes: Memory of the node, or what it is said to have.
        latest: The newest reading.
    """

    def __init__(
        self,
        *,
        gpus: GpuSense,
        proc_root: Path,
        total_bytes: int,
        reserve_bytes: int,
        donor_socket: Path | None,
        tasks: Callable[[], tuple[RunningTask, ...]],
    ) -> None:
        """Takes the first reading, without the donor. Zeros stand for what the machine has, and a share of it.

        Raises:
            Unavailable: memory cannot be read here.
        """
        self._gpus, self._proc_root, self._donor_socket = gpus, proc_root, donor_socket
        self._memory = MemorySense(proc_root=proc_root)
        self._tasks = tasks
        self.total_bytes = total_bytes or self._memory.read().total_bytes
        self._reserve_bytes = reserve_bytes or self.total_bytes // RESERVE_SHARE
        self.latest = self._read((), NOTHING_LENT)

    async def read(self) -> NodeReading:
        """The node now; what cannot be read keeps its last value, and is logged."""
        lent = await self._lent()
        tasks = self._tasks()
        try:
            self.latest = await asyncio.to_thread(self._read, tasks, lent)
        except (FarsideError, OSError) as error:
            _log.warning("the node cannot be read", why=error)
        return self.latest

    def _read(self, tasks: tuple[RunningTask, ...], lent: Lent) -> NodeReading:
        memory = self._memory.read()
        usage = {task.name: usage_below(task.shepherd_pid) for task in tasks}
        promised = promised_bytes((task.limit_bytes, usage[task.name].rss_bytes) for task in tasks)
        reading = Reading(
            at_s=time.time(),
            headroom_bytes=headroom_bytes(
                total_bytes=min(self.total_bytes, memory.total_bytes),
                available_bytes=memory.available_bytes,
                lent_bytes=lent.slabs_bytes,
                reserve_bytes=self._reserve_bytes,
                promised_bytes=promised,
            ),
            psi=read_psi(self._proc_root),
            gpus=self._gpus.read(),
            loans=lent.loans,
        )
        return NodeReading(reading=reading, usage=usage)

    async def _lent(self) -> Lent:
        """What this node's donor has in slabs, and who has them; nothing where there is no donor."""
        if self._donor_socket is None or not self._donor_socket.exists():
            return NOTHING_LENT
        try:
            told = await admin.ask(self._donor_socket, "status", timeout_s=DONOR_LIMIT_S)
            return lent_of(told)
        except (FarsideError, KeyError, TypeError, ValueError) as error:
            _log.debug("the donor does not say what it has lent", why=error)
            return NOTHING_LENT


def lent_of(told: Mapping[str, Any]) -> Lent:
    """What a donor's status says of its slabs and borrowers.

    Raises:
        KeyError, TypeError, ValueError: It is no donor's status.
    """
    sessions = [(str(one["borrower"])[:64], int(one["slabs"]) * int(told["slab_bytes"])) for one in told["sessions"]]
    largest = sorted(sessions, key=lambda one: -one[1])[: m.LOANS_MAX]
    loans = tuple(m.Loan(borrower=name, bytes=count) for name, count in largest if count)
    return Lent(slabs_bytes=int(told["memory"]["slabs_bytes"]), loans=loans)


def boot_id() -> str:
    """The kernel's id of this boot; another one means that no task of before runs."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def healthy(gpus: tuple[m.Gpu, ...]) -> frozenset[int]:
    """Indexes of those that tasks may have."""
    return frozenset(gpu.index for gpu in gpus if gpu.healthy)
