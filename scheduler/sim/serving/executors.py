"""Glets as service times: batches run as long as the profile says beside what the neighbour runs. PURE."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.scheduler.sharing.glet.round import Dispatch, GletRound, Slot, look
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.serving.arrivals import ArrivedQueue, GatedQueue


@dataclass(slots=True, eq=False)
class _Executor:
    glet: Glet
    round: GletRound
    neighbour: "_Executor | None" = None
    runs: tuple[str, int] | None = None
    since_s: float = 0.0
    until_s: float = 0.0
    is_closed: bool = False

    def learn(self) -> None:
        """Tells its round how long the batch that has ended took."""
        assert self.runs is not None
        model, requests = self.runs
        slot = next(one for one in self.round.slots if one.model == model)
        self.round.paces[model].ended(slot.latency_s[requests - 1], self.until_s - self.since_s)


class Executors:
    """All glets of a plan at work.

    Args:
        planned: Models and device as the scheduler sees them: by these latencies rounds decide.
        real: Models and device with their interference: by these batches run. A neighbour slows a batch if it runs when
            the batch begins.
        queues: Requests by model.
        early: Glets do not wait where nothing else runs.
        learns: Glets learn how late their batches end, as those that serve do; the paper's know what is planned alone.
    """

    def __init__(
        self, planned: Sizes, real: Sizes, queues: Mapping[str, ArrivedQueue], *, early: bool = True,
        learns: bool = True,
    ) -> None:  # fmt: skip
        self._planned, self._real, self._queues, self._early = planned, real, queues, early
        self._learns = learns
        self._executors: list[_Executor] = []
        self._events: list[tuple[float, int, _Executor]] = []
        self._beside: dict[str, list[GletRound]] = {}
        self._number = 0
        self.batches = 0

    def switch(self, plan: Plan, now_s: float) -> None:
        """The routes of a plan from now on: glets that leave end their batch and have no further turn."""
        # A plan may have equal glets: the same model on both halves of a GPU.
        before, kept = self._executors, list[_Executor]()
        for at, glet in enumerate(plan.glets):
            found = next((one for one in before if one.glet == glet), None)
            if found is not None:
                before.remove(found)
            kept.append(found if found is not None else self._opened(plan, at))
        for executor in before:
            executor.is_closed = True
        self._executors = kept
        self._beside = {}
        for executor in kept:
            for slot in executor.round.slots:
                self._beside.setdefault(slot.model, []).append(executor.round)
        for name, queue in self._queues.items():
            if isinstance(queue, GatedQueue):
                queue.gate.plan(sum(p.rate for glet in plan.glets for p in glet.models if p.model == name))
        by_gpu: dict[int, list[_Executor]] = {}
        for executor in kept:
            by_gpu.setdefault(executor.glet.gpu, []).append(executor)
        for executors in by_gpu.values():
            for at, executor in enumerate(executors):
                executor.neighbour = executors[1 - at] if len(executors) > 1 else None
        for executor in kept:
            if executor.runs is None:
                self._push(now_s, executor)

    def run(self, until_s: float) -> None:
        """Lets time pass."""
        events = self._events
        while events and events[0][0] < until_s:
            now_s, _, executor = heapq.heappop(events)
            if executor.runs is not None:
                if now_s < executor.until_s:
                    continue
                if self._learns:
                    executor.learn()
                executor.runs = None
            if not executor.is_closed:
                self._look(executor, now_s)

    def _look(self, executor: _Executor, now_s: float) -> None:
        found = look(executor.round, self._queues, now_s, self._beside)
        if not isinstance(found, Dispatch):
            if found.at_s < math.inf:
                self._push(max(found.at_s, now_s), executor)
            return
        self.batches += 1
        executor.runs = (found.model, found.requests)
        executor.since_s = now_s
        executor.until_s = now_s + self._service_s(executor, found, now_s)
        self._queues[found.model].take(found.requests, executor.until_s)
        self._push(executor.until_s, executor)

    def _service_s(self, executor: _Executor, found: Dispatch, now_s: float) -> float:
        pressure, neighbour = None, executor.neighbour
        if neighbour is not None and neighbour.runs is not None and neighbour.until_s > now_s:
            pressure = self._real.pressure(neighbour.glet.part_pct, [neighbour.runs])
        return self._real.latencies(found.model, executor.glet.part_pct, pressure)[found.requests - 1] / 1000

    def _opened(self, plan: Plan, at: int) -> _Executor:
        glet = plan.glets[at]
        others = [other for place, other in enumerate(plan.glets) if other.gpu == glet.gpu and place != at]
        pressure = None
        if others:
            loads = [(one.model, one.batch) for one in others[0].models]
            pressure = self._planned.pressure(others[0].part_pct, loads)
        slots = [
            Slot(
                one.model,
                one.batch,
                [ms / 1000 for ms in self._planned.latencies(one.model, glet.part_pct, pressure)],
            )
            for one in glet.models
        ]
        return _Executor(glet, GletRound(slots=slots, cycle_s=glet.cycle_ms / 1000, early=self._early))

    def _push(self, at_s: float, executor: _Executor) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, executor))
