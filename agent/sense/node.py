"""Readings of this node, taken in a thread of their own because drivers and /proc may be slow."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farside.agent import messages as m
from farside.agent.gpu_share import Device
from farside.agent.sense.gpu import GpuSense
from farside.agent.sense.headroom import headroom_bytes, promised_bytes
from farside.agent.sense.links import LinkSense
from farside.agent.sense.pressure import read_psi
from farside.agent.sense.rack import RackSense
from farside.agent.sense.rdma_subnet import read_lids, read_rdma_subnet
from farside.agent.sense.swap import read_farside_swap
from farside.agent.sense.usage import rss_below
from farside.agent.service.donor import NOTHING_LENT, DonorSense, Lent
from farside.errors import FarsideError
from farside.log import get_log
from farside.memory_sense import MemorySense
from farside.units import format_bytes

RESERVE_SHARE = 16
"""Of the node's memory, where the operator names no reserve: what the system and the agent itself need."""

_log = get_log("agent.sense")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """What the node's memory needs to know of a live task."""

    supervisor_pid: int
    limit_bytes: int
    cgroup: Path | None = None  # its own; None: it has none
    name: str = ""
    watched_bytes: int = 0  # above which the log says so; 0: it does not


def reserve_of(total_bytes: int, reserve_bytes: int) -> int:
    """Memory that jobs do not get: as the settings say, where 0 stands for a share of all."""
    return reserve_bytes or total_bytes // RESERVE_SHARE


class NodeSense:
    """Reads the node.

    Attributes:
        total_bytes: Memory of the node, or what it is said to have.
        jobs_bytes: What of it jobs may have.
        latest: The newest reading.
    """

    def __init__(
        self,
        *,
        gpus: GpuSense,
        proc_root: Path,
        total_bytes: int,
        reserve_bytes: int,
        donor: DonorSense,
        rdma_errors_per_hour: int,
        may_give_swap: bool,
        rack: RackSense,
        tasks: Callable[[], tuple[RunningTask, ...]],
    ) -> None:
        """Takes the first reading, without the donor. Zeros stand for what the machine has, and a share of it.

        Swap beside ``proc_root`` is told of if ``may_give_swap``: if tasks can be held to a part of it.

        Raises:
            Unavailable: memory cannot be read here.
        """
        self._gpus, self._proc_root, self._donor, self._may_give_swap = gpus, proc_root, donor, may_give_swap
        self._memory = MemorySense(proc_root=proc_root)
        self._links = LinkSense(proc_root.parent, errors_per_hour=rdma_errors_per_hour, now_s=time.monotonic)
        self._rack = rack
        self._tasks = tasks
        self._warned: frozenset[int] = frozenset()  # supervisors of tasks whose memory was warned of
        self.total_bytes = total_bytes or self._memory.read().total_bytes
        self._reserve_bytes = reserve_of(self.total_bytes, reserve_bytes)
        self.jobs_bytes = max(0, self.total_bytes - self._reserve_bytes)
        self.latest = self._read((), NOTHING_LENT)

    async def read(self) -> m.Reading:
        """The node now; what cannot be read keeps its last value, and is logged."""
        # On the event loop, as it only waits for a socket; the rest blocks, and gets a thread.
        lent = await self._donor.read()
        tasks = self._tasks()
        try:
            self.latest = await asyncio.to_thread(self._read, tasks, lent)
        except (FarsideError, OSError) as error:
            _log.warning("the node cannot be read", why=error)
        return self.latest

    def _read(self, tasks: tuple[RunningTask, ...], lent: Lent) -> m.Reading:
        memory = self._memory.read()
        used = [(task, rss_below(task.supervisor_pid)) for task in tasks]
        self._warn(used)
        promised = promised_bytes((task.limit_bytes, used_bytes) for task, used_bytes in used)
        return m.Reading(
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
            swap=self._read_swap(tasks),
            rdma_subnet=read_rdma_subnet(self._proc_root.parent),
            lids=read_lids(self._proc_root.parent),
            rack=self._rack.read(),
            unfit=self._links.read()[: m.CAUSE_CHARS_MAX],
            donor=lent.donor,
            loans=lent.loans,
            drained=lent.drained,
        )

    def _warn(self, used: list[tuple[RunningTask, int]]) -> None:
        """Says once of each task without a limit that it uses more than would be its own."""
        over = [(task, rss) for task, rss in used if task.watched_bytes and rss > task.watched_bytes]
        for task, rss_bytes in over:
            if task.supervisor_pid not in self._warned:
                _log.warning(
                    "a task without a memory limit uses more than its share", task=task.name,
                    used=format_bytes(rss_bytes), share=format_bytes(task.watched_bytes),
                    hint="name memory_per_gpu in its job: with task_memory = \"limit\" it would be killed",
                )  # fmt: skip
        there = {task.supervisor_pid for task, _ in used}
        self._warned = (self._warned & there) | {task.supervisor_pid for task, _ in over}

    def _read_swap(self, tasks: tuple[RunningTask, ...]) -> m.Swap | None:
        if not self._may_give_swap:
            return None
        return read_farside_swap(self._proc_root.parent, tasks=(task.cgroup for task in tasks if task.cgroup))


async def read_beside(
    read: Callable[[], Awaitable[m.Reading]],
    look: Callable[[], Coroutine[Any, Any, None]],
    *,
    is_urgent: Callable[[], bool],
) -> m.Reading:
    """A reading of the node, made while its borrowers are looked at.

    ``is_urgent``: whether a job may wait for what is read, asked before and after. Then what borrowers said before
    counts if they have not answered yet: as their pages are what the donor takes back, they are busy.
    """
    was_urgent = is_urgent()
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        reading = await read()
        if was_urgent or is_urgent():
            looking.cancel()
    return reading


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def healthy(gpus: tuple[m.Gpu, ...]) -> frozenset[Device]:
    """What of these tasks may have."""
    return frozenset(device for gpu in gpus if gpu.healthy for device in gpu.devices)
