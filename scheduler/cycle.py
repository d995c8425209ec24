"""One scheduling cycle over one domain: observe, order, reserve, admit, lend, act. PURE.

The simulator, the live manager and the engine over Slurm call `run_cycle` after something happened: a job came, ended,
crossed a threshold. The steps are numbered there.

A cycle looks at the first job of each class only, so its cost does not grow with the queue. Preemption takes GPUs of
the last running jobs first, and then lets the best of these victims stay. Where only counts of GPUs matter, this gives
the same result as filling an empty cluster in the order of the ranks [tiresias Pseudocode 2], but it never moves a job
that may stay.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farside.scheduler.admission.counting import count_gpus
from farside.scheduler.domain import NOTHING_BUT_GPUS, Domain, Held
from farside.scheduler.reservation import Claim, may_backfill, plan_reservation
from farside.scheduler.state import Action, Allocation, Demand, Preempt, Promote, Start
from farside.scheduler.waiting import Rank
from farside.units import format_count

_Head = tuple[Rank, int, int]  # the first of a class: its rank, its row, the class

# Ranks are tuples and compared key by key: an infinite first key decides against any other rank.
BEFORE_ALL: Rank = (-math.inf,)
BEHIND_ALL: Rank = (math.inf,)


def run_cycle(domain: Domain, now_s: float, lenders: Sequence[Domain] = ()) -> tuple[Action, ...]:
    """Run a cycle: decide for a domain, book the decisions there, and return them in order of execution.

    A job that found no room may be a guest on idle nodes of ``lenders`` where nobody waits; the owner's jobs go before
    guests, whatever the policy.
    """
    # 1. Observe: a running job that crossed a threshold falls; one that starved goes back to the first queue.
    domain.notice(now_s)
    domain.queue.compare_accounts(now_s)
    promoted = _promote(domain, now_s)

    # 2. Order: the first of each class of equal demand, by rank. Under a strict policy all are one class.
    heads = domain.queue.take_heads(now_s)
    heapq.heapify(heads)

    # 3. Reserve: a job that has waited too long goes before all, and what it lacks is held for it.
    plan = _Plan(domain, now_s)
    if plan.serve_longest_waiting():
        heads = domain.waiting.heads()
        heapq.heapify(heads)

    # 4. Admit, the best first.
    if domain.traits.is_counting_first:
        plan.count()
    else:
        _admit(domain, plan, heads)

    # 5. Lend: jobs that still wait may be guests on idle nodes of others.
    plan.borrow(lenders)

    # 6. Act: starts and preemptions, each with its reason; until the next cycle accounts hold what they hold now.
    decided = plan.actions()
    domain.queue.charge_accounts(domain.book.quota_use.gpus_together())
    return (*promoted, *decided)


def _admit(domain: Domain, plan: "_Plan", heads: list[_Head]) -> None:
    """Start jobs in order. When the first job of a class has no room, the rest of the class is skipped.

    Under a strict policy no other job has room then either. A job starts on free GPUs, otherwise on those of running
    jobs that stand behind it (`_Plan.start`).
    """
    full = set[int]()
    while heads:
        rank, row, group = heapq.heappop(heads)
        if domain.waiting.first(group) != (rank, row):
            continue  # started already, or another of its class goes before it now
        if domain.book.why_capped(row):
            full.add(group)  # the rest of its class has the same caps; other classes are not blocked
            continue
        if not plan.start(row, rank, domain.demands[domain.groups[row]]):
            if domain.traits.is_strict or plan.is_over():
                break
            full.add(group)
            continue
        # Victims may leave more free than the winner takes, and wait again themselves: all classes look again, except
        # those in ``full``.
        if plan.take_displaced():
            heads = [head for head in domain.waiting.heads() if head[2] not in full]
            heapq.heapify(heads)
            continue
        following = domain.waiting.first(group)
        if following is not None:
            heapq.heappush(heads, (*following, group))


def _promote(domain: Domain, now_s: float) -> list[Promote]:
    # The queue names jobs that may have starved; the policy decides.
    rows = domain.queue.take_due()
    if not rows:
        return []
    promoted = domain.rules.order.promotes(domain.roster.figures(rows, now_s))
    actions: list[Promote] = []
    for row, is_due in zip(rows, promoted.tolist(), strict=True):
        if is_due:
            actions.append(Promote(row=row, reason="starved: waited too long for what it has run"))
            domain.promote(row, now_s)
    return actions


@dataclass(slots=True)
class _Victim:
    row: int
    rank: Rank
    held: Held
    home: Domain
    winner: int = -1


@dataclass(slots=True)
class _Winner:
    row: int
    rank: Rank
    reason: str
    allocation: Allocation
    host: Domain


class _Plan:
    """Plan of one cycle. The ledger follows at once, the jobs' figures when the plan is complete."""

    def __init__(self, domain: Domain, now_s: float) -> None:
        self._domain = domain
        self._now_s = now_s
        self._unread = domain.book.last_running(now_s)
        self._read: list[_Victim] = []  # taken from `_unread` before, and not displaced since
        self._is_displaced = False
        # True: no running job stands behind the last one that looked, so none stands behind later ones.
        self._is_nobody_behind = False
        self._holds: Allocation = ()  # free GPUs that are booked for the reservation while this cycle plans
        self._winners: dict[int, _Winner] = {}
        self._victims: dict[int, _Victim] = {}

    def start(self, row: int, rank: Rank, demand: Demand) -> bool:
        """Start a job if it has room, or if preemption can make room."""
        domain = self._domain
        # Place: on free GPUs, or on those that are held for a reservation, if the job is gone by then.
        allocation = domain.book.place(row, self._now_s)
        victims: list[_Victim] = []
        if allocation is None and self._holds:
            allocation = self._backfill(row, demand)
        # Preempt: otherwise on those of running jobs that stand behind it, the last first, if that makes room. None is
        # preempted unless another job starts, and one that is not in the way after all keeps running where it is.
        if allocation is None and self._may_make_room(row):
            allocation, victims = self._make_room(row, rank, demand)
        if allocation is None:
            return False
        if victims:
            self._displace(victims, row)
        domain.admit(row, allocation, self._now_s)
        # The victims may leave more free than this job takes, which the reservation may need.
        if victims and domain.reservation is not None:
            self._unhold()
            self._hold()
        reason = f"{format_count(demand.gpus, 'GPU')} free"
        if victims:
            reason = f"goes before {format_count(len(victims), 'running job')}"
        self._winners[row] = _Winner(row, rank, reason, allocation, domain)
        return True

    def _may_make_room(self, row: int) -> bool:
        domain = self._domain
        if self._is_nobody_behind or not (domain.traits.is_preemptive or domain.guests):
            return False
        return bool(domain.guests) or domain.roster.priority_class(row).may_preempt

    def borrow(self, lenders: Sequence[Domain]) -> None:
        """Look for idle GPUs of other domains for the first waiting job of each class."""
        domain = self._domain
        hosts = [lender for lender in lenders if lender.ledger.free_gpus and not len(lender.waiting)]
        heads = domain.waiting.heads() if hosts else []
        heapq.heapify(heads)
        displaced: list[tuple[int, int, Rank]] = []
        while heads:
            rank, row, group = heapq.heappop(heads)
            if domain.book.why_capped(row):
                continue  # the rest of its class has the same caps
            has_moved = self._lodge(row, rank, hosts)
            if not has_moved and domain.traits.is_strict:
                break
            if not has_moved and row in self._victims:
                # What it lost a moment ago says nothing of the others of its class: they are looked at without it.
                domain.waiting.discard(row)
                displaced.append((row, group, rank))
                has_moved = True
            following = domain.waiting.first(group) if has_moved else None
            if following is not None:
                heapq.heappush(heads, (*following, group))
        for row, group, rank in displaced:
            domain.waiting.add(row, group, rank)

    def _lodge(self, row: int, rank: Rank, hosts: Sequence[Domain]) -> bool:
        domain, demand = self._domain, self._domain.demands[self._domain.groups[row]]
        job = domain.jobs[row]
        if row in self._victims or not job.preemptible:
            return False
        for host in hosts:
            if job.grace_s > host.lend_grace_s:
                continue
            allocation = host.book.place_demand(demand, job.limit_s, self._now_s)
            if allocation is not None:
                domain.lodge(row, host, allocation, self._now_s)
                are = "is" if demand.gpus == 1 else "are"
                reason = f"{format_count(demand.gpus, 'GPU')} of {host.name} {are} idle"
                self._winners[row] = _Winner(row, rank, reason, allocation, host)
                return True
        return False

    def serve_longest_waiting(self) -> bool:
        """Start jobs that have waited too long, one by one, and reserve GPUs for the first that cannot start.

        Returns:
            Whether other jobs may start now that could not: some have started, or what was held is held no more.
        """
        domain, now_s = self._domain, self._now_s
        if domain.rules.reserve_after_s == math.inf:
            return False
        has_changed = False
        while True:
            reservation = domain.reservation
            # A reserved job that has left, or that its account may not have now, is passed over: what is held for it
            # would be idle. Others may have that from now on, so when it waits again it is planned for again.
            if reservation is not None and (
                reservation.row not in domain.waiting or domain.book.why_capped(reservation.row)
            ):
                reservation = domain.reservation = None
                has_changed = True
            if reservation is not None:
                row = reservation.row
            else:
                row = domain.queue.longest_waiting(now_s, domain.book.why_capped)
            if row < 0:
                return has_changed
            domain.reservation = None
            rank = BEFORE_ALL
            # Behind the running jobs of its priority and before the waiting ones, whose second keys are 0 and 1
            # (`TenantOrder.keys`).
            if domain.traits.is_sparing_equals:
                rank = (-domain.roster.priority_class(row).priority, 0.5)
            if not self.start(row, rank, domain.demands[domain.groups[row]]):
                break
            # It went before its rank: without this the next cycle would give its GPUs to jobs of a better rank.
            domain.book.leave_alone(row, now_s + max(domain.rules.min_run_s, domain.rules.reserve_after_s))
            has_changed = True
        # A plan of an earlier cycle stays: what it names has been held back since then.
        domain.reservation = reservation or plan_reservation(domain, row, now_s)
        self._hold()
        return has_changed

    def _hold(self) -> None:
        reservation = self._domain.reservation
        if reservation is not None:
            free = self._domain.ledger.free
            self._holds = tuple((at, min(gpus, free[at])) for at, gpus in reservation.allocation if free[at] > 0)
            self._domain.ledger.take(NOTHING_BUT_GPUS, self._holds)

    def _unhold(self) -> None:
        self._domain.ledger.give(NOTHING_BUT_GPUS, self._holds)
        self._holds = ()

    def _backfill(self, row: int, demand: Demand) -> Allocation | None:
        domain = self._domain
        if domain.reservation is None or not may_backfill(domain, domain.reservation, row, self._now_s):
            return None
        self._unhold()
        allocation = domain.book.place(row, self._now_s)
        if allocation is not None:
            # Booked only while the hold is taken again beside it; `Domain.admit` books it for good.
            domain.ledger.take(demand, allocation)
        self._hold()
        if allocation is not None:
            domain.ledger.give(demand, allocation)
        return allocation

    def count(self) -> None:
        """Stop running jobs by a count of GPUs, then place the waiting jobs to which some are counted.

        One of these that finds no place waits on, and what is counted to it stays free.
        """
        domain = self._domain
        count = count_gpus(domain.roster, domain.queue, domain.book, self._now_s)
        for rank, row, winner in count.stopping:
            held = domain.running[row]
            domain.ledger.give(held.demand, held.allocation)
            self._displace([_Victim(row, rank, held, domain)], winner)
        self._is_nobody_behind = True  # nobody makes room for one that finds no place
        for rank, row in count.starting:
            self.start(row, rank, domain.roster.demand(row))

    def is_over(self) -> bool:
        """Whether no further job can start in this cycle."""
        if self._domain.ledger.free_gpus or self._holds:
            return False
        return self._is_nobody_behind or not (self._domain.traits.is_preemptive or self._domain.guests)

    def take_displaced(self) -> bool:
        """Whether a job was preempted since the last call: preempted jobs wait again, and may fit on other nodes."""
        is_displaced, self._is_displaced = self._is_displaced, False
        return is_displaced

    def actions(self) -> list[Action]:
        """Apply the plan to the jobs' figures. A job that lost its GPUs and got the same ones back never stopped."""
        domain, now_s = self._domain, self._now_s
        # A hold is for one cycle: the next one holds what is free by then.
        self._unhold()
        for row in self._victims.keys() & self._winners.keys():
            held = domain.running[row]
            if held.allocation == self._victims[row].held.allocation:
                domain.book.keep(row, self._victims[row].held.since_s)
                del self._victims[row], self._winners[row]
        actions: list[Action] = []
        for victim in self._victims.values():
            victim.home.stop(victim.row, now_s)
            reason = "its GPUs go to a job ahead of it"
            if domain.traits.is_counting_first:
                reason = "all GPUs are counted to jobs ahead of it"
            if victim.home is not domain:
                reason = "its GPUs go back to their owner"
            actions.append(Preempt(row=victim.row, winner=victim.winner, reason=reason))
        for winner in self._winners.values():
            delay_s = domain.start(winner.row, winner.allocation, winner.host.ledger, now_s)
            actions.append(
                Start(
                    row=winner.row, allocation=winner.allocation, reason=winner.reason, host=winner.host.name,
                    delay_s=delay_s,
                )
            )  # fmt: skip
        started = [(winner.rank, winner.row) for winner in self._winners.values()]
        stopped = [(victim.rank, victim.row) for victim in self._victims.values() if victim.home is domain]
        domain.settle(started, stopped, now_s)
        return actions

    def _displace(self, victims: list[_Victim], winner: int) -> None:
        for victim in victims:
            victim.winner = winner
            if victim.home is self._domain:
                self._domain.displace(victim.row, victim.rank)
            else:
                self._domain.dismiss(victim.row, is_given=True)
            self._victims[victim.row] = victim
        self._is_displaced = True
        # Now, and not at each look at them: of thousands that were read in a cycle, most have gone.
        self._read = [victim for victim in self._read if victim.row not in self._victims]

    def _behind(self, row: int) -> Iterator[_Victim]:
        """Jobs that a job may preempt, the first victim first: guests, whoever it is, then running jobs by rank."""
        domain = self._domain
        for guest, (home, held) in reversed(tuple(domain.guests.items())):
            if held.until_s <= self._now_s:  # else it leaves already
                yield _Victim(guest, BEHIND_ALL, held, home)
        if not (domain.traits.is_preemptive and domain.roster.priority_class(row).may_preempt):
            return
        yield from self._read
        for rank, other in self._unread:
            self._read.append(_Victim(other, rank, domain.running[other], domain))
            yield self._read[-1]

    def _make_room(self, row: int, rank: Rank, demand: Demand) -> tuple[Allocation | None, list[_Victim]]:
        ledger, claim = self._domain.ledger, Claim(self._domain, self._holds)
        gpus, given, allocation = ledger.free_gpus, 0, None
        released: list[_Victim] = []
        for candidate in self._behind(row):
            if candidate.rank < rank:
                break
            released.append(candidate)
            gpus += candidate.held.demand.gpus
            # Too few in all: no placement needs to be tried, and the ledger is not touched yet.
            if gpus < demand.gpus:
                continue
            while given < len(released):
                ledger.give(released[given].held.demand, released[given].held.allocation)
                claim.leave(released[given].row)
                given += 1
            # Tried after each victim, so that no more jobs than necessary are displaced.
            allocation = self._place_beside(claim, row)
            if allocation is not None:
                break
        # Jobs come in the order of their ranks: a running job behind a later one is behind this one as well.
        self._is_nobody_behind = not released and self._domain.roster.priority_class(row).may_preempt
        return allocation, self._keep(released[:given], demand, allocation)

    def _place_beside(self, claim: Claim, row: int) -> Allocation | None:
        """Allocation on free GPUs, without those that the reservation claims."""
        ledger, owing = self._domain.ledger, claim.owing()
        ledger.take(NOTHING_BUT_GPUS, owing)
        allocation = self._domain.book.place(row, self._now_s)
        ledger.give(NOTHING_BUT_GPUS, owing)
        return allocation

    def _keep(self, released: list[_Victim], demand: Demand, allocation: Allocation | None) -> list[_Victim]:
        """Give GPUs back to jobs that do not have to stop, the best first; returns the jobs that have to."""
        ledger = self._domain.ledger
        # What the winner has of donors' memory, it takes from all: a victim on other nodes may be in its way as well.
        draws_on_lent = allocation is not None and ledger.draws_on_lent(demand, allocation)
        if allocation is not None:
            ledger.take(demand, allocation)
        wanted = {at for at, _ in allocation or ()}
        victims: list[_Victim] = []
        for victim in reversed(released):
            # Only the nodes that the winner takes are contested. On the others the victim had its GPUs a moment ago,
            # also on a node that has left, where `fits` would say no.
            contested = tuple(part for part in victim.held.allocation if part[0] in wanted)
            is_lent = not draws_on_lent or ledger.is_lent(victim.held.demand, victim.held.allocation)
            if is_lent and ledger.fits(victim.held.demand, contested):
                ledger.take_back(victim.held.demand, victim.held.allocation)
            else:
                victims.append(victim)
        if allocation is not None:
            ledger.give(demand, allocation)
        return victims
