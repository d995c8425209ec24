"""Longer time limits for leases that run: which may have one, and why not. PURE.

A lease is a job whose GPU a deployment of inference serves on. Its front asks for this before the lease ends, and
replaces the lease by another job where it is refused.
"""

from farside.scheduler.manager.model.maintenance import first_reservations, words_of
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.spec import MAX_TIME_LIMIT_S
from farside.scheduler.manager.model.state import LiveState


def run_limit_s(job: LiveJob, left_s: float, now_s: float) -> float:
    """The time limit of its latest start, counted from that, by which a job may run for ``left_s`` from now on."""
    return now_s - job.started_s + left_s


def why_not_extended(state: LiveState, job: LiveJob, left_s: float, now_s: float) -> str:
    """Why a job may not run for ``left_s`` from now on; empty: it may."""
    name = f"job {job.job_id}"
    if not job.spec.is_lease:
        return f"{name} is no worker of a deployment, and only these are extended"
    if job.phase is not Phase.RUNNING:
        return f"{name} is {job.phase}: only a lease that runs is extended"
    if job.cancelled_by:
        return f"{name} is cancelled by {job.cancelled_by}"
    if now_s + left_s <= job.limit_at_s:
        return f"{name} may run longer than that already"
    if run_limit_s(job, left_s, now_s) > MAX_TIME_LIMIT_S:
        return f"{name} would run for more than {MAX_TIME_LIMIT_S:g} s"
    reserved = first_reservations(state, now_s)
    for task in job.tasks:
        node = state.nodes[task.node]
        if not node.is_taking:
            return f"{node.name}: {node.why_not}"
        if not node.extends_limits:
            return f"{node.name}: its agent is of a version before this one: update it"
        one = reserved.get(node.name)
        if one is not None and one.begin_s < now_s + left_s:
            return f"{name} would still run then: {words_of(one)}"
    return ""
