"""Which nodes the jobs that wait would fill: idle ones that must stay on, and sleeping ones that are woken. PURE.

The simulator counts in whole nodes of one size [helios §4.3.2, JobArrivalCheck]; here nodes differ, so they are named,
and a job wakes none that it could not use: of another model or of other users, reserved, too small for one of its GPUs.
Nor does a job that its account or QOS holds back.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from farside.scheduler.energy.power.state import Phase
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.record import LiveJob, LiveNode
from farside.scheduler.live.record import Phase as JobPhase
from farside.scheduler.live.snapshot import is_holding, is_ready, job_of
from farside.scheduler.tenancy import Cap, Tenancy

# The brain has looked at a job that has waited for so long: what is free is not for it.
SETTLED_S = 5.0
# So many are looked at; who stands behind them waits for others than nodes anyway.
LOOKED_AT = 1000


@dataclass(slots=True)
class _Room:
    """GPUs that jobs which wait may still be thought to fill."""

    node: LiveNode
    gpus: int


def lacked(state: LiveState, tenancy: Tenancy | None, now_s: float) -> tuple[str, ...]:
    """The nodes that waiting jobs would fill: first idle ones that are on, then those on their way up, then others.

    A job that has just come may get an idle node at any moment; it wakes none before the brain has looked at it.
    """
    waiting = list(islice(_waiting(state), LOOKED_AT))
    if not waiting:
        return ()
    busy = {name for job in state.live_jobs() for name in job.nodes if is_holding(job)}
    free = [
        _Room(node=node, gpus=len(node.gpus))
        for node in state.nodes.values()
        if node.is_taking and not node.tasks and node.name not in busy
    ]
    asleep = [_Room(node=node, gpus=len(node.gpus)) for node in _in_order(state)]
    caps = _Caps(state, tenancy)
    called: dict[str, None] = {}
    for job in waiting:
        if not any(room.gpus for room in (*free, *asleep)):
            break
        if not caps.admits(job) or _most_gpus(state, job, now_s) < job.spec.gpus:
            continue
        left = _fill(state, job, free, job.spec.gpus, now_s, called)
        if now_s - max(job.since_s, job.submit_s) >= SETTLED_S:
            _fill(state, job, asleep, left, now_s, called)
    return tuple(called)


def _in_order(state: LiveState) -> list[LiveNode]:
    order: Mapping[Phase, int] = {Phase.BOOTING: 0, Phase.DRAINING: 1, Phase.OFF: 2}
    found = [node for node in state.nodes.values() if node.power is not None and node.power.phase in order]
    return sorted(found, key=lambda node: (order[node.power.phase] if node.power else 0, node.name))


def _waiting(state: LiveState) -> Iterator[LiveJob]:
    return (job for job in state.live_jobs() if job.phase is JobPhase.WAITING and is_ready(state, job))


def _fill(state: LiveState, job: LiveJob, rooms: list[_Room], gpus: int, now_s: float, called: dict[str, None]) -> int:
    """Takes GPUs for a job where it fits; how many it still lacks."""
    for room in rooms:
        taken = min(gpus, room.gpus, _fitting(state, room.node, job, now_s))
        if taken > 0:
            room.gpus -= taken
            gpus -= taken
            called[room.node.name] = None
        if not gpus:
            break
    return gpus


def _fitting(state: LiveState, node: LiveNode, job: LiveJob, now_s: float) -> int:
    """GPUs of a job that an empty node could take; 0: none, now or ever."""
    spec = job.spec
    if node.drain_reason or node.unhealthy or not node.suits(spec, job.user):
        return 0
    end_s = now_s + (spec.time_limit_s or math.inf)
    for one in state.maintenance.values():
        if node.name in one.nodes and one.is_pending(now_s) and end_s > one.begin_s:
            return 0
    fits = float(len(node.gpus))
    if spec.cpus_per_gpu and node.cpus:
        fits = min(fits, node.cpus // spec.cpus_per_gpu)
    if spec.memory_bytes_per_gpu and node.memory_bytes:
        fits = min(fits, node.memory_bytes // spec.memory_bytes_per_gpu)
    if spec.swap_bytes_per_gpu:
        own_bytes = node.swap_own_bytes if node.is_up else 0  # what ran there before it slept is gone
        fits = min(fits, (node.swap_bytes - own_bytes) // spec.swap_bytes_per_gpu)
    return max(0, int(fits))


def _most_gpus(state: LiveState, job: LiveJob, now_s: float) -> int:
    """GPUs that it could have with every node on and nobody else there."""
    return sum(
        _fitting(state, node, job, now_s)
        for node in state.nodes.values()
        if node.is_up or (node.power is not None and node.power.phase in (Phase.OFF, Phase.BOOTING))
    )


class _Caps:
    """What accounts and users hold, with what those before in the queue are thought to get."""

    def __init__(self, state: LiveState, tenancy: Tenancy | None) -> None:
        self._tenancy = tenancy
        self._gpus: Counter[str] = Counter()
        self._jobs: Counter[str] = Counter()
        if tenancy is not None:
            for job in state.live_jobs():
                if is_holding(job):
                    self._hold(job, self._caps_of(job))

    def admits(self, job: LiveJob) -> bool:
        """Whether it may have its GPUs; if so, it is thought to."""
        caps = self._caps_of(job)
        for cap in caps:
            held = {"held_gpus": self._gpus[cap.owner], "held_jobs": self._jobs[cap.owner]}
            if cap.why_not(gpus=job.spec.gpus, **held):
                return False
        self._hold(job, caps)
        return True

    def _caps_of(self, job: LiveJob) -> tuple[Cap, ...]:
        return () if self._tenancy is None else self._tenancy.standing(job_of(job)).caps

    def _hold(self, job: LiveJob, caps: tuple[Cap, ...]) -> None:
        for cap in caps:
            self._gpus[cap.owner] += job.spec.gpus
            self._jobs[cap.owner] += 1
