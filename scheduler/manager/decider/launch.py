"""Starts of allocated jobs: decide which can start now, and on which GPUs. PURE.

`agent/run/launch.py` has another work: it makes the process of a task on the node.

The cycle decides as if who loses GPUs were gone at once; on real nodes that takes until the last process has written
its checkpoint. So a job that was placed waits here until each of its nodes has enough GPUs that nobody holds, room for
its processes, and a port for each.

A job that aggregates waits here as well while a node of its members has no room for its plan: its processes would stand
still there, with nobody to push to.

One whose memory donors of its nodes have lent waits until these have taken it back (recall.py).

One that is to have memory of other nodes, or such of its own that donors there lend, waits until others that leave have
left theirs. If donors lend less by now than when it was placed, it is placed anew: what it has counts from here on.

A job that can't be started as it is, for whatever fault, is held with the reason: it may not keep all others waiting.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import structs

from farside.agent.gpu_share import Device, parts_of
from farside.agent.messages import TASKS_MAX
from farside.errors import FarsideError
from farside.scheduler.lent_memory import LentMemory
from farside.scheduler.manager.aggregation.orders import OrderRoom, full_words
from farside.scheduler.manager.decider.placement_reason import is_to_be_profiled
from farside.scheduler.manager.decider.recall import awaited_recalls, recalls
from farside.scheduler.manager.model.event import (
    AllocationReleased,
    HoldRequested,
    JobStarted,
    MemoryRecalled,
    TaskAllocation,
)
from farside.scheduler.manager.model.lending import (
    draws_on_lent,
    promise_job,
    promised_memory,
    promised_on,
    taken_on,
)
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.spec import Ranks
from farside.scheduler.manager.model.state import LiveState, aggregating_nodes
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.servers import servers_beside

# Where the processes of a job meet. Outside Linux's range for outgoing connections, 32768 and up.
FIRST_PORT, PORTS = 20_000, 10_000
BRAIN = "the manager"
"""Who holds a job that can't be started."""
REASON_CHARS = 400


def launches(
    state: LiveState, placement: PlacementPolicy, waits: dict[str, str], *, now_s: float, move_s: float
) -> Iterator[JobStarted | HoldRequested | AllocationReleased | MemoryRecalled]:
    """The starts that are possible, the first placed first; no two with the same GPU or the same port of a node.

    And what is to be written of those that are held instead. ``placement`` says whether what a job sends is noted.
    ``waits`` gets, by job, why it does not start though it has its GPUs, where that is worth telling. ``move_s``:
    borrowers get so long to move pages that a donor takes back before a job starts; 0: no job waits for that.
    """
    if not state.allocated:
        return
    room = _Room(state, waits)
    for job_id in state.allocated:
        job = state.jobs[job_id]
        try:
            room.check(job)
            is_lent = room.is_lent(job)
            if job_id not in room.unlent:
                ordered = tuple(recalls(state, job, now_s, move_s))
                yield from ordered
                if ordered or awaited_recalls(job, now_s):
                    continue
            is_ready = is_lent and room.has_gpus(job)
            start = room.start(job, is_to_be_profiled(job, placement)) if is_ready else None
        except Exception as error:  # what is wrong with one job must not keep the others from starting
            told = str(error) if isinstance(error, FarsideError) else f"{error!r:.200}; report this"
            yield HoldRequested(job_id=job_id, by=BRAIN)
            yield AllocationReleased(job_id=job_id, reason=f"it can't be started: {told}"[:REASON_CHARS], is_held=True)
            continue
        if start is not None:
            yield start
        elif why := room.unlent.get(job_id):
            yield AllocationReleased(job_id=job_id, reason=f"donors lend less than when it was placed: {why}")


