"""Presence of nodes whose agents are connected to other managers. PURE.

With two managers on one store each hears only the agents that came to it. Silence there is no silence of the node.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The last report of the API of one manager. ``beat`` changes each time, so no clock is compared."""

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
        """When another manager heard of this node last; -inf: never."""
        return self._heard_s.get(node, -math.inf)
