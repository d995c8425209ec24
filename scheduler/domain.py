"""One scheduling domain: the jobs that compete for the same nodes, and what is known and decided of them.

A domain is what the cycle (cycle.py) works on. It has no clock and does no I/O; who owns it, the simulator or the live
manager, tells it what happened and carries out what the cycle says.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from farside.scheduler.closure import Closure, closed_gpus
from farside.scheduler.cost import CostModel, FreeCost
from farside.scheduler.effect import NoEffect, PlacementEffect, spread_of
from farside.scheduler.fair_share import FairShare
from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.tenant import TenantOrder
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.sample import Sample
from farside.scheduler.running import EDGE_S, RunningOrder
from farside.scheduler.state import Allocation, Demand, Job, Node, Reservation
from farside.scheduler.table import Floats, JobColumns, JobTable
from farside.scheduler.tally import Tally
from farside.scheduler.tenancy import Cap, Standing, Tenancy
from farside.scheduler.waiting import Rank, Waiting

# Places in a queue's list. Who runs stands in front of who waits, newcomers at the tail; see `Domain.settle`.
RUNNING_FROM = 0.0
WAITING_FROM = 1e12
NOBODY = Standing()
NOTHING_BUT_GPUS = Demand(gpus=0)
# Who was started for a reservation is left alone as long as it waited: less would be no time to get anywhere in.
SHORTEST_RESERVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By what a domain is scheduled.

    Attributes:
        order: Who goes first.
        placement: Where.
        cost: What a preemption costs.
        effect: How a place slows a job down.
        min_run_s: A job that was started is left alone this long, from when it makes progress.
        reserve_after_s: A job that has waited this long in one go is reserved for (reservation.py); infinite: none is,
            as in the papers.
        tenancy: Accounts and qualities of service, where there are any: what may be held, and priority and fair share
            before the order.
    """

    order: OrderPolicy
    placement: PlacementPolicy
    cost: CostModel = field(default_factory=FreeCost)
    effect: PlacementEffect = field(default_factory=NoEffect)
    min_run_s: float = 0.0
    reserve_after_s: float = math.inf
    tenancy: Tenancy | None = None


def reserve_after(told_s: float) -> float:
    """`Rules.reserve_after_s` as people set it, where 0 is never.

    Raises:
        ValueError: Below `SHORTEST_RESERVE_S`.
    """
    if 0 < told_s < SHORTEST_RESERVE_S:
        raise ValueError(f"reserve_after_s: must be at least {SHORTEST_RESERVE_S:g} s, or 0 for never")
    return told_s or math.inf


@dataclass(slots=True)
class Held:
    """What a running job holds. Before ``until_s`` nobody may take it away."""

    demand: Demand
    allocation: Allocation
    since_s: float
    until_s: float


