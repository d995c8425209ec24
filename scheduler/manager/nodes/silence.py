"""Which nodes and fronts have been silent for too long, by what this manager and others of its store hear. PURE."""

from collections.abc import Container, Iterable

from farside.agent.protocol import lost_after_s
from farside.scheduler.manager.model.event import CancelRequested, NodeLost
from farside.scheduler.manager.model.presence import LEASE_GRACE_S, Fronts, RemotePresence
from farside.scheduler.manager.model.record import LiveJob, LiveNode, Phase
from farside.units import format_seconds


class Silence:
    """When each node was heard last. Times are by this manager's clock."""

    def __init__(self, node_timeout_s: float, elsewhere: RemotePresence) -> None:
        """``node_timeout_s``: a node is lost after so long; ``elsewhere``: what other managers hear."""
        self._node_timeout_s, self._elsewhere = node_timeout_s, elsewhere
        self._heard_s: dict[str, float] = {}  # those whose connection here has ended
        # By node: when it joined, as the log says, and when this manager saw that.
        self._joins: dict[str, tuple[float, float]] = {}

    def ended(self, node: str, heard_s: float) -> None:
        """Note that a node's connection has ended here, and when it was heard last."""
        self._heard_s[node] = heard_s

    def was_here(self, node: str) -> bool:
        """Whether a connection of a node has ended here."""
        return node in self._heard_s

    def lost(self, nodes: Iterable[LiveNode], connected: Container[str], now_s: float) -> list[NodeLost]:
        """What to write of nodes that are up, as the log says, and that nobody has heard of for too long.

        Args:
            nodes: All of the log.
            connected: Names of those that are connected here.
            now_s: By this manager's clock.
        """
        return [
            NodeLost(node=node.name, reason=f"not heard of for {format_seconds(self._limit_s(node))}")
            for node in nodes
            if now_s - self._last_s(node, now_s) > self._limit_s(node) and node.is_up and node.name not in connected
            and not (node.power is not None and node.power.is_expected_silent)
        ]  # fmt: skip

    def _limit_s(self, node: LiveNode) -> float:
        # Not before its tasks have ended by themselves, where they do: the next starts of their jobs follow. [M4]
        return max(self._node_timeout_s, lost_after_s(node.fence_s))

    def _last_s(self, node: LiveNode, now_s: float) -> float:
        """When it was heard last.

        A node that joins has been heard by some manager, which may have said nothing of it yet to the others. So it is
        after a restart, too: nobody has been heard yet, and each node gets its whole time.
        """
        known = self._joins.get(node.name)
        if known is None or known[0] != node.joined_s:
            known = self._joins[node.name] = node.joined_s, now_s
        return max(self._heard_s.get(node.name, known[1]), known[1], self._elsewhere.heard_s(node.name))


def left_leases(jobs: Iterable[LiveJob], fronts: Fronts, now_s: float) -> list[CancelRequested]:
    """Ends of leases that wait for a GPU, and whose front no manager has heard for `LEASE_GRACE_S`.

    A front that is back within that time finds them. A lease that runs has its worker, which ends without a front.
    """
    silent = format_seconds(LEASE_GRACE_S)
    return [
        CancelRequested(
            job_id=job.job_id,
            by=f"the manager: the front of deployment {job.spec.deployment} has not told of itself for {silent}",
        )
        for job in jobs
        if job.spec.deployment and job.phase is Phase.WAITING and not job.cancelled_by
        and now_s - max(job.submit_s, fronts.served_s(job.user, job.spec.deployment)) > LEASE_GRACE_S
    ]  # fmt: skip
