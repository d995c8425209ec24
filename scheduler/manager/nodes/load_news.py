"""What the load in an agent's report means for the log: which processes leave their GPUs idle. PURE.

Nothing is kept here: an agent says with each report for how long the GPUs have been how busy, and the log has what was
written of that. A process comes into the log when its GPUs were idle for as long as its job's rule says, again when
that may end its job, and when they are used again; so one that uses its GPUs costs no entry.
"""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from farside.agent import messages as m
from farside.scheduler.admission.idle_gpus import IdleRule, IdleRules, Span, is_awaited
from farside.scheduler.manager.model.event import TaskIdle
from farside.scheduler.manager.model.presence import LEASE_GRACE_S
from farside.scheduler.manager.model.record import LiveJob, LiveTask, Phase
from farside.scheduler.manager.model.state import LiveState

ServedUntil: TypeAlias = Callable[[str, str, str], float]
"""By user, deployment and job the time of its front's last report that named it, by the manager's clock."""


def never_served(user: str, deployment: str, job_id: str) -> float:
    """No front has ever reported."""
    return -math.inf


class NodeClock:
    """The manager's time of what a node says on one connection, whatever the node's own clock says.

    A report that the connection before did not bring through comes again on the next; it is older than its HELLO. The
    node's clock may be put forward or back meanwhile. After it went back what is said seems to have been on its way for
    so long, and the time is too early, until something is said at an earlier time than the last.
    """

    def __init__(self, said_s: float | None, now_s: float) -> None:
        """HELLO came at ``now_s``, and was sent at ``said_s`` by the node's clock; None: it does not say."""
        self._begun_s = said_s
        self._behind_s = math.inf if said_s is None else now_s - said_s
        self._last_s = -math.inf

    def at_s(self, said_s: float, now_s: float) -> float | None:
        """When something was said that came at ``now_s``, or before that; None: before HELLO, or nobody knows."""
        if self._begun_s is None:
            return None
        if said_s < self._last_s:
            # On one connection all comes in order: the clock went back, and what was learned of it counts no more.
            self._begun_s, self._behind_s = said_s, math.inf
        self._last_s = said_s
        if said_s < self._begun_s:
            return None
        # One that was on its way for less says it better.
        self._behind_s = min(self._behind_s, now_s - said_s)
        return said_s + self._behind_s


def idle_news(
    state: LiveState,
    node: str,
    report: m.Report,
    at_s: float,
    rules: IdleRules,
    *,
    late_s: float = 0.0,
    served_s: ServedUntil = never_served,
) -> Iterator[TaskIdle]:
    """What a report of a node says about the processes there that run.

    ``at_s``: when, by this manager's clock; it may have been up to ``late_s`` later, as nobody knows whether the report
    was on its way for so long or its node's clock went back. ``served_s``: when the front of a lease
    named it last: what waits for requests meanwhile, and for `LEASE_GRACE_S`, is not idle.
    """
    if node not in state.nodes:
        return
    loads = {(load.task_id, load.start): load for load in report.loads}
    for key in state.nodes[node].tasks:
        task, job = state.task(key), state.jobs.get(key[0])
        if task is None or job is None or task.is_gone or not task.gpus or job.phase is not Phase.RUNNING:
            continue
        rule = job.idle_rule(rules) if task.start == job.start else None
        if rule is None:
            continue
        load = loads.get((f"{task.job_id}.{task.rank}", task.start))
        now = None if load is None else _span(load, at_s, late_s, rule)
        if now is not None and job.spec.is_lease:
            until_s = served_s(job.user, job.spec.deployment, job.job_id)
            now = None if at_s + late_s - until_s <= LEASE_GRACE_S else now.after(until_s)
        is_news, span = _news(job, task, now, rule)
        if is_news:
            yield TaskIdle(
                node=node, job_id=task.job_id, rank=task.rank, start=task.start, below_pct=rule.below_pct,
                since_s=None if span is None else span.since_s, until_s=None if span is None else span.until_s,
            )  # fmt: skip


def _span(load: m.TaskLoad, at_s: float, late_s: float, rule: IdleRule) -> Span:
    """What is sure: it ends at the earliest time that is possible, and begins at the latest."""
    until_s = at_s - load.age_s
    since_s = min(until_s, until_s - load.below_s(rule.below_pct) + late_s)
    return Span(since_s=since_s, until_s=until_s, below_pct=rule.below_pct)


def _news(job: LiveJob, task: LiveTask, now: Span | None, rule: IdleRule) -> tuple[bool, Span | None]:
    """Whether the log must have another span of a process, and which; ``now``: what its agent says, None: nothing."""
    known = task.idle
    long = now if now is not None and now.length_s >= rule.after_s else None
    if known is None or known.below_pct != rule.below_pct:
        return long is not None or known is not None, long
    if now is None or now.since_s > known.until_s:
        # It was used in between, or nobody saw that it was not.
        return True, long
    # One goes on where the other ends. The older begin stays: clocks tremble, and it would move with each report.
    whole = Span(since_s=known.since_s, until_s=max(known.until_s, now.until_s), below_pct=known.below_pct)
    return is_awaited(rule, job.idle_spans, job.idle, known, whole), whole
