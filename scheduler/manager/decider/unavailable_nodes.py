"""Nodes that a waiting job could use but that take no jobs now: which, why, and what makes them available. PURE."""

from collections.abc import Iterable, Iterator

from farside.scheduler.manager.model.record import LiveJob, LiveNode

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


def _why(node: LiveNode) -> str:
    if node.state == "booting":
        return BOOTING
    if not node.has_power:  # which names the state
        return node.why_not
    is_drained_alone = node.drain_reason and node.is_up and not node.unhealthy
    back = "; `farside undrain` gives it back" if is_drained_alone else ""
    return f"{node.state} ({node.why_not}){back}"
