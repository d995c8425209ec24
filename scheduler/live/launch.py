"""Which placed jobs can start now, and on which GPUs. PURE.

The cycle decides as if who loses GPUs were gone at once; on real nodes that takes until the last process has written
its checkpoint. So a job that was placed waits here until each of its nodes has enough GPUs that nobody holds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from farside.scheduler.live.event import JobStarted, TaskPlace
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.record import LiveJob
from farside.scheduler.live.spec import Ranks
from farside.scheduler.placement.servers import servers_beside

# Where the processes of a job meet. Outside Linux's range for outgoing connections, 32768 and up.
FIRST_PORT, PORTS = 20_000, 10_000


def launches(state: LiveState, is_profiled: Callable[[LiveJob], bool]) -> Iterator[JobStarted]:
    """The starts that are possible, the first placed first; no two with the same GPU or the same port of a node.

    ``is_profiled``: whether what a job sends is to be noted.
    """
    if not state.placed:
        return
    free: dict[str, tuple[int, ...]] = {}
    taken_ports = {meeting for meetings in state.meetings.values() for meeting in meetings}
    for job_id in state.placed:
        job = state.jobs[job_id]
        for place in job.places:
            free.setdefault(place.node, state.nodes[place.node].free_gpus)
        if any(len(free[place.node]) < place.gpus or not state.nodes[place.node].is_taking for place in job.places):
            continue
        tasks = tuple(_tasks(job, free))
        address = state.nodes[tasks[0].node].address
        port = _free_port(job, address, taken_ports)
        if job.spec.roles:
            tasks = tuple(_reachable(state, job, tasks, taken_ports))
        yield JobStarted(
            job_id=job_id,
            start=job.start + 1,
            tasks=tasks,
            master_addr=address,
            master_port=port,
            is_profiled=is_profiled(job),
        )


def _tasks(job: LiveJob, free: dict[str, tuple[int, ...]]) -> Iterator[TaskPlace]:
    slots: list[tuple[str, int]] = []
    for place in job.places:
        indexes, free[place.node] = free[place.node][: place.gpus], free[place.node][place.gpus :]
        slots += [(place.node, index) for index in indexes]
    if job.spec.roles:
        yield from _by_role(job, slots)
        return
    parts: dict[object, list[tuple[str, int]]] = {}
    for slot in slots:
        parts.setdefault(slot if job.spec.ranks is Ranks.GPU else slot[0], []).append(slot)
    for rank, part in enumerate(parts.values()):
        yield TaskPlace(rank=rank, node=part[0][0], gpus=tuple(index for _, index in part))


def _by_role(job: LiveJob, slots: list[tuple[str, int]]) -> Iterator[TaskPlace]:
    """A slot for each process with a GPU, in the order of the roles; the others beside them."""
    workers = tuple((at, place.gpus) for at, place in enumerate(job.places))
    left, rank = iter(slots), 0
    for role in job.spec.roles:
        places: list[tuple[str, tuple[int, ...]]]
        if role.gpus:
            places = [(node, (index,)) for node, index in islice(left, role.count)]
        else:
            beside = servers_beside(workers, role.count)
            places = [(job.places[at].node, ()) for at, count in beside for _ in range(count)]
        for role_rank, (node, gpus) in enumerate(places):
            yield TaskPlace(rank=rank, node=node, gpus=gpus, role=role.name, role_rank=role_rank)
            rank += 1


def _reachable(
    state: LiveState, job: LiveJob, tasks: Iterable[TaskPlace], taken: set[tuple[str, int]]
) -> Iterator[TaskPlace]:
    """Each process of a job with roles has a port of its own."""
    for task in tasks:
        address = state.nodes[task.node].address
        yield replace(task, address=address, port=_free_port(job, address, taken))


def _free_port(job: LiveJob, address: str, taken: set[tuple[str, int]]) -> int:
    """One that nobody has there, and that is taken from now on. Not that of the start before, which may linger."""
    first = job.sequence + job.start * 101
    ports = (FIRST_PORT + (first + more) % PORTS for more in range(PORTS))
    port = next(port for port in ports if (address, port) not in taken)
    taken.add((address, port))
    return port
