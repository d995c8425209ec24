"""Presence of nodes and of fronts of deployments, by what this manager and others of its store hear. PURE.

With two managers on one store each hears only the agents and fronts that came to it. Silence there is no silence of the
node, or of the front.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The last report of the API of one manager. ``beat`` changes each time, so no clock is compared.

    ``nodes``: those that it hears, and as `front_key` the fronts that it has heard since the report before.
    """

    beat: int
    nodes: frozenset[str]


class RemotePresence:
    """Reports of all other APIs, by this one's clock."""

    def __init__(self) -> None:
        self._beats: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}

    def told(self, others: Mapping[str, Presence], now_s: float) -> None:
        """Takes in what they said last. One that says the same again has not been heard again."""
        for manager, said in others.items():
            if self._beats.get(manager) != said.beat:
                self._beats[manager] = said.beat
                self._heard_s.update(dict.fromkeys(said.nodes, now_s))

    def heard_s(self, node: str) -> float:
        """When another manager heard of this node, or of this front by `front_key`, last; -inf: never."""
        return self._heard_s.get(node, -math.inf)


LEASE_GRACE_S = 300.0
"""A lease may leave its GPU idle for so long after the last report of its front: either of front and manager may be
restarted meanwhile."""


def front_key(user: str, deployment: str, job_id: str = "") -> str:
    """What names the front of a user's deployment, or a lease of it, beside nodes, whose names have no slash."""
    return f"front:{user}/{deployment}/{job_id}" if job_id else f"front:{user}/{deployment}"


class Fronts:
    """Fronts of deployments: when each reported to a manager of this store last. Times are by this manager's clock."""

    def __init__(self, begun_s: float, elsewhere: RemotePresence) -> None:
        """``begun_s``: when this process began; ``elsewhere``: what other managers hear."""
        self._begun_s, self._elsewhere = begun_s, elsewhere
        self._heard_s: dict[str, float] = {}

    def heard(self, user: str, deployment: str, now_s: float, leases: Iterable[str] = ()) -> None:
        """Note that the front of a user's deployment has reported here, and which jobs it has called its leases."""
        for job_id in ("", *leases):
            self._heard_s[front_key(user, deployment, job_id)] = now_s

    def served_s(self, user: str, deployment: str, job_id: str = "") -> float:
        """Time of the last report of a front to any manager, or when this process began, if that was later.

        After a restart nobody has been heard yet: each front gets its whole time from then on. With ``job_id`` only
        reports count that name this lease.
        """
        key = front_key(user, deployment, job_id)
        return max(self._begun_s, self._heard_s.get(key, -math.inf), self._elsewhere.heard_s(key))

    def since(self, at_s: float, now_s: float) -> list[str]:
        """Fronts that have reported here after a time, by `front_key`; forgets who has not for long."""
        self._heard_s = {key: heard_s for key, heard_s in self._heard_s.items() if now_s - heard_s <= LEASE_GRACE_S}
        return [key for key, heard_s in self._heard_s.items() if heard_s > at_s]
