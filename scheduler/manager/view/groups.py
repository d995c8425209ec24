"""Groups of jobs that take turns on nodes, as people see them: what bounds each, and its iteration. PURE."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field, structs

from farside.agent.messages import ExecutorFacts, ProcessorUse, SpilledInput, TurnTaker, work_s
from farside.group_time import BOUND_WORDS, Bound, TimeInTurns, WorkProfile, time_in_turns
from farside.scheduler.manager.colocation.state import Colocation, PlannedGroup, with_reading
from farside.units import format_bytes, format_seconds


class GroupJob(Struct, frozen=True, kw_only=True):
    """A job in its group; seconds of an iteration are null until it has done a few.

    ``comp_s`` and ``net_s`` without waiting for turns, ``iteration_s`` with it. ``let_through``: steps that began
    without a turn; ``overdue``: turns that ended before the step. ``spill``: what of its input is not in memory, was
    read back, and is waited for, which ``comp_s`` has in it; null: all of it is and stays in memory. ``processor``:
    CPU seconds of an iteration; null: not known.
    """

    job: str
    comp_s: float | None
    net_s: float | None
    iteration_s: float | None
    turns: int
    let_through: int
    overdue: int
    spill: SpilledInput | None = None
    processor: ProcessorUse | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """The co-located jobs that the manager has put on a node, or on several together.

    ``nodes``: all of the group's, the one with its synchroniser first. ``epoch``: of a group of several; 0: of one.
    ``others``: jobs there that the caller may not see. ``measuring``: the job whose times are not known yet; null: all
    are. ``predicted_s``, ``bound``: of an iteration of all, as it was decided; null while one is not measured.
    """

    jobs: list[str]
    others: int
    measuring: str | None
    bound: Bound | None
    predicted_s: float | None
    nodes: list[str] = field(default_factory=list)
    epoch: int = 0


class Group(Struct, frozen=True, kw_only=True):
    """Jobs that take turns on one node.

    ``others``: workers that are no tasks of this node, or of jobs that the caller may not see. ``bound``: what a
    shorter iteration would need less of, ``cpu``, ``network``, ``job`` (the longest one), ``disk`` or ``peer`` (reading
    input back), and ``predicted_s`` in turns; null while a worker's times are not known. ``measured_s``: the slowest
    job's. ``plan``: null where the manager groups no jobs; the same on each node of a group. ``turns_epoch``: of the
    group of several nodes that its executor is in; 0: in none.
    """

    node: str
    jobs: list[GroupJob]
    others: int
    bound: Bound | None
    predicted_s: float | None
    measured_s: float | None
    plan: Plan | None = None
    turns_epoch: int = 0


class GroupReport(Struct, frozen=True, kw_only=True):
    """All groups, by node.

    ``planned_at_s``: when the manager grouped jobs last; null: never. ``reason``: why it did; empty where jobs are
    concerned that the caller may not see. ``waiting``: measured jobs that it left out, of those that the caller sees.
    """

    groups: list[Group]
    planned_at_s: float | None = None
    reason: str = ""
    waiting: list[str] = field(default_factory=list)


NO_PLAN = Colocation()


def report(
    facts: Mapping[str, ExecutorFacts],
    may_see: Callable[[str], bool],
    planned: Colocation = NO_PLAN,
    may_read: Callable[[str], bool] = lambda text: True,
) -> GroupReport:
    """Groups by what the agents that are connected said last, and as they are planned; a node with neither has none.

    ``may_see``: whether the reader sees a job; ``may_read``: whether a text that names jobs, also such as have gone.
    """
    plans = {node: group for group in planned.groups for node in group.nodes}
    turning = {node for node, said in facts.items() if said.takers or said.others}
    groups = [
        structs.replace(
            _group(node, facts.get(node, _NOTHING), may_see), plan=_plan(plans.get(node), planned.measuring, may_see)
        )
        for node in sorted(turning | plans.keys())
    ]
    named = [*(job for group in planned.groups for job in group.jobs), *planned.waiting, *planned.jobs]
    return GroupReport(
        groups=groups,
        planned_at_s=planned.planned_s or None,
        reason=planned.reason if all(map(may_see, named)) and may_read(planned.reason) else "",
        waiting=[job for job in planned.waiting if job in planned.jobs and may_see(job)],
    )


_NOTHING = ExecutorFacts()


def _plan(group: PlannedGroup | None, measuring: Sequence[str], may_see: Callable[[str], bool]) -> Plan | None:
    if group is None:
        return None
    shown = [job for job in group.jobs if may_see(job)]
    return Plan(
        jobs=shown,
        others=len(group.jobs) - len(shown),
        measuring=next((job for job in shown if job in measuring), None),
        bound=group.bound,
        predicted_s=group.predicted_s,
        nodes=[*group.nodes],
        epoch=group.epoch,
    )


def _group(node: str, said: ExecutorFacts, may_see: Callable[[str], bool]) -> Group:
    shown = [one for one in said.takers if may_see(one.job)]
    time, measured = _time(said), [one.iteration_s for one in said.takers]
    return Group(
        node=node,
        jobs=[_job(one) for one in shown],
        others=said.others + len(said.takers) - len(shown),
        bound=None if time is None else time.bound,
        predicted_s=None if time is None else time.iteration_s,
        measured_s=max(measured) if measured and all(measured) and not said.others else None,
        turns_epoch=said.group,
    )


def _time(said: ExecutorFacts) -> TimeInTurns | None:
    """An iteration of all of them on their node; None: the times of one are not known."""
    if said.others or not said.takers or not all(one.comp_s for one in said.takers):
        return None
    return time_in_turns([_profile(one) for one in said.takers], 1)


def _profile(one: TurnTaker) -> WorkProfile:
    """What an iteration needs there: what was measured on a node is that node's, and nothing of it is shared."""
    own_s, used = work_s(one.comp_s, one.spill, one.processor), one.processor
    profile = WorkProfile(job=one.job, work_machine_s=own_s, net_s=one.net_s, net_alone_s=one.net_s)
    if used is not None:
        updates_s, is_idle = used.updates_s(one.net_s), used.leaves_processor(one.comp_s)
        profile = replace(profile, net_cpu_s=updates_s, net_cpu_alone_s=updates_s, leaves_processor=is_idle)
    return with_reading(profile, one.spill, 1)


