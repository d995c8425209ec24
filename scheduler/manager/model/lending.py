"""Memory that nodes' donors lend, and what jobs were promised of it, as the log has both. PURE.

What a node counts with here, its jobs may borrow: not what only its own machine reaches, nor a donor by another's name.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from farside.agent.messages import ChangingFacts, fields_of
from farside.endpoint import is_near, parse_endpoint
from farside.scheduler.lent_memory import LentMemory, memory_of, parts_of, promise_of
from farside.scheduler.manager.model.event import NodeChanged
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, LiveNode, Phase
from farside.scheduler.manager.model.state import LiveState, is_recall_awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """What a node's donor lends to others, and what its own programs have of others' memory.

    ``borrowed_bytes``: what others have of it by now. ``copies``: donors that have each page of this node.
    """

    node: str
    lends_bytes: int
    own_bytes: int
    borrowed_bytes: int
    copies: int

    def tell(self, memory: LentMemory) -> bool:
        """Notes it in the memory that is lent; whether that is other than before."""
        is_other = memory.set_borrowed(self.node, self.borrowed_bytes)
        sizes = {"lends_bytes": self.lends_bytes, "own_bytes": self.own_bytes}
        return memory.set_node(self.node, **sizes, copies=self.copies) or is_other


def borrows_name(node: LiveNode, state: LiveState) -> bool:
    """Whether the node's donor has the name of another node."""
    return node.donor is not None and node.donor.node != node.name and node.donor.node in state.nodes


def is_loopback(control: str) -> bool:
    """Whether only its own machine reaches this address, ``tcp:HOST:PORT``."""
    where = parse_endpoint(control)
    return isinstance(where, tuple) and is_near(where[0])


def lending_on(state: LiveState, node: LiveNode) -> Lending:
    """That of one node: nothing lent while it is away, drains or is to sleep."""
    lends_bytes, donor = node.lends_bytes, node.donor
    if lends_bytes and donor is not None:
        # On one machine, such as a sandbox's, all nodes reach what that machine alone reaches.
        is_reached = not is_loopback(donor.control) or all(is_near(one.address) for one in state.nodes.values())
        lends_bytes *= is_reached and not borrows_name(node, state)
    own_bytes = node.swap_own_bytes if node.is_up else 0
    return Lending(
        node=node.name,
        lends_bytes=lends_bytes,
        own_bytes=own_bytes,
        borrowed_bytes=node.borrowed_bytes,
        copies=node.swap_copies,
    )


def lending_of(state: LiveState) -> Iterator[Lending]:
    """All nodes that lend or borrow anything."""
    return (lending_on(state, node) for node in state.nodes.values() if node.donor is not None or node.swap is not None)


def promised_on(job: LiveJob) -> Mapping[str, int]:
    """What a job is promised while it has its places, by node."""
    each = job.spec.swap_bytes_per_gpu
    return {place.node: promise_of(place.gpus, each) for place in job.places} if each else {}


def taken_on(job: LiveJob) -> Mapping[str, int]:
    """What a job is to have of its nodes' own memory while it has its places, by node."""
    each = job.spec.memory_bytes_per_gpu
    return {place.node: memory_of(place.gpus, each) for place in job.places} if each else {}


def memory_left(state: LiveState, node: LiveNode) -> int:
    """What jobs with a place on a node leave of its memory, with what its donor has lent: the most that this may lend.

    Its agent counts what running jobs may still take; of others it does not know yet.
    """
    jobs = [state.jobs[job_id] for job_id in state.jobs_on(node.name) if job_id in state.jobs]
    held = {job.job_id: taken_on(job).get(node.name, 0) for job in jobs}
    unknown = sum(held[job.job_id] for job in jobs if job.phase in (Phase.ALLOCATED, Phase.STARTING))
    return max(0, min(node.headroom_bytes - unknown, node.memory_bytes - sum(held.values())))


def draws_on_lent(state: LiveState, job: LiveJob, begun: Collection[str]) -> bool:
    """Whether a job takes memory of its nodes that donors there lend.

    That is so where it does not fit beside what the donor lends and what jobs with processes, or of ``begun``, have.
    """
    for name, size in taken_on(job).items():
        node = state.nodes[name]
        if not (node.lends_bytes and node.memory_bytes):
            continue
        others = (state.jobs[job_id] for job_id in state.jobs_on(name) if job_id != job.job_id)
        held = sum(taken_on(one).get(name, 0) for one in others if one.phase in ACTIVE or one.job_id in begun)
        if node.memory_bytes - held - size < node.lends_bytes:
            return True
    return False


def brings_back(state: LiveState, event: NodeChanged) -> bool:
    """Whether a change of a node's facts says that memory has come back which a job there waits for."""
    node = state.nodes.get(event.node)
    if node is None or not is_recall_awaited(state, node):
        return False
    node = structs.replace(node, **fields_of(ChangingFacts, event))
    left_bytes = memory_left(state, node)
    return any(
        one.node == node.name and not one.is_back and node.borrowed_bytes <= max(one.lend_bytes, left_bytes)
        for job_id in node.recalls
        for one in state.jobs[job_id].recalls
    )


def promise_job(memory: LentMemory, job: LiveJob, sign: int = 1) -> None:
    """Promises a job what it is to have, there and of its nodes; with a ``sign`` of -1 it has left that."""
    for node, promised_bytes in promised_on(job).items():
        memory.promise(node, sign * promised_bytes)
    for node, taken_bytes in taken_on(job).items():
        memory.take(node, sign * taken_bytes)


def memory_with(state: LiveState, jobs: Iterable[LiveJob]) -> LentMemory:
    """The memory that is lent, with what these jobs were promised of it and are to have of their nodes' own."""
    memory = LentMemory()
    for one in lending_of(state):
        one.tell(memory)
        memory.set_room(one.node, state.nodes[one.node].memory_bytes or math.inf)
    for job in jobs:
        promise_job(memory, job)
    return memory


def promised_memory(state: LiveState) -> LentMemory:
    """The memory that is lent, with what jobs that have begun were promised: until all their processes have gone."""
    return memory_with(state, (job for job in state.live_jobs() if job.phase in ACTIVE))


def donors_to_keep(state: LiveState) -> frozenset[str]:
    """Nodes whose donors must stay awake, so that donors lend what jobs with a place were promised, or are about to be.

    Few, as the largest go first. All that lend where even they are too few; none where nothing was promised.
    """
    placed = (job for job in state.live_jobs() if job.phase in ACTIVE or job.phase is Phase.ALLOCATED)
    return lenders_needed(memory_with(state, placed), lending_of(state))


def lenders_needed(memory: LentMemory, lending: Iterable[Lending]) -> frozenset[str]:
    """Donors that are enough for what was promised, the largest first; it leaves no other one in ``memory``."""
    if not memory.promised_bytes:
        return frozenset()
    lenders = sorted((one for one in lending if one.lends_bytes), key=lambda one: (-one.lends_bytes, one.node))
    for one in lenders:
        replace(one, lends_bytes=0).tell(memory)
    kept = set[str]()
    for one in lenders:
        if memory.is_kept:
            break
        one.tell(memory)
        kept.add(one.node)
    return frozenset(kept)


def promised_by_donor(state: LiveState) -> Mapping[str, int]:
    """What jobs were promised, by the node of the donor, of each its part by what it lends; nodes without one lack.

    A donor is asked for each page, so which of them will have it is not known.
    """
    lends = {one.node: one.lends_bytes for one in lending_of(state) if state.nodes[one.node].donor is not None}
    if not lends:
        return {}
    return parts_of(promised_memory(state).promised_bytes, lends)
