"""Count of GPUs to all jobs of a domain in order, before anybody has a place: who may start, who has to stop. PURE.

It is what the published simulator behind [helios §4.2] does under SRTF. A job to which GPUs are counted may then find
no nodes that it may use, and what is counted to it stays free, also where running jobs stopped for it.
"""

from dataclasses import dataclass

from farside.scheduler.admission.book import Book
from farside.scheduler.admission.queue import Queue
from farside.scheduler.admission.roster import Roster
from farside.scheduler.waiting import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Result of a count, both in the order of the ranks.

    Attributes:
        starting: Rank and row of waiting jobs to which GPUs are counted.
        stopping: Rank and row of running jobs for which too few are left, and the last of ``starting`` before it; -1:
            there is none, where nodes have left.
    """

    starting: tuple[tuple[Rank, int], ...]
    stopping: tuple[tuple[Rank, int, int], ...]


def count_gpus(roster: Roster, queue: Queue, book: Book, now_s: float) -> Count:
    """Count the GPUs of a domain's nodes to its jobs; those that may not be preempted now have theirs first."""
    ranks = {row: rank for rank, row in book.last_running(now_s)}
    left = book.ledger.total_gpus
    left -= sum(held.demand.gpus for row, held in book.running.items() if row not in ranks)
    starting: list[tuple[Rank, int]] = []
    stopping: list[tuple[Rank, int, int]] = []
    for rank, row in sorted((rank, row) for row, rank in (*ranks.items(), *queue.waiting.ranked())):
        gpus = roster.demand(row).gpus
        if gpus <= left:
            left -= gpus
            if row not in ranks:
                starting.append((rank, row))
        elif row in ranks:
            stopping.append((rank, row, starting[-1][1] if starting else -1))
    return Count(starting=tuple(starting), stopping=tuple(stopping))