class _Room:
    """Free resources of the nodes, computed as jobs need them.

    Attributes:
        unlent: By job that was to have memory of other nodes, why it can't, even when those that leave have left.
    """

    def __init__(self, state: LiveState, waits: dict[str, str]) -> None:
        self._state = state
        self._waits = waits
        self.unlent: dict[str, str] = {}
        self._lent: LentMemory | None = None
        self._started: list[str] = []
        self._orders: OrderRoom | None = None
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._tasks: dict[str, int] = {}
        self._taken_ports = {meeting for meetings in state.meetings.values() for meeting in meetings}

    def check(self, job: LiveJob) -> None:
        """Checks what waiting cannot change, before donors take anything back for it.

        Raises:
            FarsideError: It can't be started as long as it is what it is.
        """
        free = {place.node: (Device(gpu=0),) * place.gpus for place in job.places}
        node, most = Counter(task.node for task in _tasks(job, free)).most_common(1)[0]
        if most > TASKS_MAX:
            raise FarsideError(f"{most:,} of its processes would stand on {node}, and a node takes {TASKS_MAX}")

    def has_gpus(self, job: LiveJob) -> bool:
        """Whether nobody has the GPUs of its places, and jobs may start there."""
        for place in job.places:
            node = self._state.nodes[place.node]
            if not node.is_taking or len(self._devices.setdefault(node.name, node.free_devices)) < place.gpus:
                return False
        return True

    def is_lent(self, job: LiveJob) -> bool:
        """Whether donors lend what it is to have of other nodes' memory, beside what all were promised that run.

        What it and these have of its nodes' own memory, donors there do not lend.
        """
        needs, takes = promised_on(job), taken_on(job)
        if not needs and not draws_on_lent(self._state, job, self._started):
            return True
        if self._lent is None:
            self._lent = promised_memory(self._state)
            for job_id in self._started:
                promise_job(self._lent, self._state.jobs[job_id])
        if self._lent.fits(needs, takes):
            return True
        stopping = (one for one in self._state.live_jobs() if one.phase is Phase.STOPPING)
        leaving = [one for one in stopping if promised_on(one) or taken_on(one)]
        for one in leaving:  # tried without them, and put back
            promise_job(self._lent, one, -1)
        will_fit = self._lent.fits(needs, takes)
        for one in leaving:
            promise_job(self._lent, one)
        if will_fit:
            ids = ", ".join(one.job_id for one in leaving)
            self._waits[job.job_id] = f"job {ids}, so that it has {'memory of other nodes' if needs else 'its memory'}"
        else:
            others = "donors of the other nodes lend too little" if needs else "jobs were promised what it would take"
            self.unlent[job.job_id] = self._lent.why_not(sum(needs.values())) or others
        return False

    def start(self, job: LiveJob, is_profiled: bool) -> JobStarted | None:
        """Its start; None: the processes or ports that others have there are too many, and it waits for them to go.

        Raises:
            FarsideError: It can't be started as long as it is what it is.
        """
        # A new dict: `_tasks` takes devices out of it, and a failed start must not change what others see.
        free = {place.node: self._devices[place.node] for place in job.places}
        tasks = tuple(_tasks(job, free))
        counts = self._counts(job, tasks)
        ports: dict[str, Iterator[int]] = {}
        met = [self._meeting(job, task, ports) for task in (tasks[0], *(tasks if job.spec.roles else ()))]
        if counts is None or not all(port for _, port in met) or not self._can_be_told(job, tasks):
            return None
        (address, port), *others = met
        if others:  # each process of a job with roles has a port of its own
            tasks = tuple(
                structs.replace(task, address=at, port=one) for task, (at, one) in zip(tasks, others, strict=True)
            )
        # Taken only now, when all of the job fits: a job that can't start leaves everything to the next one.
        self._devices.update(free)
        self._tasks.update(counts)
        self._taken_ports.update(met)
        self._started.append(job.job_id)
        if self._lent is not None:
            promise_job(self._lent, job)
        return JobStarted(
            job_id=job.job_id,
            start=job.start + 1,
            tasks=tasks,
            master_addr=address,
            master_port=port,
            is_profiled=is_profiled,
        )

    def _counts(self, job: LiveJob, tasks: Sequence[TaskAllocation]) -> dict[str, int] | None:
        """Number of processes on each of its nodes with it; None: more than an agent takes, until others have gone."""
        own = Counter(task.node for task in tasks)
        before = {node: self._tasks.get(node, len(self._state.nodes[node].tasks)) for node in own}
        counts = {node: before[node] + count for node, count in own.items()}
        return counts if max(counts.values()) <= TASKS_MAX else None

    def _can_be_told(self, job: LiveJob, tasks: Sequence[TaskAllocation]) -> bool:
        """Whether the orders of its members' nodes have room for its plan, which it takes then; True if it has none."""
        if not job.spec.aggregation:
            return True
        if self._orders is None:
            self._orders = OrderRoom(self._state.aggregation, aggregating_nodes(self._state))
        nodes = {task.node for task in tasks if task.gpus} or {task.node for task in tasks}
        if full := self._orders.lacking(job.job_id, nodes):
            self._waits[job.job_id] = full_words(full)
            return False
        self._orders.take(job.job_id, nodes)
        return True

    def _meeting(self, job: LiveJob, task: TaskAllocation, ports: dict[str, Iterator[int]]) -> tuple[str, int]:
        """Address and port; 0: there is none that nobody has."""
        address = self._state.nodes[task.node].address
        if address not in ports:
            ports[address] = self._free_ports(job, address)
        return address, next(ports[address], 0)

    def _free_ports(self, job: LiveJob, address: str) -> Iterator[int]:
        """Those that nobody has there. Not first those of the start before, which may linger."""
        # Different jobs, and the starts of one job, begin their search at different ports. The time of the submission
        # is added because another manager may have jobs of the same numbers on that machine, whose ports this one does
        # not know.
        first = job.sequence + int(job.submit_s) + job.start * 101
        for more in range(PORTS):
            port = FIRST_PORT + (first + more) % PORTS
            if (address, port) not in self._taken_ports:
                yield port


