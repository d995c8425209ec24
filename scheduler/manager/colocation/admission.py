"""Which nodes a co-located job gets that has waited too long, and who waits in its stead. PURE."""

from collections.abc import Mapping, Sequence

from farside.group_time import WorkProfile
from farside.scheduler.manager.colocation.outlook import Nodes, Outlook
from farside.scheduler.sharing.colocation.aging import admitted
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules
from farside.scheduler.sharing.colocation.regroup import Change


def admit(
    outlook: Outlook,
    job: str,
    pools: Sequence[Sequence[str]],
    groups: dict[Nodes, list[str]],
    rules: GroupingRules,
) -> Change | None:
    """A job that waits gets a place: the groups are changed; None: nobody may make room for it, and nothing is.

    Args:
        outlook: Who waits, who runs, and for how long.
        job: Who gets a place.
        pools: Nodes that take it; those of each can be a group together if it needs several.
        groups: By nodes, the jobs that are there from here on.
        rules: What memory there is.
    """
    options = [(names, change) for names in pools if (change := _room(outlook, job, names, groups, rules)) is not None]
    if not options:
        return None
    names, change = min(options, key=lambda option: len(option[1].moved))
    within = _within(names, groups)
    for nodes in within:
        del groups[nodes]
    numbered = {group.number: list(group.jobs) for group in change.cluster.groups}
    groups |= {nodes: numbered[number] for number, nodes in enumerate(within, 1) if number in numbered}
    for group in change.cluster.groups:
        if group.number > len(within):
            # One that nobody has measured may have more input than fits.
            free = sorted(_unheld(names, groups), key=lambda node: bool(outlook.sites[node].why_unspilled))
            groups[tuple(sorted(free[: group.machines]))] = list(group.jobs)
    return change


def _room(
    outlook: Outlook, job: str, names: Sequence[str], groups: Mapping[Nodes, Sequence[str]], rules: GroupingRules
) -> Change | None:
    """A place for a job on some of these nodes; groups are numbered from 1 in the order of `_within`."""
    within = _within(names, groups)
    running = [one for nodes in within for one in groups[nodes]]
    cluster = Cluster(
        machines=len(_unheld(names, groups)) + sum(map(len, within)),
        groups=tuple(
            RunningGroup(number=number, machines=len(nodes), jobs=tuple(groups[nodes]))
            for number, nodes in enumerate(within, 1)
        ),
        waiting=(job,),
        profiles={one: _needs(outlook, one) for one in (job, *running)},
        fixed=frozenset(one for one in running if outlook.rules.yields_at_s(outlook.jobs[one]) > outlook.now_s),
        next_number=len(within) + 1,
    )
    unmeasured = {one for nodes in within for one in groups[nodes] if not outlook.state.knows(one, len(nodes))}
    return admitted(cluster, job, rules, unmeasured)


def _within(names: Sequence[str], groups: Mapping[Nodes, Sequence[str]]) -> list[Nodes]:
    """The nodes of groups that are on these nodes alone."""
    return sorted(nodes for nodes, jobs in groups.items() if jobs and {*nodes} <= {*names})


def _unheld(names: Sequence[str], groups: Mapping[Nodes, Sequence[str]]) -> list[str]:
    held = {node for nodes, jobs in groups.items() if jobs for node in nodes}
    return [node for node in names if node not in held]


def _needs(outlook: Outlook, job: str) -> WorkProfile:
    """A job's profile; of one that nobody has measured its memory and its numbers of nodes alone."""
    state = outlook.state
    (least, most), floor_bytes = state.workers_of(job), state.jobs.get(job, 0)
    return state.profile(job) or WorkProfile(
        job=job, work_machine_s=0.0, net_s=0.0, floor_bytes=floor_bytes, machines_least=least, machines_most=most
    )
