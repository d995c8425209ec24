"""Samples how busy the GPUs of running tasks are, once in `SAMPLE_S`, whether or not there is a manager.

Only whole GPUs: what a part of one does its driver does not tell, and the load of all of it is not one task's. They are
asked for by UUID, as an index may be another GPU's after the agent has started anew.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from farside.agent import messages as m
from farside.agent.gpu_share import WHOLE
from farside.agent.run.ledger import Key, Task, key_of
from farside.agent.sense.gpu import GpuSense
from farside.agent.sense.load_history import LoadHistory
from farside.clock import Clock

SAMPLE_S = 1.0
"""NVML's own figure covers the last 1/6 s to 1 s, so that less would be missed between samples only by more of them."""


class LoadSense:
    """Watches the load while `run` runs."""

    def __init__(
        self,
        gpus: GpuSense,
        tasks: Callable[[], Iterable[Task]],
        uuids_of: Callable[[Key], Mapping[int, str]],
        *,
        clock: Clock,
    ) -> None:
        """``tasks``: those that the node knows; ``uuids_of``: UUIDs of the GPUs that one was started with, by index."""
        self._gpus, self._tasks, self._uuids_of, self._clock = gpus, tasks, uuids_of, clock
        self._history = LoadHistory()

    async def run(self) -> None:
        """Samples until it is cancelled; returns at once where no driver reports a load."""
        while self._gpus.tells_load:
            held = own_gpus(self._tasks(), self._uuids_of)
            uuids = sorted({gpu for gpus in held.values() for gpu in gpus})
            # In a thread: a driver may be slow. Nothing is asked while no task has a GPU.
            busy = await asyncio.to_thread(self._gpus.busy, uuids) if uuids else {}
            self._history.sample(held, busy, self._clock.now_s())
            await self._clock.sleep_until_s(self._clock.now_s() + SAMPLE_S)

    def read(self) -> tuple[m.TaskLoad, ...]:
        """The load of each task that is watched."""
        return self._history.loads(self._clock.now_s())


def own_gpus(tasks: Iterable[Task], uuids_of: Callable[[Key], Mapping[int, str]]) -> Mapping[Key, tuple[str, ...]]:
    """UUIDs of the GPUs of each running task that has only whole ones, at least one, and a UUID for each."""
    running = (task for task in tasks if task.state.state == "running" and task.devices)
    found = {}
    for task in running:
        key = key_of(task.state)
        uuids = uuids_of(key) if all(device.part == WHOLE for device in task.devices) else {}
        if all(device.gpu in uuids for device in task.devices):
            found[key] = tuple(uuids[device.gpu] for device in task.devices)
    return found
