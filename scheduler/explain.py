"""Why a job waits, in words for an operator, from the state of its domain after a cycle. PURE.

The live manager and the simulator ask the same function: `explain`. Nothing is changed by asking.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from farside.scheduler.admission.counting import count_gpus
from farside.scheduler.domain import Domain, Held
from farside.scheduler.lent_memory import promise_of
from farside.scheduler.maintenance_window import closed_gpus
from farside.scheduler.node_set import bits
from farside.scheduler.order.reason import why_first
from farside.scheduler.placement.yarn import Yarn
from farside.scheduler.predict.gpu_time import Expectation
from farside.scheduler.start_estimate import AHEAD_MAX, StartEstimate
from farside.scheduler.state import Allocation, Demand, Job, Reservation
from farside.scheduler.waiting import Rank
from farside.units import format_bytes, format_count, format_moment, format_off, format_seconds

Clock = Callable[[float], str]


class Cause(Enum):
    """Cause of a wait; `farside sim why` sums waits by its value."""

    RUNS = "runs"
    RESERVED = "reserved for it, while others still run there"
    IN_LINE = "behind the first in line"
    HELD = "enough GPUs free or to be taken, but held for a reservation"
    COUNTED = "too few GPUs left to it once they are counted to jobs before it"
    SCATTERED = "enough GPUs free, but not where it could use them"
    FEW = "too few GPUs free"
    LENT = "too little memory that donors lend"
    CLOSED = "enough GPUs free, but on nodes that are reserved"
    CAPPED = "its account or user may not have more"
    DUE = "until the next cycle"
    GONE = "not there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a wait. ``need``: the job's demand in words. ``blocker``: the row of the job ahead, -1: none."""

    cause: Cause
    need: str = ""
    free_gpus: int = 0
    blocker: int = -1
    because: str = ""
    more: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Lines of the explanation: the cause first, then other facts."""
        if not self.need:
            return (self.because, *self.more)
        return (f"waits: needs {self.need}, {self.free_gpus} free; {self.because}", *self.more)


def explain(domain: Domain, row: int, now_s: float, clock: Clock = format_moment) -> tuple[str, ...]:
    """Explain in lines why a job of this domain waits, or where it runs. ``clock`` formats times."""
    return look(domain, row, now_s, clock).words


def look(domain: Domain, row: int, now_s: float, clock: Clock = format_moment) -> Explanation:
    """Explain in parts why a job waits; `explain` makes lines of them."""
    if row in domain.running:
        held = domain.running[row]
        return Explanation(
            cause=Cause.RUNS, because=f"runs on {_places(domain, held.allocation)} since {clock(held.since_s)}"
        )
    if row not in domain.jobs:
        return Explanation(cause=Cause.GONE, because="has ended, or never came here")
    if domain.table.is_running[row]:
        return Explanation(
            cause=Cause.RUNS,
            because=f"runs as a guest on idle nodes of others since {clock(float(domain.table.since_s[row]))}",
        )
    if row not in domain.waiting:
        return Explanation(cause=Cause.DUE, because="came or changed just now; the next cycle looks at it")
    return _Wait(domain, row, now_s, clock).explanation()


def nobody_knows(domain: Domain, estimate: StartEstimate) -> str:
    """Why the start of a job cannot be estimated."""
    if estimate.is_short:
        why = "too few GPUs are in service for it or for a job before it, even if all running jobs end"
    elif estimate.unlimited:
        largest = max((domain.jobs[row] for row in estimate.unlimited), key=lambda job: job.gpus)
        one, others = f"job {largest.job_id} ({gpus_of(largest)})", len(estimate.unlimited) - 1
        why = f"{one} and {others:,} more that go before it have" if others else f"{one}, which goes before it, has"
        why += " no time limit"
    else:
        why = f"more than {AHEAD_MAX:,} jobs go before it"
    return f"its start is unknown: {why}"


def _places(domain: Domain, allocation: Allocation) -> str:
    if domain.ledger.is_pooled:
        return f"{sum(gpus for _, gpus in allocation)} GPUs"
    named = [f"{domain.ledger.nodes[at].name} ({gpus})" for at, gpus in allocation[:4]]
    more = f" and {len(allocation) - 4} nodes more" if len(allocation) > 4 else ""
    return ", ".join(named) + more


class _Wait:
    """One waiting job, and all jobs between this job and its GPUs."""

    def __init__(self, domain: Domain, row: int, now_s: float, clock: Clock) -> None:
        self.domain, self.row, self.now_s, self.clock = domain, row, now_s, clock
        self.demand = domain.demands[domain.groups[row]]
        self.rank = domain.roster.ranks([row], now_s)[0]

    def explanation(self) -> Explanation:
        """First cause that applies."""
        domain, reservation = self.domain, self.domain.reservation
        capped = domain.book.why_capped(self.row)
        if capped:
            more = f"it needs {gpus_of(self.demand)}, and starts once others of these have ended"
            return Explanation(cause=Cause.CAPPED, because=f"waits: {capped}", more=(more, *self._waiters()))
        if reservation is not None and reservation.row == self.row:
            return self._told(Cause.RESERVED, -1, self._reserved(), self._waiters())
        ahead = self._first_in_line()
        if ahead >= 0:
            return self._told(Cause.IN_LINE, ahead, f"the first in line is {self._before(ahead)}", self._waiters())
        if domain.traits.is_counting_first and not self._is_counted():
            because = f"{domain.ledger.total_gpus} in all are counted to jobs in order, and too few are left to it"
            return self._told(Cause.COUNTED, -1, because, self._waiters())
        has_room = domain.book.place(self.row, self.now_s) is not None
        # Room without the maintenance windows, which `Book.place` takes away: then these are the cause.
        if not has_room and domain.rules.placement.place(domain.ledger, self.demand) is not None:
            first, *others = self._closed()
            return self._told(Cause.CLOSED, -1, first, (*others, *self._waiters()))
        if has_room and reservation is not None and reservation.row in domain.jobs:
            return self._told(Cause.HELD, reservation.row, self._held(reservation), ())
        if has_room:
            return self._told(Cause.DUE, -1, "the next cycle looks at it", ())
        if why := self._why_not_lent():
            return self._told(Cause.LENT, -1, why, (*self._chosen(), *self._waiters()))
        return self._full()

    def _is_counted(self) -> bool:
        domain = self.domain
        count = count_gpus(domain.roster, domain.queue, domain.book, self.now_s)
        return any(row == self.row for _, row in count.starting)

    def _why_not_lent(self) -> str:
        """What donors lack for it, if that keeps it waiting wherever there are GPUs; empty: it does not."""
        ledger, each = self.domain.ledger, self.demand.swap_bytes_per_gpu
        if not each:
            return ""
        if why := ledger.lent.why_not(promise_of(self.demand.gpus, each)):
            return why
        most, needs = max((ledger.lent.free_on(node.name) for node in ledger.nodes), default=0), promise_of(1, each)
        if most >= needs or not ledger.lent.is_counted:
            return ""
        left = f"at most {format_bytes(max(0, most))} are left that donors of other nodes lend"
        if all(ledger.lent.copies(node.name) > 1 for node in ledger.nodes if node.swap_bytes):
            left += ", as two of them have each page"
        return f"on no node may jobs be promised {format_bytes(needs)} more: {left}"

    def _told(self, cause: Cause, blocker: int, because: str, more: tuple[str, ...]) -> Explanation:
        return Explanation(
            cause=cause,
            need=need(self.domain, self.demand),
            free_gpus=self.domain.ledger.free_gpus,
            blocker=blocker,
            because=because,
            more=more,
        )

    def _closed(self) -> list[str]:
        """Maintenance windows that keep the job off nodes, with reasons."""
        limit_s = self.domain.jobs[self.row].limit_s
        could = f"its time limit is {format_seconds(limit_s)}" if limit_s < math.inf else "it has no time limit"
        return [
            f"{window.why}, and it could still run then: {could}"
            for window in self.domain.book.maintenance_windows
            if window.is_closed_to(self.now_s, limit_s)
        ]

    def _reserved(self) -> str:
        reservation = self.domain.reservation
        assert reservation is not None
        places = _places(self.domain, reservation.allocation)
        return f"reserved{self._from(reservation.at_s)}: {places}, as soon as the jobs that run there have ended"

    def _held(self, reservation: Reservation) -> str:
        return f"held for job {self.domain.jobs[reservation.row].job_id}, reserved{self._from(reservation.at_s)}"

    def _from(self, at_s: float) -> str:
        # Infinite where running jobs have no time limits: the start is not known then.
        return f" from {self.clock(at_s)}" if at_s < math.inf else ""

    def _first_in_line(self) -> int:
        """Head of the queue, if a strict policy lets no job pass it and it is another job; otherwise -1."""
        if not self.domain.traits.is_strict:
            return -1
        own = self.domain.queue.head_before(self.row)
        if self.domain.book.why_capped(own):
            return own  # of the same account and QOS, but larger
        _, head, _ = min(head for head in self.domain.waiting.heads() if not self.domain.book.why_capped(head[1]))
        return -1 if head == self.row else head

    def _before(self, other: int) -> str:
        """``job 17, which ...``: why the other job goes first."""
        domain = self.domain
        job = domain.jobs[other]
        first, second = (domain.roster.figures([one], self.now_s) for one in (other, self.row))
        return f"job {job.job_id} ({gpus_of(job)}), which {why_first(domain.rules.order, first, second)}"

    def _waiters(self) -> tuple[str, ...]:
        count = sum(rank < self.rank for rank in self.domain.waiting.ranks())
        if not count:
            return ("no waiting job goes before it",)
        return (f"{count} waiting jobs go before it" if count > 1 else "one waiting job goes before it",)

    def _full(self) -> Explanation:
        """Explanation for a job without room, neither on free GPUs nor by preemption."""
        domain = self.domain
        before, later, never = self._holders()
        leaving = [held for _, held in domain.guests.values()]
        blocker = -1
        if not domain.traits.is_preemptive:
            because = f"{_count(len(domain.running))} there, and {domain.rules.order.name} preempts no job"
        else:
            staying = {*before.values(), *later, *never}
            leaving += [held for row, held in domain.running.items() if row not in staying]
            because = self._in_use(before)
            blocker = before[max(before)] if before else (later or never or [-1])[0]
        closed = self._closed()
        if closed and (self._has_closed_gpus() or (domain.traits.is_preemptive and not before)):
            first, closed = f"{closed[0]}; ", closed[1:]
        else:
            first = ""
        more = [*self._too_wide(), *self._chosen(), *self._left_alone(later, never), *closed, *self._waiters()]
        takeable = sum(held.demand.gpus for held in leaving)
        if domain.ledger.free_gpus + takeable < self.demand.gpus:
            return self._told(Cause.FEW, blocker, first + because, tuple(more))
        reservation = domain.reservation
        if reservation is not None and reservation.row in domain.jobs and self._has_room_without(leaving):
            return self._told(Cause.HELD, reservation.row, self._held(reservation), (first + because, *more))
        where = self._scattered(takeable)
        return self._told(Cause.SCATTERED, blocker, first + where, (because, *more))

    def _too_wide(self) -> Iterator[str]:
        """Where jobs stay within a rack: that none can hold this one, whatever ends."""
        placement, ledger = self.domain.rules.placement, self.domain.ledger
        if isinstance(placement, Yarn):
            most = placement.most_gpus(ledger, self.demand)
            if most < self.demand.gpus:
                could = f"the largest has {gpus_of(most)} that will do" if most else "none has GPUs that will do"
                yield f"no rack in service can hold it: {placement.name} keeps a job within one, and {could}"

    def _chosen(self) -> Iterator[str]:
        """What a job that chooses its nodes may have, where these are not all."""
        if not self.demand.choice:
            return
        ledger = self.domain.ledger
        there = [at for at in bits(ledger.sets.chosen(self.demand.choice)) if ledger.capacity[at]]
        words = self.demand.choice.words
        if not there:
            yield f"no node in service will do ({words})"
            return
        gpus, free = sum(ledger.capacity[at] for at in there), sum(max(0, ledger.free[at]) for at in there)
        on = "node that will do has" if len(there) == 1 else "nodes that will do have"
        yield f"{len(there)} {on} {gpus_of(gpus)}, {free} of them free ({words})"

    def _has_closed_gpus(self) -> bool:
        """Whether free GPUs are on nodes in a maintenance window, which the answer must name first."""
        limit_s = self.domain.jobs[self.row].limit_s
        return bool(closed_gpus(self.domain.book.maintenance_windows, self.domain.ledger.free, self.now_s, limit_s))

    # Tried on the ledger itself, which is put back afterwards.
    def _has_room_without(self, others: list[Held]) -> bool:
        ledger = self.domain.ledger
        for held in others:
            ledger.give(held.demand, held.allocation)
        allocation = self.domain.rules.placement.place(ledger, self.demand)
        for held in others:
            ledger.take(held.demand, held.allocation)
        return allocation is not None

    def _holders(self) -> tuple[dict[Rank, int], list[int], list[int]]:
        """Running jobs that stay: by rank before this job, protected for a while, or never preempted."""
        domain = self.domain
        rows = list(domain.running)
        before: dict[Rank, int] = {}
        later: list[int] = []
        never: list[int] = []
        for row, rank in zip(rows, domain.roster.ranks(rows, self.now_s), strict=True):
            if rank < self.rank:
                before[rank] = row
            elif not domain.jobs[row].preemptible:
                never.append(row)
            elif domain.running[row].until_s > self.now_s:
                later.append(row)
        return before, later, never

    def _in_use(self, before: dict[Rank, int]) -> str:
        if not before:
            return "no running job goes before it"
        gpus = sum(self.domain.running[row].demand.gpus for row in before.values())
        return (
            f"{gpus} are held by {_count(len(before))} that {'go' if len(before) > 1 else 'goes'} before it, "
            f"the last of them {self._before(before[max(before)])}"
        )

    def _left_alone(self, later: list[int], never: list[int]) -> list[str]:
        running = self.domain.running
        found: list[str] = []
        if later:
            until = self.clock(min(running[row].until_s for row in later))
            gpus = sum(running[row].demand.gpus for row in later)
            found.append(f"{gpus} are held by {_count(len(later))} left alone for now, the first until {until}")
        if never:
            gpus = sum(running[row].demand.gpus for row in never)
            found.append(f"{gpus} are held by {_count(len(never))} that may not be preempted")
        return found

    def _scattered(self, takeable: int) -> str:
        ledger = self.domain.ledger
        if self.demand.choice:
            within = bits(ledger.sets.chosen(self.demand.choice))
            there = sum(max(0, ledger.free[at]) for at in within if ledger.capacity[at])
            if there < self.demand.gpus:
                return f"{there} of them on nodes that will do"
        rooms = [max(0, free) for free in ledger.free]
        whole = sum(free == there for free, there in zip(ledger.free, ledger.capacity, strict=True) if there)
        what = f"scattered over {sum(map(bool, rooms))} nodes, at most {max(rooms)} on one, {whole} nodes idle"
        if ledger.free_gpus < self.demand.gpus:
            return f"{takeable} more could be taken, but not where it could use them"
        return what


def need(domain: Domain, demand: Demand) -> str:
    """Demand of a job in words: ``16 GPUs on 2 nodes``."""
    gpus = gpus_of(demand)
    if demand.swap_bytes_per_gpu:
        gpus += f" with {format_bytes(int(demand.swap_bytes_per_gpu))} of Farside swap each"
    if demand.runs_as:
        gpus += f" that {demand.runs_as} may use"
    if demand.choice:
        gpus += f" {demand.choice.words}"
    size = max(domain.ledger.capacity, default=0)
    if domain.ledger.is_pooled or not demand.is_consolidated or demand.gpus == 1 or not size:
        return gpus
    nodes = -(-demand.gpus // size)
    return f"{gpus} on {nodes} nodes" if nodes > 1 else f"{gpus} on one node"


def gpus_of(what: Job | Demand | int) -> str:
    """``1 GPU``, ``16 GPUs``."""
    count = what if isinstance(what, int) else what.gpus
    return f"{count} GPU{'s' if count != 1 else ''}"


def _count(jobs: int) -> str:
    return "one running job" if jobs == 1 else f"{jobs} running jobs"


# By the case of an estimate (rolling_estimate.CASES), whose jobs it comes from.
_OF = {
    "new user": "of all users",
    "no similar name": "of this user",
    "similar name": "of this user with a similar name",
}


def expectation_lines(known: Expectation | None, limit_s: float) -> tuple[str, ...]:
    """What a job is expected to take, in words. ``known``: None, if nothing was known of it when it came."""
    if known is None and limit_s < math.inf:
        return (f"how long it runs is not known, as no job had ended when it came; its time limit of "
                f"{format_seconds(limit_s)} counts",)  # fmt: skip
    if known is None:
        return ("how long it runs is not known, as no job had ended when it came; its number of GPUs counts",)
    return (_expectation_words(known), *not_believed(known.source))


def _expectation_words(known: Expectation) -> str:
    jobs = f"{format_count(known.from_jobs, 'job')} {_OF[known.case]}"
    error = "" if math.isnan(known.error) else f"; half of such estimates were {format_off(known.error)}"
    return f"is expected to run {format_seconds(known.run_s)} in all (the median), from {jobs}{error}"


def not_believed(source: str) -> tuple[str, ...]:
    """Why something else than estimates orders jobs, in words; none where they do. ``source``: the estimator."""
    if source == "gpus":
        return ("estimates order jobs no better than their number of GPUs lately, so that is what counts",)
    if source == "nobody":
        return ("neither estimates nor numbers of GPUs order jobs well lately, so jobs go in the order of arrival",)
    return ()
