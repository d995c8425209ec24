"""Maintenance reservations of nodes: their windows for the cycle, and the jobs that they meet. PURE."""

from collections.abc import Iterator, Mapping

from farside.scheduler.maintenance_window import MaintenanceWindow
from farside.scheduler.manager.model.event import AllocationReleased
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, Maintenance
from farside.scheduler.manager.model.state import LiveState
from farside.units import format_moment


def windows_of(state: LiveState, node_index: Mapping[str, int], now_s: float) -> tuple[MaintenanceWindow, ...]:
    """The reservations that are not over, by the nodes' places in the cycle's ledger."""
    return tuple(
        MaintenanceWindow(
            nodes=frozenset(node_index[node] for node in one.nodes if node in node_index),
            begin_s=one.begin_s,
            end_s=one.end_s,
            why=words_of(one),
        )
        for one in state.maintenance.values()
        if one.is_pending(now_s)
    )


def reserved_now(state: LiveState, now_s: float) -> dict[str, str]:
    """``reserved: new disks until ...`` of each node under a reservation that has begun."""
    active = [one for one in state.maintenance.values() if one.is_pending(now_s) and one.begin_s <= now_s]
    return {
        node: f"reserved{f': {one.reason}' if one.reason else ''} until {format_moment(one.end_s)}"
        for one in sorted(active, key=lambda one: one.end_s)
        for node in one.nodes
    }


def words_of(one: Maintenance) -> str:
    """``n1, n2 reserved from ... to ... (new disks)``."""
    reason = f" ({one.reason})" if one.reason else ""
    span = f"from {format_moment(one.begin_s)} to {format_moment(one.end_s)}"
    return f"{', '.join(one.nodes)} reserved {span}{reason}"


def latest_end_s(job: LiveJob, now_s: float) -> float:
    """When a job that starts now is over at the latest; infinite: it may run for ever."""
    return now_s + job.limit_s


def first_reservations(state: LiveState, now_s: float) -> dict[str, Maintenance]:
    """By node, of its reservations that are not over the one that begins first."""
    pending = [one for one in state.maintenance.values() if one.is_pending(now_s)]
    return {node: one for one in sorted(pending, key=lambda one: -one.begin_s) for node in one.nodes}


def late_allocations(state: LiveState, now_s: float) -> Iterator[AllocationReleased]:
    """Allocated jobs that waited so long for others to go that they could still run when their nodes are reserved."""
    pending = [one for one in state.maintenance.values() if one.is_pending(now_s)]
    if not pending:
        return
    for job_id in state.allocated:
        job = state.jobs[job_id]
        for one in pending:
            if latest_end_s(job, now_s) > one.begin_s and not set(one.nodes).isdisjoint(job.nodes):
                yield AllocationReleased(
                    job_id=job_id, reason=f"it lost its allocation before it started: {words_of(one)}"
                )
                break


def still_there(state: LiveState, one: Maintenance, now_s: float) -> list[str]:
    """Jobs that run on its nodes and may still do so when it begins: it ends nobody."""
    return [
        job.job_id
        for job in state.live_jobs()
        if job.phase in ACTIVE and job.limit_at_s > one.begin_s and not set(one.nodes).isdisjoint(job.nodes)
    ]
