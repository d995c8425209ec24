"""What a node's report of its turns means for the log: times of co-located jobs that are news. PURE."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from farside.agent.messages import SpilledInput, TurnTaker
from farside.scheduler.manager.colocation.outlook import STEP
from farside.scheduler.manager.colocation.state import Colocation, JobTimes, PlannedGroup, TaskTimed

# The least time between two entries of a job. It doubles with each entry, so that noise writes few of them.
PERIOD_S = 10.0
PERIOD_MOST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The last entry of a job. ``group``: who was on its node then; ``period_s``: none follows before that is over."""

    start: int
    group: tuple[str, ...]
    at_s: float
    period_s: float


def timed(
    state: Colocation,
    node: str,
    takers: Iterable[TurnTaker],
    at_s: float,
    written: dict[str, Written],
    machines: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[TaskTimed]:
    """News of the jobs that take turns on a node: at most 32 a day of a job that stays in its group.

    Of a group of several nodes the first one's count: they are alike, and no worker begins a step before all others.

    Args:
        state: What the log has.
        node: Its name.
        takers: Of its tasks alone; those that are no co-located jobs are passed over.
        at_s: When it was said, by the node's clock.
        written: By job, the last news of it; kept up here.
        machines: By job, how many nodes it runs on; one, where it says nothing.
    """
    here = {job: group.jobs for group in state.groups if group.node == node for job in group.jobs}
    for job in written.keys() - here.keys():
        del written[job]
    for one in takers:
        count, last = machines.get(one.job, 1), written.get(one.job)
        times = state.times.get(one.job)
        known = None if times is None else times.on(count)
        if one.job not in state.jobs or one.comp_s <= 0 or one.job not in here:
            continue
        is_same = last is not None and (last.start, last.group) == (one.start, here[one.job])
        if known is not None:
            is_early = last is not None and is_same and abs(at_s - last.at_s) < last.period_s
            if is_early or _is_near(one, known):
                continue
        period_s = min(2 * last.period_s, PERIOD_MOST_S) if last is not None and is_same else PERIOD_S
        written[one.job] = Written(start=one.start, group=here[one.job], at_s=at_s, period_s=period_s)
        yield TaskTimed(
            node=node, job_id=one.job, start=one.start, comp_s=one.comp_s, net_s=one.net_s, iteration_s=one.iteration_s,
            machines=count, spill=one.spill, processor=one.processor,
        )  # fmt: skip


def state_of(takers: Sequence[TurnTaker], machines: int) -> Colocation:
    """State of a manager that knows this of jobs, each of which had its nodes for itself.

    Args:
        takers: A job each; one of which nothing is known yet has no times.
        machines: On how many nodes each ran.
    """
    names = tuple(one.job for one in takers)
    state = Colocation(jobs=dict.fromkeys(names, 0), groups=(PlannedGroup(node="", jobs=names),))
    starts = {one.job: one.start for one in takers}
    for event in list(timed(state, "", takers, 0.0, {}, dict.fromkeys(names, machines))):
        state.take(event, 0.0, starts)
    return state


def _is_near(now: TurnTaker, then: JobTimes) -> bool:
    """Whether no time has changed by more than a share of all: a small one may be noise alone."""
    step_s = STEP * (then.comp_s + then.net_s)
    reads_s = abs(_reading_s(now.spill) - _reading_s(then.spill))
    updates_s = abs(_updates_s(now) - then.updates_s)
    if (now.processor is None) != (then.processor is None):
        return False
    is_near = max(abs(now.comp_s - then.comp_s), abs(now.net_s - then.net_s), reads_s, updates_s) <= step_s
    return is_near and abs(_spilled(now.spill) - _spilled(then.spill)) <= STEP


def _reading_s(spill: SpilledInput | None) -> float:
    """Seconds in which the disk is read in an iteration, if all comes from there."""
    way = None if spill is None else spill.reloading
    return 0.0 if spill is None or way is None else spill.spilled * spill.input_bytes / way.disk.bytes_s


def _updates_s(taker: TurnTaker) -> float:
    return 0.0 if taker.processor is None else taker.processor.updates_s(taker.net_s)


def _spilled(spill: SpilledInput | None) -> float:
    return 0.0 if spill is None else spill.spilled
