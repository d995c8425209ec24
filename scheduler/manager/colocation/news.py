"""What a node's report of its turns means for the log: times of co-located jobs that are news. PURE."""

from collections.abc import Iterable, Iterator

from farside.agent.messages import TurnTaker
from farside.scheduler.manager.colocation.state import Colocation, TaskTimed

# Decisions do not change for less (RegroupRules.like), and each entry of the log stays.
STEP = 0.05
PERIOD_S = 10.0


def timed(
    state: Colocation, node: str, takers: Iterable[TurnTaker], at_s: float, written_s: dict[str, float]
) -> Iterator[TaskTimed]:
    """News of the jobs that take turns on a node.

    Args:
        state: What the log has.
        node: Its name.
        takers: Of its tasks alone; those that are no co-located jobs are passed over.
        at_s: When it was said, by the node's clock.
        written_s: By job, when news of it was written; kept up here.
    """
    here = {job for job, at in state.node_of.items() if at == node}
    for one in takers:
        known = state.times.get(one.job)
        if one.job not in state.jobs or one.comp_s <= 0 or one.job not in here:
            continue
        if known is not None:
            is_near = _is_near(one.comp_s, known.comp_s) and _is_near(one.net_s, known.net_s)
            if is_near or abs(at_s - written_s.get(one.job, -PERIOD_S)) < PERIOD_S:
                continue
        written_s[one.job] = at_s
        yield TaskTimed(
            node=node, job_id=one.job, start=one.start, comp_s=one.comp_s, net_s=one.net_s, iteration_s=one.iteration_s
        )


def _is_near(now_s: float, then_s: float) -> bool:
    return abs(now_s - then_s) < STEP * then_s
