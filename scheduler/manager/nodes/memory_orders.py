"""Orders about the memory of a node, refused before they are written where they could not be kept. PURE."""

from farside.geometry import GRANULE_BYTES
from farside.scheduler.manager.model.lending import lending_of
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.overview import Sensed
from farside.units import format_bytes


def why_not_lend(node: LiveNode, sensed: Sensed | None, at_most_bytes: int | None) -> str:
    """Reason to refuse a bound of what a node lends; empty: it can have it.

    ``sensed``: what its agent reported to this manager last; None: nothing. ``at_most_bytes``: None takes the bound
    back, which is never refused.
    """
    name = node.name
    if at_most_bytes is None:
        return ""
    if sensed is None:
        return f"{name}: its agent has not reported to this manager, so its donor is not known; try when it has"
    if sensed.lend_refusal:
        return f"{name} takes no such order: {sensed.lend_refusal}"
    if sensed.memory.lent_bytes is None:
        return f"{name}: no donor answers there; start farside-daemon, and name its daemon_socket in agent.toml"
    if at_most_bytes > node.memory_bytes:
        asked, there = format_bytes(at_most_bytes), format_bytes(node.memory_bytes)
        return f"{name}: lend is {asked}, and the node has {there} of memory; name less, or on"
    return ""


def why_not_swap(node: LiveNode, sensed: Sensed | None, size_bytes: int | None, state: LiveState) -> str:
    """Reason to refuse swap of a size for a node; empty: it can have it.

    ``sensed``: what its agent reported to this manager last; None: nothing. ``size_bytes``: 0: none; None takes the
    order back, which is never refused.
    """
    name = node.name
    if size_bytes is None:
        return ""
    if sensed is None:
        return f"{name}: its agent has not reported to this manager, so nobody knows its swap; try when it has"
    if sensed.swap_refusal:
        return f"{name} takes no such order: {sensed.swap_refusal}"
    jobs = dict.fromkeys(job_id for job_id in state.jobs_on(name) if _swaps(state, job_id))
    if jobs and size_bytes < node.swap_bytes:
        return f"{name}: jobs there were promised swap, such as {next(iter(jobs))}; drain the node and wait for them"
    return _why_not_attach(node, sensed, size_bytes, state) if size_bytes else ""


def _why_not_attach(node: LiveNode, sensed: Sensed, size_bytes: int, state: LiveState) -> str:
    device_bytes, asked = sensed.memory.swap_device_bytes, format_bytes(size_bytes)
    if size_bytes < GRANULE_BYTES:
        return f"{node.name}: swap is {asked}, and less than {format_bytes(GRANULE_BYTES)} is none; write off"
    if device_bytes is None:
        return f"{node.name}: no borrower answers there for its swap_device; start farside-blockdev@NAME"
    if size_bytes > device_bytes:
        return f"{node.name}: swap is {asked}, and its device has {format_bytes(device_bytes)}; name less"
    lent_bytes = sum(one.lends_bytes for one in lending_of(state) if one.node != node.name)
    if size_bytes > lent_bytes:
        return f"{node.name}: swap is {asked}, and donors of other nodes lend {format_bytes(lent_bytes)}; name less"
    return ""


def _swaps(state: LiveState, job_id: str) -> bool:
    spec = state.jobs[job_id].spec
    return bool(spec.swap_bytes_per_gpu) or any(role.swap_bytes for role in spec.roles)