class Domain:
    """Waiting and running jobs, and the ledger of their nodes.

    ``is_counting_more``: CPUs or memory may be what a node lacks, here or at a lender. Else jobs that differ in those
    alone are alike, however many sizes of memory a trace has. ``fair_share``: what accounts have used so far, where
    somebody knows; else nothing. ``is_counting_limits``: nodes may be closed, so that time limits decide who has room.
    """

    def __init__(
        self,
        name: str,
        nodes: tuple[Node, ...],
        rules: Rules,
        table: JobTable,
        *,
        is_counting_more: bool = True,
        is_counting_limits: bool = False,
        fair_share: FairShare | None = None,
    ) -> None:
        self.name = name
        self.fair_share = fair_share
        tenancy = rules.tenancy
        if tenancy is not None:
            rules = replace(rules, order=TenantOrder(inner=rules.order))
            if fair_share is None and tenancy.half_life_s:
                self.fair_share = FairShare(tenancy)
        self.rules = rules
        self.table = table
        self.traits = rules.order.traits
        self._standings: dict[int, Standing] = {}  # where there is a tenancy
        self.tally = Tally()
        self._queues: dict[tuple[Cap, ...], int] = {(): 0}  # under a strict policy
        self.ledger = rules.placement.ledger(nodes)
        self.jobs: dict[int, Job] = {}
        self.demands: list[Demand] = []  # by class
        self.groups: dict[int, int] = {}  # the class of each job
        self.waiting = Waiting()
        self.running: dict[int, Held] = {}
        self._by_rank = RunningOrder()  # of those who run, who may be preempted
        self.guests: dict[int, tuple[Domain, Held]] = {}  # other domains' jobs on idle nodes of this one
        self.preempted: set[int] = set()  # rows that will have to resume
        self.ended_gpu_s: list[float] = []  # the services of all its jobs that have ended, for policies that learn
        self.placed: list[Sample] = []  # its jobs that have ended, for placements that learn
        self._is_counting_more = is_counting_more
        self._is_counting_limits = is_counting_limits or rules.reserve_after_s < math.inf  # backfill tells them apart
        self.closures: tuple[Closure, ...] = ()
        self.ended_expected_gpu_s: list[float] = []  # and what was expected of them
        self._group_of: dict[tuple[Demand, float, tuple[Cap, ...], bool], int] = {}
        self.reservation: Reservation | None = None
        self._waiting_since: dict[int, float] = {}
        self._stints: list[tuple[float, int, int]] = []  # (since when, sequence, row) of who waits, and old ones
        self._unranked: set[int] = set()
        self._is_changed = True
        self._due: list[int] = []
        self._crossed: list[int] = []
        self._changes_s: dict[int, float] = {}  # when a running job crosses its next threshold
        self._next_changes: list[tuple[float, int]] = []  # the same, the first first, and old ones
        self._running_position = RUNNING_FROM
        self._tail_position = WAITING_FROM
        self._head_position = WAITING_FROM

    # ------------------------------------------------------------------ what happened

    def submit(
        self, row: int, job: Job, *, remaining_s: float, predicted_gpu_s: float, since_s: float | None = None
    ) -> None:
        """A job came. Its figures are in the table from now on, under this row.

        ``since_s``: since when it waits in one go, where that is not since its submission.
        """
        self.jobs[row] = job
        standing = self._stand(row, job)
        self.groups[row] = self._class_of(job, standing)
        self.table.submit(row, job, remaining_s=remaining_s, predicted_gpu_s=predicted_gpu_s)
        if standing is not NOBODY:
            self.table.priority[row] = standing.priority
        self.to_tail(row)
        self._waits(row, job.submit_s if since_s is None else since_s)

    def _stand(self, row: int, job: Job) -> Standing:
        if self.rules.tenancy is None:
            return NOBODY
        self._standings[row] = self.rules.tenancy.standing(job)
        return self._standings[row]

    def _class_of(self, job: Job, standing: Standing) -> int:
        demand = self.rules.placement.demand(job)
        limit_s = job.limit_s if self._is_counting_limits else math.inf
        key = (demand, limit_s, standing.caps, standing.may_preempt)  # all of it decides who has room
        known = self._group_of.get(key)
        if known is not None:
            return known
        alike = demand
        if not self._is_counting_more:
            alike = replace(demand, cpus_per_gpu=0.0, memory_bytes_per_gpu=0.0)
        group = self._group_of.setdefault((alike, *key[1:]), len(self.demands))
        if group == len(self.demands):
            self.demands.append(alike)
        self._group_of[key] = group
        return group

    def know(self, row: int, job: Job) -> None:
        """More is known of a job than when it came; what it holds it keeps, where it goes next may be another place."""
        self.jobs[row] = job
        self.groups[row] = self._class_of(job, self._standings.get(row, NOBODY))
        if row in self.waiting:
            self._unranked.add(row)
        self._is_changed = True

    def withdraw(self, row: int) -> None:
        """A waiting job will not run after all, or not for now."""
        self.waiting.discard(row)
        self._unranked.discard(row)
        self.preempted.discard(row)
        self._waiting_since.pop(row, None)
        del self.jobs[row], self.groups[row]
        self._standings.pop(row, None)
        self._is_changed = True

    def lose(self, row: int, now_s: float) -> None:
        """A running job has lost its GPUs otherwise than by the cycle, and waits again at the tail of its queue."""
        held = self._leave(row)
        self.ledger.give(held.demand, held.allocation)
        self.stop(row, now_s)
        self.to_tail(row)

    def finish(self, row: int, *, service_gpu_s: float) -> None:
        """A job that ran here ended, having held GPUs for so many GPU seconds in all; what it held is free."""
        home, held = self.guests.pop(row) if row in self.guests else (self, self._leave(row))
        self.ledger.give(held.demand, held.allocation)
        self._is_changed = True
        home._learn_place(row, held.allocation, self.ledger)
        del home.jobs[row], home.groups[row]
        home._standings.pop(row, None)
        home._changes_s.pop(row, None)
        home._learn(service_gpu_s, self.table.predicted_gpu_s.item(row))

    def _learn(self, service_gpu_s: float, expected_gpu_s: float) -> None:
        """What a policy learns makes it another one, and all who wait are ranked again by that."""
        self.ended_gpu_s.append(service_gpu_s)
        self.ended_expected_gpu_s.append(expected_gpu_s)
        order = self.rules.order.learn(self.ended_gpu_s, self.ended_expected_gpu_s)
        if order is not self.rules.order:
            self.rules = replace(self.rules, order=order)
            self.traits = order.traits
            self._by_rank.renew_all()
            self._unranked.update(self.waiting.rows())
            self._is_changed = True

    def _learn_place(self, row: int, allocation: Allocation, ledger: Ledger) -> None:
        """What its last place did to a job may change where those go that come from now on."""
        placement, job = self.rules.placement, self.jobs[row]
        if not placement.is_learning or job.gpus == 1 or not skew_of(job):
            return
        spread, speed = spread_of(job, allocation, ledger), float(self.table.speed[row])
        self.placed.append(Sample(skew=skew_of(job), spread=spread, speed=speed))
        self.rules = replace(self.rules, placement=placement.learn(self.placed))

    def expect(self, row: int, *, predicted_gpu_s: float) -> None:
        """Something else is expected of a waiting job than was before; it is ranked by that."""
        self.table.predicted_gpu_s[row] = predicted_gpu_s
        self._unranked.add(row)
        self._is_changed = True

    def watch(self, rows: list[int], now_s: float) -> list[float]:
        """In how many seconds each of these, which started, stopped or crossed, has to `cross`; infinite: never."""
        order, jobs = self.rules.order, self.figures(rows, now_s)
        after_s = order.next_change_s(jobs)
        if not self._crossed:  # else a cycle will give them another place in the list before anybody asks
            self._by_rank.foresee(order, rows, jobs, now_s + after_s, now_s)
        listed: list[float] = after_s.tolist()
        for row, change_s in zip(rows, listed, strict=True):
            if row in self.running:
                self._foresee(row, now_s + change_s)
        return listed

    def _foresee(self, row: int, at_s: float) -> None:
        self._changes_s[row] = at_s
        if at_s < math.inf:
            heapq.heappush(self._next_changes, (at_s, row))

    def cross(self, row: int, now_s: float) -> None:
        """A job reached what `watch` told. One that runs goes to the tail of the next queue, unless it is there."""
        self._is_changed = True
        if row not in self.running:
            self._due.append(row)
        elif self._changes_s.get(row, now_s) <= now_s + EDGE_S:
            self._fall(row)

    def _fall(self, row: int) -> None:
        self._changes_s.pop(row, None)
        self.to_tail(row)
        self._rank_anew(row)
        self._crossed.append(row)

    def notice(self, now_s: float) -> None:
        """Lets running jobs cross that have come to their thresholds, though nobody has told so yet.

        Who has the clock may tell a little late, a whole second or a rounding error, and a job's keys do not wait for
        it: a cycle in between would see a job in its new queue, and nobody look at those who go before it there.
        """
        early: list[tuple[float, int]] = []
        while self._next_changes and self._next_changes[0][0] <= now_s + EDGE_S:
            at_s, row = heapq.heappop(self._next_changes)
            if row in self.running and self._changes_s.get(row) == at_s:
                early.append((at_s, row))
        if not early:
            return
        after_s = self.rules.order.next_change_s(self.figures([row for _, row in early], now_s)).tolist()
        for (at_s, row), change_s in zip(early, after_s, strict=True):
            if now_s + change_s > at_s + EDGE_S:  # the policy speaks of the one after
                self._is_changed = True
                self._fall(row)
            self._foresee(row, now_s + change_s)

    def resize(self, nodes: tuple[Node, ...]) -> None:
        """Only these nodes, of those that it was made with, are there from now on; who runs elsewhere may end."""
        self.ledger.set_nodes(nodes)
        self._is_changed = True

    def close(self, closures: tuple[Closure, ...]) -> None:
        """From now on these hold, in place of those before. What was reserved for a job is planned anew."""
        self.closures = closures
        self.reservation = None
        self._is_changed = True

    def place(self, row: int, now_s: float) -> Allocation | None:
        """GPUs that are free for a job and on no node that is closed to it; None: there are not enough."""
        demand = self.demands[self.groups[row]]
        if not self.closures:
            return self.rules.placement.place(self.ledger, demand)
        closed = closed_gpus(self.closures, self.ledger.free, now_s, self.jobs[row].limit_s)
        self.ledger.take(NOTHING_BUT_GPUS, closed)
        allocation = self.rules.placement.place(self.ledger, demand)
        self.ledger.give(NOTHING_BUT_GPUS, closed)
        return allocation

    def to_tail(self, row: int) -> None:
        """Puts a job behind all others of its queue's list."""
        self.table.position[row] = self._tail_position
        self._tail_position += 1

    def _waits(self, row: int, now_s: float) -> None:
        self._unranked.add(row)
        if self.fair_share is not None:
            self.table.share_level[row] = self.fair_share.level(self._standings[row].account)
        if self.rules.reserve_after_s < math.inf:
            self._waiting_since[row] = now_s
            heapq.heappush(self._stints, (now_s, self.jobs[row].sequence, row))

    # ------------------------------------------------------------------ what the cycle asks

    def figures(self, rows: list[int], now_s: float) -> JobColumns:
        """Figures of some rows now."""
        return self.table.figures(np.array(rows, dtype=np.intp), now_s)

    def ranks(self, rows: list[int], now_s: float) -> list[Rank]:
        """The policy's keys, then submit time and sequence: smaller goes first."""
        if not rows:
            return []
        return list(zip(*(key.tolist() for key in self._keys(rows, now_s)), strict=True))

    def _keys(self, rows: list[int], now_s: float) -> tuple[Floats, ...]:
        jobs = self.figures(rows, now_s)
        return (*self.rules.order.keys(jobs), jobs.submit_s, jobs.sequence)

    def last_running(self, now_s: float) -> Iterator[tuple[Rank, int]]:
        """The running jobs that may be preempted and their ranks, the last first; read no further than needed."""
        for rank, row in self._by_rank.last_first(self.rules.order, lambda rows: self.figures(rows, now_s), now_s):
            if now_s >= self.running[row].until_s:
                yield rank, row

    def touch(self) -> None:
        """Something else happened that may let jobs start which could not."""
        self._is_changed = True

    def take_heads(self, now_s: float) -> list[tuple[Rank, int, int]]:
        """The first of each class that may have room now, with its rank and class, in no order.

        Ranks what came or changed since the last cycle. When jobs have only come since, the other classes are as they
        were, and had no room: where a policy says that running jobs never fall back by themselves, they are left out.
        """
        rows = list(self._unranked)
        self._unranked.clear()
        groups = [self._queue_of(row) for row in rows]
        self.waiting.add_all(zip(rows, groups, self.ranks(rows, now_s), strict=True))
        is_changed, self._is_changed = self._is_changed, False
        if is_changed or self.traits.is_strict or not self.traits.is_steady:
            return self.waiting.heads()
        came = set(rows)
        return [head for head in self.waiting.heads(set(groups)) if head[1] in came]

    def _queue_of(self, row: int) -> int:
        """Where it waits: with its class. Where the first that has no room blocks all, there is but one queue.

        And one for each set of caps: those who may not have more block nobody else.
        """
        if not self.traits.is_strict:
            return self.groups[row]
        return self._queues.setdefault(self.standing(row).caps, len(self._queues))

    def standing(self, row: int) -> Standing:
        """What its account and QOS make of a job."""
        return self._standings.get(row, NOBODY)

    def why_capped(self, row: int) -> str:
        """Why its account or user may not have what a waiting job asks for beside what they hold; empty: they may."""
        if self.rules.tenancy is None:
            return ""
        return self.tally.why_not(self.standing(row), self.jobs[row].gpus)

    def may_displace(self, row: int, other: int) -> bool:
        """Whether a job that goes before all may take a running one's GPUs, once nothing protects these any more."""
        if not (self.traits.is_preemptive and self.jobs[other].preemptible and self.standing(row).may_preempt):
            return False
        return not self.traits.is_sparing_equals or self.standing(other).priority < self.standing(row).priority

    def queue_head(self, row: int) -> int:
        """The first of those among whom a waiting job stands in line."""
        first = self.waiting.first(self._queue_of(row))
        assert first is not None
        return first[1]

    def compare_accounts(self, now_s: float) -> None:
        """Ranks those who wait anew whose account stands otherwise than before, if it is time to look."""
        share = self.fair_share
        if share is None:
            return
        share.advance(now_s)
        if now_s < share.due_s:
            return
        changed = share.compare(dict.fromkeys(one.account for one in self._standings.values()), now_s)
        rows = {*self.waiting.rows(), *self._unranked} if changed else ()
        for row in rows:
            account = self._standings[row].account
            if account in changed:
                self.table.share_level[row] = share.level(account)
                self._unranked.add(row)
                self._is_changed = True

    def keep_accounts(self) -> None:
        """What is held after a cycle is held until the next."""
        if self.fair_share is not None:
            self.fair_share.hold(self.tally.gpus_of)

    def longest_waiting(self, now_s: float) -> int:
        """The job that has waited longest in one go, if that is too long; -1: none has.

        One that its account or user may not have now does not count: what is held for it would stand idle.
        """
        capped: list[tuple[float, int, int]] = []
        found = -1
        while self._stints and found < 0:
            since_s, _, row = self._stints[0]
            if now_s - since_s < self.rules.reserve_after_s:
                break
            if row not in self.waiting or self._waiting_since.get(row) != since_s:
                heapq.heappop(self._stints)
            elif self.why_capped(row):
                capped.append(heapq.heappop(self._stints))
            else:
                found = row
        for stint in capped:
            heapq.heappush(self._stints, stint)
        return found

    def take_due(self) -> list[int]:
        """Waiting jobs that may have starved since the last cycle."""
        due, self._due = self._due, []
        return [row for row in due if row in self.waiting]

    # ------------------------------------------------------------------ what the cycle does

    def book(self, row: int, allocation: Allocation, now_s: float) -> None:
        """Books a waiting job's GPUs."""
        demand = self.demands[self.groups[row]]
        self.ledger.take(demand, allocation)
        self.running[row] = Held(demand, allocation, now_s, now_s + self.rules.min_run_s)
        if row in self._standings:
            self.tally.take(self._standings[row], demand.gpus)
        self.waiting.discard(row)

    def keep(self, row: int, since_s: float) -> None:
        """A job that was displaced and then given the very same GPUs again never stopped."""
        self.running[row].since_s = since_s
        self._rank_anew(row)

    def _rank_anew(self, row: int) -> None:
        if self.jobs[row].preemptible:
            self._by_rank.renew(row)

    def displace(self, row: int, rank: Rank) -> None:
        """A job that runs is to wait again, at this rank until its figures are known; the ledger knows already."""
        self._leave(row)
        self.waiting.add(row, self._queue_of(row), rank)

    def _leave(self, row: int) -> Held:
        self._by_rank.discard(row)
        if row in self._standings:
            self.tally.give(self._standings[row], self.running[row].demand.gpus)
        return self.running.pop(row)

    def lodge(self, row: int, host: "Domain", allocation: Allocation, now_s: float) -> None:
        """Books idle GPUs of another domain for a waiting job; their owner may take them back at any time."""
        demand = self.demands[self.groups[row]]
        host.ledger.take(demand, allocation)
        host.guests[row] = self, Held(demand, allocation, now_s, now_s)
        self.waiting.discard(row)

    def start(self, row: int, allocation: Allocation, ledger: Ledger, now_s: float) -> float:
        """A job begins to run on what a ledger has booked; returns how long it is held up before it makes progress."""
        job = self.jobs[row]
        delay_s = self.rules.cost.preemption_s(job) if row in self.preempted else 0.0
        self.preempted.discard(row)
        self._unranked.discard(row)
        self._waiting_since.pop(row, None)
        if row in self.running:
            self._rank_anew(row)
            held = self.running[row]
            if held.until_s > now_s:  # else it would be taken away again before it got anywhere, and again, for ever
                held.until_s += delay_s
        speed = self.rules.effect.speed(job, allocation, ledger)
        self.table.start(row, now_s=now_s, delay_s=delay_s, speed=speed)
        return delay_s

    def stop(self, row: int, now_s: float) -> None:
        """A job loses its GPUs. Its rank is as it was until the next cycle."""
        self.table.stop(row, now_s=now_s)
        self.preempted.add(row)
        self._changes_s.pop(row, None)
        self._waits(row, now_s)
        self._is_changed = True

    def promote(self, row: int, now_s: float) -> None:
        """A waiting job goes back to the first queue, at its tail, its figures at zero."""
        self.table.promote(row, now_s=now_s)
        self.to_tail(row)
        self._unranked.add(row)

    def settle(self, started: list[tuple[Rank, int]], preempted: list[tuple[Rank, int]], now_s: float) -> None:
        """Restores the order of the lists: who runs in front of who waits.

        Those who began to run, or came to another queue and run on, stand behind the others that run, in the order of
        their ranks; those who were preempted stand in front of all who wait, unless they had just come to the tail.
        """
        at_tail, self._crossed = self._crossed, []
        crossed = [row for row in at_tail if row in self.running]
        if not self.traits.is_keyed_by_position:
            return
        position = self.table.position
        moved = {row: rank for rank, row in started if row in self.running}
        moved.update(zip(crossed, self.ranks(crossed, now_s), strict=True))
        for row in sorted(moved, key=lambda row: moved[row]):
            position[row] = self._running_position
            self._running_position += 1
            self._rank_anew(row)
        for _, row in sorted(preempted, reverse=True):
            if row not in self.running and row not in at_tail:
                self._head_position -= 1
                position[row] = self._head_position
