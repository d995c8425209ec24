"""Nodes that a waiting job could use but that take no jobs now: which, why, and what makes them available. PURE.

And the nodes of its partition.
"""

import math
from collections.abc import Iterable, Iterator

from farside.scheduler.admission.partitions import Partitions
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


def _why(node: LiveNode) -> str:
    if node.state == "booting":
        return BOOTING
    if not node.has_power:  # which names the state
        return node.why_not
    is_drained_alone = node.drain_reason and node.is_up and not node.unhealthy
    back = "; `farside undrain` gives it back" if is_drained_alone else ""
    return f"{node.state} ({node.why_not}){back}"
