"""Orders for a group of several nodes: for executors the group, for Aggregators and workers the key of a start. PURE.

All keys follow from the store's secret: none is in an entry of the log, or in the store.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence

from farside.agent import messages as m
from farside.agent.aggregator.plan import (
    JOB_VARIABLE,
    KEY_VARIABLE,
    SERVICE_VARIABLE,
    START_VARIABLE,
    JobGrant,
    job_key,
)
from farside.scheduler.manager.aggregation.orders import reached_at
from farside.scheduler.manager.aggregation.state import Offer
from farside.scheduler.manager.colocation.state import PlannedGroup
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.state import LiveState


def group_key(secret: bytes, epoch: int, nodes: Sequence[str]) -> bytes:
    """What the nodes of a group prove to each other; neither the secret nor another group's key follows from it."""
    label = b"farside turns group " + epoch.to_bytes(8, "little") + " ".join(nodes).encode()
    return hmac.digest(secret, label, "sha256")


def group_on(groups: Iterable[PlannedGroup], node: str) -> PlannedGroup | None:
    """The group of several nodes that a node is in."""
    return next((group for group in groups if group.beside and node in group.nodes), None)


def group_order(state: LiveState, group: PlannedGroup | None, node: str, secret: bytes) -> m.ExecutorOrder:
    """Order for a node's executor; it names no group, too, while the address of the group's first node is unknown."""
    first = None if group is None else state.nodes.get(group.node)
    where = "" if first is None else reached_at(first.executor.listen, first.address)
    if group is None or not where:
        return m.ExecutorOrder()
    key = group_key(secret, group.epoch, group.nodes)
    order = m.GroupOrder(epoch=group.epoch, node=node, nodes=group.nodes, synchronizer=where, key=key)
    return m.ExecutorOrder(group=order)


def granted(state: LiveState, node: str, secret: bytes) -> tuple[JobGrant, ...]:
    """The starts of co-located jobs that a node's Aggregator serves: those with a worker there, and on other nodes."""
    there = state.nodes.get(node)
    starts = () if there is None else ((state.jobs[job_id], start) for job_id, start, _ in there.tasks)
    return tuple(
        JobGrant(job=job.job_id, start=start, key=job_key(secret, job.job_id, start))
        for job, start in starts
        if job.spec.colocate and job.start == start and len(job.tasks) > 1
    )[: m.PLANS_MAX]


def worker_variables(state: LiveState, job: LiveJob, secret: bytes) -> Mapping[str, str] | None:
    """The variables by which workers of a job on several nodes find their Aggregators, one on each of these.

    Empty: it is no such job. None: one of the Aggregators does not answer, so that it can't start yet.
    """
    if not job.spec.colocate or len(job.tasks) < 2:
        return {}
    ours = {JOB_VARIABLE: job.job_id, START_VARIABLE: str(job.start)}
    if SERVICE_VARIABLE in job.spec.env:  # its user names others
        return ours
    offers = [(state.aggregation.offers.get(task.node, Offer()), state.nodes[task.node].address) for task in job.tasks]
    places = [reached_at(offer.tcp, address) for offer, address in offers]
    if not secret or not all(places):
        return None
    key = job_key(secret, job.job_id, job.start)
    return {**ours, SERVICE_VARIABLE: ",".join(f"tcp:{place}" for place in places), KEY_VARIABLE: key.hex()}