def _job(one: TurnTaker) -> GroupJob:
    return GroupJob(
        job=one.job,
        comp_s=one.comp_s or None,
        net_s=one.net_s if one.comp_s else None,
        iteration_s=one.iteration_s or None,
        turns=one.turns,
        let_through=one.let_through,
        overdue=one.overdue,
        spill=one.spill,
        processor=one.processor,
    )


def explain(facts: Mapping[str, ExecutorFacts], job_id: str) -> Iterator[str]:
    """Lines about the turns that a job takes, by node."""
    for node, said in sorted(facts.items()):
        if not any(one.job == job_id for one in said.takers):
            continue
        count = len(said.takers) + said.others - 1
        with_whom = "alone" if not count else f"with {count} other job" + ("s" if count > 1 else "")
        line = f"turns: on {node} {with_whom}"
        time = _time(said)
        if time is not None:
            bound = BOUND_WORDS[time.bound]
            line += f"; an iteration of all takes {time.iteration_s:.3g} s by prediction, bound by {bound}"
        measured = [one.iteration_s for one in said.takers if one.job == job_id and one.iteration_s]
        if measured:
            line += f"; its own takes {measured[0]:.3g} s"
        yield line
        used = [one.processor for one in said.takers if one.job == job_id and one.processor is not None]
        yield from (_processor_line(node, one) for one in used)
        spills = [one.spill for one in said.takers if one.job == job_id and one.spill is not None]
        yield from (_spill_line(node, one) for one in spills if one.spilled or one.disk_bytes or one.peer_bytes)


def _processor_line(node: str, used: ProcessorUse) -> str:
    many = "a processor" if used.processors == 1 else f"{used.processors} processors"
    times = f"{used.comp_s:.3g} CPU seconds for computing and {used.rest_s:.3g} for its updates"
    return f"processors: on {node} an iteration takes {times}, of {many}"


def _spill_line(node: str, spill: SpilledInput) -> str:
    line = f"input: on {node} {100 * spill.spilled:.0f} % of {format_bytes(spill.input_bytes)} is not in memory"
    disk, peer = format_bytes(spill.disk_bytes), format_bytes(spill.peer_bytes)
    waited = format_seconds(spill.waited_s)
    return f"{line}; {disk} were read back from the disk and {peer} from peers' memory, and {waited} waited for them"
