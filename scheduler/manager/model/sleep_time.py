"""Node sleep time: how long nodes have slept, in total and between any two times. PURE."""

from bisect import bisect_right

from msgspec import Struct

J_PER_KWH = 3.6e6


class SleepPoint(Struct, frozen=True, kw_only=True):
    """A change: ``off`` nodes are off from ``at_s`` on; nodes had slept ``node_s`` seconds in all up to then."""

    at_s: float
    off: int
    node_s: float


class SleepRecord:
    """The number of nodes that were off, over time. The owner records each change, in order."""

    def __init__(self, points: tuple[SleepPoint, ...] = ()) -> None:
        self.points = list(points)

    def note(self, at_s: float, off: int) -> None:
        """Records how many nodes are off from now on."""
        self.points.append(SleepPoint(at_s=at_s, off=off, node_s=self._until_s(at_s)))

    def forget(self, before_s: float) -> None:
        """What was before is counted, and not known by the minute any more."""
        kept = bisect_right(self.points, before_s, key=lambda point: point.at_s) - 1
        del self.points[: max(0, kept)]

    def node_s(self, begin_s: float, end_s: float) -> float:
        """Seconds that nodes slept between two times."""
        return max(0.0, self._until_s(end_s) - self._until_s(begin_s))

    def _until_s(self, at_s: float) -> float:
        place = bisect_right(self.points, at_s, key=lambda point: point.at_s) - 1
        if place < 0:
            return 0.0
        point = self.points[place]
        return point.node_s + point.off * (at_s - point.at_s)


def saved_kwh(node_s: float, idle_w: float) -> float:
    """Energy saved by sleeping nodes, without cooling."""
    return node_s * idle_w / J_PER_KWH