def _tasks(job: LiveJob, free: dict[str, tuple[Device, ...]]) -> Iterator[TaskAllocation]:
    """Its processes, and what each gets of what is ``free``, which is less by that afterwards."""
    slots: list[tuple[str, tuple[Device, ...]]] = []
    for place in job.places:
        given, free[place.node] = free[place.node][: place.gpus], free[place.node][place.gpus :]
        each = [(place.node, (device,)) for device in given]
        # A place without a GPU has a process all the same.
        is_one = job.spec.ranks is Ranks.NODE or not given
        slots += [(place.node, given)] if is_one and not job.spec.roles else each
    if job.spec.roles:
        yield from _by_role(job, slots)
        return
    for rank, (node, devices) in enumerate(slots):
        yield _task(rank, node, devices)


def _task(rank: int, node: str, devices: Sequence[Device], role: str = "", role_rank: int = 0) -> TaskAllocation:
    gpus, parts = tuple(device.gpu for device in devices), parts_of(devices)
    return TaskAllocation(rank=rank, node=node, gpus=gpus, parts=parts, role=role, role_rank=role_rank)


def _by_role(job: LiveJob, slots: list[tuple[str, tuple[Device, ...]]]) -> Iterator[TaskAllocation]:
    """A slot for each process with a GPU, in the order of the roles; the others beside them."""
    workers = tuple((at, place.gpus) for at, place in enumerate(job.places))
    left, rank = iter(slots), 0
    for role in job.spec.roles:
        places: list[tuple[str, tuple[Device, ...]]]
        if role.gpus:
            places = list(islice(left, role.count))
        else:
            beside = servers_beside(workers, role.count)
            places = [(job.places[at].node, ()) for at, count in beside for _ in range(count)]
        for role_rank, (node, devices) in enumerate(places):
            yield _task(rank, node, devices, role.name, role_rank)
            rank += 1
