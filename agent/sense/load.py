"""Samples how busy the GPUs of running tasks are, once in `SAMPLE_S`, whether or not there is a manager.

Only whole GPUs: what a part of one does its driver does not tell, and the load of all of it is not one task's.
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

    def __init__(self, gpus: GpuSense, tasks: Callable[[], Iterable[Task]], *, clock: Clock) -> None:
        """``tasks``: those that the node knows."""
        self._gpus, self._tasks, self._clock = gpus, tasks, clock
        self._history = LoadHistory()

    async def run(self) -> None:
        """Samples until it is cancelled; returns at once where no driver reports a load."""
        while self._gpus.tells_load:
            held = own_gpus(self._tasks())
            indexes = sorted({gpu for gpus in held.values() for gpu in gpus})
            # In a thread: a driver may be slow. Nothing is asked while no task has a GPU.
            busy = await asyncio.to_thread(self._gpus.busy, indexes) if indexes else {}
            self._history.sample(held, busy, self._clock.now_s())
            await self._clock.sleep_until_s(self._clock.now_s() + SAMPLE_S)

    def read(self) -> tuple[m.TaskLoad, ...]:
        """The load of each task that is watched."""
        return self._history.loads(self._clock.now_s())


def own_gpus(tasks: Iterable[Task]) -> Mapping[Key, tuple[int, ...]]:
    """The GPUs of each running task that has only whole ones, and at least one."""
    running = (task for task in tasks if task.state.state == "running" and task.devices)
    return {
        key_of(task.state): tuple(device.gpu for device in task.devices)
        for task in running
        if all(device.part == WHOLE for device in task.devices)
    }
