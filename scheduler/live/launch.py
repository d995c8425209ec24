"""Which placed jobs can start now, and on which GPUs. PURE.

The cycle decides as if who loses GPUs were gone at once; on real nodes that takes until the last process has written
its checkpoint. So a job that was placed waits here until each of its nodes has enough GPUs that nobody holds.
"""

from collections.abc import Iterator

from farside.scheduler.live.event import JobStarted, TaskPlace
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.record import LiveJob
from farside.scheduler.live.spec import Ranks

# Where the processes of a job meet. Outside Linux's range for outgoing connections, 32768 and up.
FIRST_PORT, PORTS = 20_000, 10_000


def launches(state: LiveState) -> Iterator[JobStarted]:
    """The starts that are possible, the first placed first; no two with the same GPU or the same port of a node."""
    if not state.placed:
        return
    free: dict[str, tuple[int, ...]] = {}
    taken_ports = set(state.meeting.values())
    for job_id in state.placed:
        job = state.jobs[job_id]
        for place in job.places:
            free.setdefault(place.node, state.nodes[place.node].free_gpus)
        if any(len(free[place.node]) < place.gpus or not state.nodes[place.node].is_taking for place in job.places):
            continue
        tasks = tuple(_tasks(job, free))
        address = state.nodes[tasks[0].node].address
        port = _free_port(job, address, taken_ports)
        taken_ports.add((address, port))
        yield JobStarted(job_id=job_id, start=job.start + 1, tasks=tasks, master_addr=address, master_port=port)


def _tasks(job: LiveJob, free: dict[str, tuple[int, ...]]) -> Iterator[TaskPlace]:
    rank = 0
    for place in job.places:
        indexes, free[place.node] = free[place.node][: place.gpus], free[place.node][place.gpus :]
        parts = [indexes] if job.spec.ranks is Ranks.NODE else [(index,) for index in indexes]
        for part in parts:
            yield TaskPlace(rank=rank, node=place.node, gpus=part)
            rank += 1


def _free_port(job: LiveJob, address: str, taken: set[tuple[str, int]]) -> int:
    """Not that of the start before, whose last connections may linger."""
    first = job.sequence + job.start * 101
    ports = (FIRST_PORT + (first + more) % PORTS for more in range(PORTS))
    return next(port for port in ports if (address, port) not in taken)
