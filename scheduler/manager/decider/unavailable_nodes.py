"""Nodes that a waiting job could use but that take no jobs now: which, why, and what makes them available. PURE.

And the nodes of its partition, and of partitions that lend theirs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from farside.scheduler.admission.partitions import Partitions
from farside.scheduler.domain import Domain
from farside.scheduler.manager.decider.adapter import partition_of
from farside.scheduler.manager.decider.domains import home_of
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.model.state import LiveState
from farside.units import format_count, format_seconds

# So many nodes are named on one line.
NAMED = 8
BOOTING = "being switched on"


def out_of_service(nodes: Iterable[LiveNode], job: LiveJob) -> Iterator[str]:
    """A line for each state and reason that such nodes are in."""
    found: dict[str, list[LiveNode]] = {}
    for node in nodes:
        if not node.is_taking and node.suits(job.spec, job.user):
            found.setdefault(_why(node), []).append(node)
    for why, there in sorted(found.items()):
        there.sort(key=lambda node: node.name)
        more = f" and {len(there) - NAMED} more" if len(there) > NAMED else ""
        names = ", ".join(node.name for node in there[:NAMED]) + more
        if why == BOOTING:
            yield f"{BOOTING}: {names}"
            continue
        gpus = sum(node.device_count for node in there)
        held = f"{gpus} GPUs are" if gpus != 1 else "1 GPU is"
        yield f"{held} on {names}: {why}"


def partition_lines(state: LiveState, partitions: Partitions, job: LiveJob) -> Iterator[str]:
    """What the partition of a waiting job has; nothing where there are no partitions."""
    if not partitions:
        return
    name = partition_of(job, partitions)
    if name not in partitions.by_name:
        yield (
            f"partition {name} is not in the manager's settings any more, and has no nodes; cancel the job and submit "
            "it to another, or an operator brings the partition back"
        )
        return
    own = [node for node in state.nodes.values() if partitions.owner_of(node.name) == name]
    gpus = sum(node.device_count for node in own)
    yield f"partition {name} has {format_count(gpus, 'GPU')} on {format_count(len(own), 'node')}"
    yield from _why_no_guest(partitions, name, job)
    for other in sorted({home_of(state, partitions, node.name) for node in own} - {name}):
        there = sorted(node.name for node in own if home_of(state, partitions, node.name) == other)
        more = f" and {len(there) - NAMED} more" if len(there) > NAMED else ""
        yield f"jobs of partition {other} are still on {', '.join(there[:NAMED])}{more}, and end there first"


def _why_no_guest(partitions: Partitions, name: str, job: LiveJob) -> Iterator[str]:
    """Why a job can't have idle nodes of partitions that lend theirs."""
    lenders = [one for one in partitions.by_name.values() if one.name != name and one.lend_grace_s]
    if lenders and not job.spec.preemptible:
        yield "it borrows no idle nodes of other partitions, since it is not preemptible"
        return
    longest_s = max((one.lend_grace_s for one in lenders), default=math.inf)
    if job.spec.grace_s > longest_s:
        asked, most = format_seconds(job.spec.grace_s), format_seconds(longest_s)
        yield f"it borrows no idle nodes of other partitions: its grace is {asked}, and they lend for {most} at most"


def lender_lines(domain: Domain, row: int, lenders: Sequence[Domain], now_s: float) -> Iterator[str]:
    """Why partitions that lend lend nothing to a waiting job, which is in ``row`` of its ``domain``; as in a cycle."""
    job, found = domain.jobs[row], dict[str, list[str]]()
    is_said = not job.preemptible or all(job.grace_s > lender.lend_grace_s for lender in lenders)
    if is_said or domain.book.why_capped(row):
        return  # other lines have that
    for lender in lenders:
        found.setdefault(_why_not_of(domain, row, lender, now_s), []).append(lender.name)
    for why, names in found.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        whose = (
            f"partition {names[0]} lends" if len(names) == 1 else f"partitions {', '.join(names[:NAMED])}{more} lend"
        )
        yield f"{whose} it nothing: {why}"


def _why_not_of(domain: Domain, row: int, lender: Domain, now_s: float) -> str:
    job, demand = domain.jobs[row], domain.demands[domain.groups[row]]
    if job.grace_s > lender.lend_grace_s:
        return (
            f"its grace is {format_seconds(job.grace_s)}, and {format_seconds(lender.lend_grace_s)} is the most there"
        )
    if len(lender.waiting):
        return "jobs of its own wait"
    free = lender.ledger.free_gpus
    if free < demand.gpus:
        has = f"{format_count(free, 'GPU')} there {'is' if free == 1 else 'are'} free"
        return f"it needs {format_count(demand.gpus, 'GPU')}, and {has}"
    if lender.book.place_demand(demand, job.limit_s, now_s) is None:
        return "the free GPUs there do not suit it, or are not together"
    if domain.traits.is_strict:
        return "there is room, and only the first in line borrows"
    return "there is room, and the next cycle looks"


def _why(node: LiveNode) -> str:
    if node.state == "booting":
        return BOOTING
    if not node.has_power:  # which names the state
        return node.why_not
    is_drained_alone = node.drain_reason and node.is_up and not node.unhealthy
    back = "; `farside undrain` gives it back" if is_drained_alone else ""
    return f"{node.state} ({node.why_not}){back}"
