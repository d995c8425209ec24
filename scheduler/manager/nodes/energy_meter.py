"""What a node's GPUs draw, added up for each process that holds them, from the agent's reports. PURE.

An agent tells of each GPU what it draws now, every few seconds; what a part of a GPU draws nobody knows. Between two
reports the mean of both is taken. Of a process whose agent was away, or whose connection is a new one, only a part is
metered, and it is known how much.
"""

from collections.abc import Iterable, Mapping

from farside.agent.messages import Gpu
from farside.scheduler.manager.model.record import LiveTask, TaskKey

# Between reports that lie further apart nobody knows what was drawn.
LONGEST_GAP_S = 60.0


class PowerMeter:
    """The meter of one node's connection."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._power_w: Mapping[int, float] = {}
        self._spent: dict[TaskKey, tuple[float, float]] = {}  # J, and of how many GPU seconds

    def read(self, tasks: Iterable[LiveTask], gpus: Iterable[Gpu], at_s: float) -> None:
        """A report of ``at_s`` on the node's clock; these processes have held their GPUs since the one before."""
        power_w = {gpu.index: gpu.power_w for gpu in gpus if gpu.power_w is not None}
        passed_s, before_w = at_s - self._at_s, self._power_w
        self._at_s, self._power_w = max(at_s, self._at_s), power_w
        if not power_w or not before_w or not 0 < passed_s <= LONGEST_GAP_S:
            return
        for task in tasks:
            whole = task.gpus if not task.parts else ()
            known = [at for at in whole if at in power_w and at in before_w]
            if known:
                energy_j, gpu_s = self._spent.get(task.key, (0.0, 0.0))
                energy_j += passed_s * sum(power_w[at] + before_w[at] for at in known) / 2
                self._spent[task.key] = energy_j, gpu_s + passed_s * len(known)

    def take(self, key: TaskKey) -> tuple[float, float]:
        """Joules and metered GPU seconds of a process that is gone; the meter forgets it."""
        return self._spent.pop(key, (0.0, 0.0))
