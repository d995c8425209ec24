"""Jobs whose GPUs are idle: the next step of one, and what `farside explain` says. PURE.

Only a job that runs is judged: one that starts or stops loads or writes its checkpoint, and one that is held or waits
has no GPUs. Nothing is done by a clock: each step follows from what agents say that they saw (`TaskIdle`), so a node
that is away, or a manager that was, never counts as idle time. Of a lease whose front is there nothing is written
(`nodes/load_news.py`): it waits for requests.
"""

from collections.abc import Callable, Iterator

from farside.scheduler.admission.idle_gpus import IdleRule, IdleRules, Verdict, common, verdict
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.presence import LEASE_GRACE_S
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.units import format_count, format_seconds

IdleStep = log.JobIdleWarned | log.IdleWarningLifted | log.JobStopping
"""What may follow for a job."""


def idle_step(job: LiveJob, rules: IdleRules, now_s: float) -> IdleStep | None:
    """The next step of a job that runs, by how busy its GPUs were."""
    rule = job.idle_rule(rules)
    if job.phase is not Phase.RUNNING or (rule is None and job.idle is None):
        return None
    found = verdict(rule, job.idle_spans, job.idle)
    if found is Verdict.LIFT:
        why = "its GPUs are used again, or nobody saw their load for a time" if rule else "it has no such rule now"
        return log.IdleWarningLifted(job_id=job.job_id, start=job.start, reason=why)
    if rule is None or found is Verdict.NOTHING:
        return None
    idle = common(job.idle_spans, rule.below_pct)
    assert idle is not None
    words = f"{_gpus(job)} less than {rule.below_pct} % busy for {format_seconds(round(idle.length_s))}"
    if found is Verdict.END and job.idle is not None:
        warned = format_seconds(round(now_s - job.idle.warned_s))
        cause = log.StopCause.IDLE_GPUS
        reason = f"{words}; it was warned {warned} before"
        return log.JobStopping(job_id=job.job_id, start=job.start, cause=cause, reason=reason)
    then = f"it is ended in {format_seconds(rule.grace_s)} if they stay so" if rule.ends else "others could use them"
    return log.JobIdleWarned(
        job_id=job.job_id, start=job.start, reason=f"{words}; {then}", below_pct=idle.below_pct,
        since_s=idle.since_s, until_s=idle.until_s, ends_s=now_s + rule.grace_s if rule.ends else None,
    )  # fmt: skip


def idle_lines(state: LiveState, job: LiveJob, rules: IdleRules, clock: Callable[[float], str]) -> Iterator[str]:
    """Lines about the rule of a job that has GPUs: its warning, what will happen, or why nobody judges it."""
    if job.phase not in (Phase.STARTING, Phase.RUNNING) or not job.spec.gpus or not rules:
        return
    rule = job.idle_rule(rules)
    if rule is None:
        return
    if job.spec.is_lease:
        name, last = job.spec.deployment, format_seconds(LEASE_GRACE_S)
        yield f"its GPU may be idle while the front of deployment {name} calls it its lease, and {last} longer"
    if job.idle is not None:
        ends = "" if job.idle.ends_s is None else f"; it ends at {clock(job.idle.ends_s)} if they stay so"
        since = f"less than {job.idle.below_pct} % busy since {clock(job.idle.since_s)}"
        yield f"warned at {clock(job.idle.warned_s)}: {_gpus(job)} {since}{ends}"
    elif why := _unseen(state, job):
        yield f"nobody judges whether its GPUs are idle: {why}"
    else:
        yield _told(rule)


def _told(rule: IdleRule) -> str:
    then = f", and is ended {format_seconds(rule.grace_s)} later if they stay so" if rule.ends else ""
    when = f"less than {rule.below_pct} % busy for {format_seconds(rule.after_s)}"
    return f"it is warned if all its GPUs are {when}{then}"


def _gpus(job: LiveJob) -> str:
    return f"all of its {format_count(job.spec.gpus, 'GPU')} were" if job.spec.gpus > 1 else "its GPU was"


def _unseen(state: LiveState, job: LiveJob) -> str:
    """Why nobody knows the load of one of its GPUs; empty: its agents report it, as far as the log knows."""
    for task in job.tasks:
        node = state.nodes[task.node]
        uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
        if any(task.parts):
            return f"it has a part of a GPU of {node.name}, and drivers tell the load of whole ones"
        if task.gpus and any(uuids.get(gpu) is None for gpu in task.gpus):
            return f"GPUs of {node.name} are declared, and no driver tells their load"
        if task.gpus and not node.tells_load:
            return f"the agent of {node.name} tells no load; it is of a version before"
    return ""
