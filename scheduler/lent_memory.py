"""Memory that donors lend, and how much of it jobs were promised: a resource of the whole cluster. PURE.

How it works
  A job's swap is memory of other nodes. Its pages go to whatever donors have room, so no donor's memory is set aside
  for it, and only sums count: no more is promised than all donors together lend; and to the jobs of one node no more
  than the donors of the others, as a node does not borrow from itself. These two are enough for that all jobs could
  have what they were promised at the same time: any two nodes together may borrow from every donor (Hall's theorem).

  Where borrowers keep two copies of each page, these take the memory of two donors, and never twice that of one. So
  what is promised there counts twice in the sum, once without any one donor, and of two nodes' jobs once without both
  of their donors: by the same theorem these are all.

  What jobs are to have of a node's own memory, its donor lends no longer, whether they use it by then or not. So each
  donor counts with what it lends beside them.

  The live manager and the simulator ask the same object: each domain's ledger books here what it books, swap and
  memory, so that all domains count the jobs of all nodes; and whatever is started was fitted here once more.

  What others have of a node's memory by now is noted here too: a job that needs memory there has it only when it has
  come back (placement/recall.py). Nothing is lent so in the simulator.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from farside.scheduler.state import Node
from farside.units import format_bytes

NO_MEMORY: Mapping[str, int] = MappingProxyType({})


class LentMemory:
    """Memory that donors lend, by node of the donor, and what was promised of it, by node of the job.

    Bytes are whole, so that nothing is lost in sums. More may be promised than is lent: donors die and shrink. Nothing
    further is promised then until it fits.

    Attributes:
        is_counted: False: nobody knows what donors lend, and everything fits.
        lent_bytes: What all donors together lend beside the jobs of their nodes, lent already or not.
        promised_bytes: What jobs were promised of it, all together, each copy of a page by itself.
        own_bytes: What nodes' own programs have of it, likewise.
        borrowed_bytes: What others than its nodes have of it now.
        version: Grows with each change.
    """

    def __init__(self, lends: Mapping[str, int] | None = None, *, is_counted: bool = True) -> None:
        """``lends``: bytes by node."""
        self.is_counted = is_counted
        self.lent_bytes = self.promised_bytes = self.own_bytes = self.borrowed_bytes = self.version = 0
        self._lends: dict[str, int] = {}  # beside the jobs of its node
        self._told: dict[str, int] = {}  # by itself
        self._room: dict[str, int] = {}  # for jobs on a node, what its donor lends included; without: nobody counts it
        self._taken: dict[str, int] = {}  # of that
        self._own: dict[str, int] = {}  # of pages, as what is promised
        self._promised: dict[str, int] = {}
        self._twice: set[str] = set()  # nodes whose pages have two copies
        self._borrowed: dict[str, int] = {}
        self._bounds: tuple[int, _Bounds] | None = None  # at which version
        for name, lends_bytes in (lends or {}).items():
            self.set_node(name, lends_bytes=lends_bytes)

    @property
    def free_bytes(self) -> int:
        """What donors lend beyond all that was promised; below 0: more is promised than is lent."""
        return self.lent_bytes - self.promised_bytes - self.own_bytes

    @property
    def is_kept(self) -> bool:
        """Whether all could have what they were promised now."""
        return _least_spare(self._lends, self._pages(), self._twice) >= 0

    def copies(self, node: str) -> int:
        """Donors that have each page of a node."""
        return 2 if node in self._twice else 1

    def lends(self, node: str) -> int:
        """What a node's donor lends beside the jobs there, lent already or not."""
        return self._lends.get(node, 0)

    def left(self, node: str) -> float:
        """What jobs leave of a node's memory, with what its donor lends; infinite: nobody counts it."""
        room = self._room.get(node)
        return math.inf if room is None else room - self._taken.get(node, 0)

    def _lends_beside(self, node: str, more_bytes: int = 0) -> int:
        """What a node's donor lends if jobs there are to have so much more of its memory."""
        told, room = self._told.get(node, 0), self._room.get(node)
        taken = self._taken.get(node, 0) + more_bytes
        return told if room is None or taken <= 0 else min(told, max(0, room - taken))

    def _less(self, takes: Mapping[str, int]) -> dict[str, int]:
        """What donors lend that lend less with so much more memory of their nodes taken."""
        after = {node: self._lends_beside(node, size) for node, size in takes.items() if size and node in self._told}
        return {node: lends for node, lends in after.items() if lends < self._lends.get(node, 0)}

    def is_lent(self, takes: Mapping[str, int]) -> bool:
        """Whether jobs that are to have these bytes of nodes' own memory take any that donors lend."""
        return self.is_counted and bool(self._less(takes))

    @property
    def is_asked(self) -> bool:
        """Whether anybody was promised anything, or has something of what is lent."""
        return bool(self.promised_bytes or self.own_bytes)

    def borrowed_from(self, node: str) -> int:
        """What others have of a node's memory now."""
        return self._borrowed.get(node, 0)

    def free_on(self, node: str) -> int:
        """Pages, in bytes, that jobs on a node may be promised besides: its own donor is of no use to them."""
        own = self._beside(node)
        if node not in self._twice:
            return min(self.free_bytes, own)
        bounds, here = self._now(), self._weight(node)
        others = next((free for free, name in bounds.beside if name != node), self.free_bytes)
        next_to = next((weight for weight, name in bounds.weights if name != node), 0)
        return min(self.free_bytes // 2, own // 2, others, self.lent_bytes - here - next_to)

    def _pages(self) -> dict[str, int]:
        """What was promised on each node, or its own programs have, in pages, however many copies these have."""
        return {node: self._promised.get(node, 0) + self._own.get(node, 0) for node in {*self._promised, *self._own}}

    def _beside(self, node: str) -> int:
        """What others' donors lend beyond what has to be there: this node's pages, and second copies of all others."""
        pages, others = self._promised.get(node, 0) + self._own.get(node, 0), 0
        if self._twice:
            others = self._now().twice_bytes
        return self.lent_bytes - self._lends.get(node, 0) - pages - others

    def _weight(self, node: str) -> int:
        """Sum of what a node's donor lends and of the node's pages that have two copies."""
        twice = self._promised.get(node, 0) + self._own.get(node, 0) if node in self._twice else 0
        return self._lends.get(node, 0) + twice

    def _now(self) -> "_Bounds":
        """What limits pages with two copies, as it is now."""
        if self._bounds is None or self._bounds[0] != self.version:
            twice = sum(self._promised.get(node, 0) + self._own.get(node, 0) for node in self._twice)
            nodes = {*self._lends, *self._promised, *self._own}
            beside = sorted(
                (self.lent_bytes - self._lends.get(node, 0) - pages - twice, node)
                for node in nodes
                for pages in (self._promised.get(node, 0) + self._own.get(node, 0),)
            )[:2]
            weights = sorted(((self._weight(node), node) for node in nodes), reverse=True)[:2]
            self._bounds = self.version, _Bounds(twice_bytes=twice, beside=tuple(beside), weights=tuple(weights))
        return self._bounds[1]

    def fits(self, needs: Mapping[str, int], takes: Mapping[str, int] = NO_MEMORY) -> bool:
        """Whether jobs on these nodes may be promised these bytes of pages besides, all of them.

        ``takes``: bytes of nodes' own memory that they are to have, which donors there lend no longer.
        """
        less = self._less(takes)
        if not self.is_counted or not (any(needs.values()) or (less and self.is_asked)):
            return True
        if not (less or self._twice):
            return sum(needs.values()) <= self.free_bytes and all(
                need <= self.free_on(node) for node, need in needs.items()
            )
        # What a donor lends no more, all others have less to borrow from: what was promised before counts then, too.
        lends, pages = {**self._lends, **less}, self._pages()
        for node, need in needs.items():
            pages[node] = pages.get(node, 0) + need
        return _least_spare(lends, pages, self._twice) >= 0

    def may_lose(self, nodes: Sequence[str]) -> list[int]:
        """By node, how much less its donor may lend, with all other nodes' jobs having what they were promised.

        Each by itself: `fits` has also what all of them lack together, and pages with two copies whole.
        """
        if self._twice:
            least = self._now().beside
        else:
            least = tuple(sorted((self._beside(node), node) for node, size in self._pages().items() if size)[:2])
        return [next((free for free, node in least if node != name), self.lent_bytes) for name in nodes]

    def set_room(self, node: str, room_bytes: float) -> bool:
        """Set the memory that jobs may have on a node in all, what its donor lends included; whether that is other.

        Infinite: nobody counts it.
        """
        room = None if math.isinf(room_bytes) else int(room_bytes)
        if room == self._room.get(node):
            return False
        if room is None:
            del self._room[node]
        else:
            self._room[node] = room
        self._lend(node)
        return True

    def take(self, node: str, more_bytes: int) -> None:
        """Note that jobs on a node are to have more bytes of its memory; below 0: fewer."""
        self._taken[node] = self._taken.get(node, 0) + more_bytes
        self._lend(node)

    def _lend(self, node: str) -> None:
        """What a donor lends follows from what it says and what jobs leave it."""
        if node in self._told:
            lends = self._lends_beside(node)
            self.lent_bytes += lends - self._lends.get(node, 0)
            self._lends[node] = lends
            self.version += 1

    def set_borrowed(self, node: str, borrowed_bytes: int) -> bool:
        """Set what others have of a node's memory now; whether that is other."""
        if borrowed_bytes == self.borrowed_from(node):
            return False
        self.version += 1
        self.borrowed_bytes += borrowed_bytes - self.borrowed_from(node)
        self._borrowed[node] = borrowed_bytes
        return True

    def set_node(self, name: str, *, lends_bytes: int, own_bytes: int = 0, copies: int = 1) -> bool:
        """Set what a node's donor lends, and what of others' memory its own programs have; whether that is other.

        ``copies``: donors that have each page of this node, 1 or 2.
        """
        before = self._told.get(name, 0), self._own.get(name, 0), self.copies(name)
        if before == (lends_bytes, own_bytes, copies):
            return False
        pages = self._promised.get(name, 0)
        self._told[name], self._own[name] = lends_bytes, own_bytes
        (self._twice.add if copies == 2 else self._twice.discard)(name)
        self._lend(name)
        self.own_bytes += own_bytes * copies - before[1] * before[2]
        self.promised_bytes += pages * (copies - before[2])
        return True

    def promise(self, node: str, more_bytes: int) -> None:
        """Promise more bytes of pages to jobs on a node; below 0: fewer."""
        if more_bytes:
            self._promised[node] = self._promised.get(node, 0) + more_bytes
            self.promised_bytes += more_bytes * self.copies(node)
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
        told_bytes = sum(self._told.values())
        beside = "" if told_bytes == self.lent_bytes else " beside what jobs on their nodes are to have"
        return f"of the {format_bytes(self.lent_bytes)} that donors lend{beside} {promised}{others}, and {needs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What limits pages with two copies: their bytes, the two least of `_beside`, and the two largest of `_weight`."""

    twice_bytes: int
    beside: tuple[tuple[int, str], ...]
    weights: tuple[tuple[int, str], ...]


def _least_spare(lends: Mapping[str, int], pages: Mapping[str, int], twice: Collection[str]) -> int:
    """What is left of the tightest limit on what all together have been promised; below 0: not all could have it.

    ``pages`` by node, those ``twice`` with two copies each at two donors.
    """
    lent_bytes, doubled = sum(lends.values()), sum(pages.get(node, 0) for node in twice)
    spare = lent_bytes - doubled - sum(pages.values())
    for node in {*lends, *pages}:
        need = pages.get(node, 0) + doubled
        if need:
            spare = min(spare, lent_bytes - lends.get(node, 0) - need)
    if doubled:
        weights = (lends.get(node, 0) + (pages.get(node, 0) if node in twice else 0) for node in {*lends, *pages})
        spare = min(spare, lent_bytes - sum(sorted(weights)[-2:]))
    return spare


def lent_by(nodes: Iterable[Node]) -> LentMemory:
    """What these nodes lend, nothing of it promised, and the memory that jobs may have there."""
    memory = LentMemory()
    for node in nodes:
        if node.lends_bytes:
            memory.set_node(node.name, lends_bytes=int(node.lends_bytes))
        if node.memory_bytes < math.inf:
            memory.set_room(node.name, node.memory_bytes)
    return memory


def memory_of(gpus: int, memory_bytes_per_gpu: float) -> int:
    """Bytes of a node's own memory that a job is to have there with these GPUs."""
    return math.ceil(gpus * memory_bytes_per_gpu)


def to_recall(need_bytes: int, free_bytes: int, borrowed_bytes: int) -> int:
    """What a donor has to take back before a job has its memory there: what it lacks beside all that is lent.

    ``free_bytes``: for the job, with the ``borrowed_bytes`` that others have.
    """
    return max(0, min(borrowed_bytes, need_bytes - (free_bytes - borrowed_bytes)))


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
