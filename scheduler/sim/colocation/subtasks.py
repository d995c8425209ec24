"""A group played subtask by subtask: the nodes' own queues and synchroniser, with drawn times. PURE."""

import heapq
import random
from collections.abc import Sequence
from itertools import count

from farside.agent.training import node_queue, synchronizer
from farside.agent.training.node_queue import Done, Grant, Hello, NodeQueue, Want
from farside.agent.training.subtask import Progress, ToNode, phase_of
from farside.agent.training.synchronizer import Joined, Members, Synchronizer
from farside.group_time import WorkProfile

_DROPPED = 5
_HALF = 0.5


def played_iterations_s(
    jobs: Sequence[WorkProfile],
    machines: int,
    rng: random.Random,
    *,
    iterations: int = 40,
    nodes: int = 1,
    spread: float = 0.03,
    delay_s: float = 0.0,
) -> dict[str, float]:
    """Seconds of an iteration of each job, on average after the first few, when they take turns.

    Args:
        jobs: They pull, compute and push; pulling and pushing take half of the time on the network each.
        machines: How many the group has, for the length of the steps.
        rng: Chance.
        iterations: How many the slowest job does.
        nodes: How many of the machines are played, each with times of its own.
        spread: Standard deviation of a step's time, as a share.
        delay_s: What a message between a node and the synchroniser takes.
    """
    return _Group(jobs, machines, rng, nodes, spread, delay_s).play(iterations)


class _Group:
    """Time goes from message to message and from end to end of subtasks."""

    def __init__(
        self,
        jobs: Sequence[WorkProfile],
        machines: int,
        rng: random.Random,
        nodes: int,
        spread: float,
        delay_s: float,
    ) -> None:
        self._jobs, self._machines, self._rng = {job.job: job for job in jobs}, machines, rng
        self._spread, self._delay_s = spread, delay_s
        self._queues, self._sync = [NodeQueue() for _ in range(nodes)], Synchronizer()
        self._coming = list[tuple[float, int, int, node_queue.Event | synchronizer.Event]]()
        self._numbers, self._now_s = count(), 0.0
        self._ends: dict[str, list[float]] = {job: [] for job in self._jobs}
        self._at: dict[str, set[int]] = {job: set() for job in self._jobs}

    def play(self, iterations: int) -> dict[str, float]:
        names = [f"{number}" for number in range(len(self._queues))]
        self._tell(Members(epoch=1, nodes=frozenset(names), jobs=dict.fromkeys(self._jobs, len(names))))
        for name in names:
            self._tell(Joined(node=name))
        for node in range(len(self._queues)):
            for job in self._jobs:
                is_only = self._machines == 1
                self._step(node, Hello(job=job, worker=node, position=0, is_first=True, is_only=is_only))
                self._step(node, Want(job=job, position=0))
        while min(len(ends) for ends in self._ends.values()) < iterations:
            self._now_s, _, node, event = heapq.heappop(self._coming)
            if isinstance(event, Progress | Members | Joined | synchronizer.Left):
                self._tell(event)
            else:
                self._step(node, event)
                if isinstance(event, Done):
                    self._finished(node, event)
        return {job: (ends[-1] - ends[_DROPPED]) / (len(ends) - 1 - _DROPPED) for job, ends in self._ends.items()}

    def _finished(self, node: int, event: Done) -> None:
        if phase_of(event.position) == "PUSH":
            there = self._at[event.job]
            there.add(node)
            if len(there) == len(self._queues):
                self._ends[event.job].append(self._now_s)
                there.clear()
        self._step(node, Want(job=event.job, position=event.position + 1))

    def _tell(self, event: synchronizer.Event) -> None:
        self._sync, told = synchronizer.step(self._sync, event)
        for message in told:
            for node in range(len(self._queues)):
                self._send(self._delay_s, node, message)

    def _step(self, node: int, event: node_queue.Event) -> None:
        self._queues[node], told = node_queue.step(self._queues[node], event)
        for output in told:
            if isinstance(output, Progress):
                self._send(self._delay_s, node, output)
            elif isinstance(output, Grant):
                took_s = self._drawn_s(output)
                self._send(took_s, node, Done(job=output.job, position=output.position))

    def _drawn_s(self, grant: Grant) -> float:
        job = self._jobs[grant.job]
        is_comp = phase_of(grant.position) == "COMP"
        seconds = job.comp_s(self._machines) if is_comp else _HALF * job.comm_s(self._machines)
        return seconds * max(0.0, self._rng.gauss(1.0, self._spread))

    def _send(self, after_s: float, node: int, event: node_queue.Event | synchronizer.Event | ToNode) -> None:
        heapq.heappush(self._coming, (self._now_s + after_s, next(self._numbers), node, event))
