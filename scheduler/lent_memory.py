"""Memory that donors lend, and how much of it jobs were promised: a resource of the whole cluster. PURE.

How it works
  A job's swap is memory of other nodes. Its pages go to whatever donors have room, so no donor's memory is set aside
  for it, and only sums count: no more is promised than all donors together lend; and to the jobs of one node no more
  than the donors of the others, as a node does not borrow from itself. These two are enough for that all jobs could
  have what they were promised at the same time: any two nodes together may borrow from every donor (Hall's theorem).

  The live manager and the simulator ask the same object: each domain's ledger books here what it books, and whatever
  is started was fitted here once more.
"""

import math
from collections.abc import Iterable, Mapping

from farside.scheduler.state import Node
from farside.units import format_bytes


class LentMemory:
    """Memory that donors lend, by node of the donor, and what was promised of it, by node of the job.

    Bytes are whole, so that nothing is lost in sums. More may be promised than is lent: donors die and shrink. Nothing
    further is promised then until it fits.

    Attributes:
        is_counted: False: nobody knows what donors lend, and everything fits.
        lent_bytes: What all donors together lend, lent already or not.
        promised_bytes: What jobs were promised, all together.
        own_bytes: What nodes' own programs have of it.
        version: Grows with each change.
    """

    def __init__(self, lends: Mapping[str, int] | None = None, *, is_counted: bool = True) -> None:
        """``lends``: bytes by node."""
        self.is_counted = is_counted
        self.lent_bytes = self.promised_bytes = self.own_bytes = self.version = 0
        self._lends: dict[str, int] = {}
        self._own: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        for name, lends_bytes in (lends or {}).items():
            self.set_node(name, lends_bytes=lends_bytes)

    @property
    def free_bytes(self) -> int:
        """What may be promised besides, to jobs wherever they are; below 0: more is promised than is lent."""
        return self.lent_bytes - self.promised_bytes - self.own_bytes

    @property
    def is_kept(self) -> bool:
        """Whether all could have what they were promised now."""
        return self.free_bytes >= 0 and all(self.free_on(node) >= 0 for node, size in self._promised.items() if size)

    def free_on(self, node: str) -> int:
        """What jobs on a node may be promised besides: its own donor is of no use to them."""
        here = self._lends.get(node, 0) + self._own.get(node, 0) + self._promised.get(node, 0)
        return min(self.free_bytes, self.lent_bytes - here)

    def fits(self, needs: Mapping[str, int]) -> bool:
        """Whether jobs on these nodes may be promised so much besides, all of it."""
        if not self.is_counted or not any(needs.values()):
            return True
        return sum(needs.values()) <= self.free_bytes and all(
            need <= self.free_on(node) for node, need in needs.items()
        )

    def set_node(self, name: str, *, lends_bytes: int, own_bytes: int = 0) -> bool:
        """Set what a node's donor lends, and what of others' memory its own programs have; whether that is other."""
        before = self._lends.get(name, 0), self._own.get(name, 0)
        if before == (lends_bytes, own_bytes):
            return False
        self._lends[name], self._own[name] = lends_bytes, own_bytes
        self.lent_bytes += lends_bytes - before[0]
        self.own_bytes += own_bytes - before[1]
        self.version += 1
        return True

    def promise(self, node: str, more_bytes: int) -> None:
        """Promise so much more to jobs on a node; below 0: so much less."""
        if more_bytes:
            self._promised[node] = self._promised.get(node, 0) + more_bytes
            self.promised_bytes += more_bytes
            self.version += 1

    def lacks(self, need_bytes: int) -> bool:
        """Whether a job that needs so much in all has to wait for memory."""
        return self.is_counted and need_bytes > self.free_bytes

    def why_not(self, need_bytes: int) -> str:
        """Why a job that needs so much in all has to wait, in words; empty: that is not why."""
        if not self.lacks(need_bytes):
            return ""
        needs = f"it needs {format_bytes(need_bytes)} of other nodes' memory"
        if not self.lent_bytes:
            return f"no donor lends memory, and {needs}"
        others = f", and {format_bytes(self.own_bytes)} are used by nodes' own programs" if self.own_bytes else ""
        promised = f"{format_bytes(self.promised_bytes)} are promised to jobs"
        return f"of the {format_bytes(self.lent_bytes)} that donors lend {promised}{others}, and {needs}"


def lent_by(nodes: Iterable[Node]) -> LentMemory:
    """What these nodes lend, nothing of it promised."""
    return LentMemory({node.name: int(node.lends_bytes) for node in nodes if node.lends_bytes})


def promise_of(gpus: int, swap_bytes_per_gpu: float) -> int:
    """Bytes that a job is promised on a node where it has these GPUs."""
    return math.ceil(gpus * swap_bytes_per_gpu)


def parts_of(total_bytes: int, lends: Mapping[str, int]) -> dict[str, int]:
    """A sum by node, in proportion to what each lends; the parts are whole bytes, and their sum is the whole.

    Nothing where nobody lends anything: it is on no node then.
    """
    all_bytes, parts, before = sum(lends.values()), dict[str, int](), 0
    if not all_bytes:
        return dict.fromkeys(lends, 0)
    running = 0
    for name, lends_bytes in lends.items():
        running += lends_bytes
        now = total_bytes * running // all_bytes
        parts[name], before = now - before, now
    return parts
