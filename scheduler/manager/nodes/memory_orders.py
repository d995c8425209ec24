"""Orders about the memory of a node, refused before they are written where they could not be kept. PURE."""

from farside.geometry import GRANULE_BYTES, granules_of
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
    order back, so that the node's own settings count.
    """
    name = node.name
    if size_bytes is None:
        return _why_not_keep(node, sensed, state)
    if sensed is None:
        return f"{name}: its agent has not reported to this manager, so nobody knows its swap; try when it has"
    if sensed.swap_refusal:
        return f"{name} takes no such order: {sensed.swap_refusal}"
    # Swap of another size is detached first.
    if (size_bytes < node.swap_bytes or _detaches(sensed, size_bytes)) and (job := _promised(node, state)):
        return _taken_from(node, job)
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


def _why_not_keep(node: LiveNode, sensed: Sensed | None, state: LiveState) -> str:
    """Reason to refuse taking an order back: its node would detach by its own settings what jobs were promised."""
    job = _promised(node, state)
    if node.swap_ordered_bytes is None or not job:
        return ""
    if sensed is None:
        what = f"its agent has not reported to this manager, and job {job} there was promised swap"
        return f"{node.name}: {what}; try when it has"
    if sensed.swap_refusal or sensed.swap_set_bytes is None:  # no order counts there, or its settings leave it as it is
        return ""
    return _taken_from(node, job) if _detaches(sensed, sensed.swap_set_bytes) else ""


def _detaches(sensed: Sensed, size_bytes: int) -> bool:
    """Whether its agent would detach what is on, to have swap of that size; 0: none."""
    has_bytes = sensed.memory.swap_attached_bytes or 0
    return has_bytes > 0 and granules_of(has_bytes) != size_bytes // GRANULE_BYTES


def _taken_from(node: LiveNode, job: str) -> str:
    return f"{node.name}: jobs there were promised swap, such as {job}; drain the node and wait for them"


def _promised(node: LiveNode, state: LiveState) -> str:
    """A job there that was promised swap; empty: there is none."""
    return next((job_id for job_id in state.jobs_on(node.name) if _swaps(state, job_id)), "")


def _swaps(state: LiveState, job_id: str) -> bool:
    spec = state.jobs[job_id].spec
    return bool(spec.swap_bytes_per_gpu) or any(role.swap_bytes for role in spec.roles)
