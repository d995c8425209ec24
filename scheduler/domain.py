"""Scheduling domain: the jobs that compete for the same nodes, and their state. PURE.

A domain is what the cycle (cycle.py) works on. It has no clock and does no I/O; its owner, the simulator, the live
manager or the engine over Slurm, tells it what happened and carries out what the cycle says.

How it works
  A domain has three parts, in the folder admission/: the roster of all its jobs, the queue of those that wait, and the
  book of those that run and what they hold. What concerns one part alone is asked of that part. What moves a job from
  one to another is here, and no other module writes the figures of its jobs.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from farside.scheduler.admission.book import NOTHING_BUT_GPUS as NOTHING_BUT_GPUS
from farside.scheduler.admission.book import Book
from farside.scheduler.admission.book import Held as Held
from farside.scheduler.admission.figures import Figures
from farside.scheduler.admission.history import History
from farside.scheduler.admission.queue import Queue
from farside.scheduler.admission.roster import Roster
from farside.scheduler.admission.rules import Rules as Rules
from farside.scheduler.admission.rules import reserve_after as reserve_after
from farside.scheduler.fair_share import FairShare
from farside.scheduler.ledger import Ledger
from farside.scheduler.lent_memory import LentMemory
from farside.scheduler.maintenance_window import MaintenanceWindow
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.order.policy import EDGE_S, NEAR_S, OrderPolicy, OrderTraits
from farside.scheduler.order.priority_share import TenantOrder
from farside.scheduler.placement.measured_speed import MeasuredStart
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.slowdown_sample import Sample
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.running import EARLY_S
from farside.scheduler.slowdown import spread_of
from farside.scheduler.state import Allocation, Job, Node, Reservation
from farside.scheduler.table import JobTable
from farside.scheduler.waiting import Rank

# Positions in a queue's list: running jobs count up from 0; waiting jobs count from 1e12, up at the tail and down at
# the head. So running jobs are always in front, and floats hold all of these numbers exactly. See `Domain.settle`.
RUNNING_FROM = 0.0
WAITING_FROM = 1e12


class Domain:
    """Scheduling domain: waiting and running jobs, and the ledger of their nodes.

    ``is_counting_more``: CPUs or memory may be what a node lacks, here or at a lender. Otherwise jobs that differ in
    those alone are alike, however many sizes of memory a trace has. ``fair_share``: what accounts have used so far,
    where somebody knows; otherwise nothing. ``is_counting_limits``: nodes may be closed, so that time limits decide
    who has room; they do as well where jobs are reserved for, as backfill tells them apart. ``history``: what was
    learned before this domain was made; it goes on in it. ``quota_use``: it knows of other domains with the same
    accounts; None: there are none. ``lent``: what donors lend in the cluster, booked by all its domains; None: its own
    nodes are all. ``lend_grace_s``: only jobs that leave within this time may be guests here.
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
        history: History | None = None,
        quota_use: QuotaUse | None = None,
        lent: LentMemory | None = None,
        lend_grace_s: float = math.inf,
    ) -> None:
        self.name = name
        self.lend_grace_s = lend_grace_s
        self.history = history or History(rules.order, rules.placement)
        tenancy = rules.tenancy
        if tenancy is not None and fair_share is None and tenancy.half_life_s:
            fair_share = FairShare(tenancy)
        rules = self._as_learned(rules)
        is_counting_limits = is_counting_limits or rules.reserve_after_s < math.inf
        self.roster = Roster(
            rules, table, is_counting_more=is_counting_more, is_counting_limits=is_counting_limits
        )  # fmt: skip
        self.queue = Queue(self.roster, fair_share)
        self.book = Book(self.roster, nodes, quota_use or QuotaUse())
        # What is asked most often, by its own name; the parts never put another in its place.
        self.table = table
        self.jobs, self.demands, self.groups = self.roster.jobs, self.roster.demands, self.roster.groups
        self.waiting = self.queue.waiting
        self.running, self.ledger = self.book.running, self.book.ledger
        if lent is not None:
            self.ledger.lent = lent
        self.guests: dict[int, tuple[Domain, Held]] = {}  # other domains' jobs on idle nodes of this one
        self.reservation: Reservation | None = None
        self.preempted: set[int] = set()  # rows that will have to resume
        self._crossed: list[tuple[float, int]] = []  # when, and the row
        self._running_position = RUNNING_FROM
        self._tail_position = WAITING_FROM
        self._head_position = WAITING_FROM

    @property
    def rules(self) -> Rules:
        """Current rules of the domain; policies that learn replace themselves here."""
        return self.roster.rules

    @property
    def traits(self) -> OrderTraits:
        """Traits of the order policy."""
        return self.roster.traits

    # ------------------------------------------------------------------ what happened

    def submit(
        self, row: int, job: Job, *, remaining_s: float, predicted_gpu_s: float, since_s: float | None = None
    ) -> None:
        """Add a job that was submitted. Its figures are in the table from now on, under this row.

        ``since_s``: since when it waits in one go, where that is not since its submission.
        """
        self.roster.add(row, job, remaining_s=remaining_s, predicted_gpu_s=predicted_gpu_s)
        self._to_tail(row)
        self.queue.enter(row, job.submit_s if since_s is None else since_s)

    def restore(self, row: int, job: Job, figures: Figures, host: "Domain | None" = None) -> None:
        """Add a job that is older than this domain object, waiting or running, with its figures.

        ``host``: the domain whose guest it is; None: it is no guest.
        """
        self.submit(
            row, job, remaining_s=figures.remaining_s, predicted_gpu_s=figures.predicted_gpu_s, since_s=figures.since_s
        )
        if figures.has_to_resume:
            self.preempted.add(row)
        if figures.allocation is not None:
            host = host or self
            if host is self:
                self.admit(row, figures.allocation, figures.since_s)
            else:
                self.lodge(row, host, figures.allocation, figures.since_s)
            self.start(row, figures.allocation, host.ledger, figures.since_s)
            host.leave_alone(row, figures.left_alone_until_s)
        # Last, as a start counts what was waited and when it was first: here both are known already.
        self.table.restore(
            row, executed_s=figures.executed_s, waited_s=figures.waited_s, since_s=figures.since_s,
            first_start_s=figures.first_start_s,
        )  # fmt: skip
        if figures.share_level is not None:
            self.table.share_level[row] = figures.share_level

    def begin(self, row: int, now_s: float, *, delay_s: float) -> None:
        """Note that the processes of a running job start only now: other jobs had to leave its GPUs first."""
        self.table.start(row, now_s=now_s, delay_s=delay_s, speed=float(self.table.speed[row]))
        if row in self.running:  # else it is a guest elsewhere
            self.book.keep(row, now_s)

    def leave_alone(self, row: int, until_s: float) -> bool:
        """Protect a job that runs on this domain's nodes until then; False: it is protected for longer already.

        A guest is protected only while it leaves anyway, for ever: its owner need not wait for any other reason.
        """
        if row not in self.guests:
            return self.book.leave_alone(row, until_s)
        held = self.guests[row][1]
        if until_s < math.inf or held.until_s == math.inf:
            return False
        held.until_s = math.inf
        return True

    def know(self, row: int, job: Job) -> None:
        """Update what is known of a job; the job keeps what it holds, and may go elsewhere next time."""
        self.roster.know(row, job)
        if row in self.waiting:
            self.queue.rank_anew(row)
        self.queue.touch()

    def withdraw(self, row: int) -> None:
        """Remove a waiting job, for good or for now."""
        self.queue.withdraw(row)
        self.preempted.discard(row)
        self.roster.drop(row)

    def lose(self, row: int, now_s: float) -> None:
        """Put a running job that lost its GPUs outside of a cycle back at the tail of its queue."""
        home = self.dismiss(row)[0] if row in self.guests else self
        if home is self:
            self.book.give(row)
        home.stop(row, now_s)
        home._to_tail(row)

    def finish(self, row: int) -> None:
        """Remove a job that ended and free its GPUs; `learn` takes its service."""
        if row in self.guests:
            # The GPUs are this domain's; the figures of the job belong to its home.
            home, held = self.dismiss(row)
        else:
            home, held = self, self.book.give(row)
        self.queue.touch()
        _learn_slowdown(home, row, held.allocation, self.ledger)
        home.book.forget_change(row)
        home.roster.drop(row)

    def dismiss(self, row: int, *, is_given: bool = False) -> tuple["Domain", Held]:
        """Forget a guest; ``is_given``: the ledger has its GPUs back already."""
        home, held = self.guests.pop(row)
        home.book.discharge(row)
        if not is_given:
            self.ledger.give(held.demand, held.allocation)
        return home, held

    def learn(self, service_gpu_s: float, expected_gpu_s: float = math.nan) -> None:
        """Learn from an ended job of this domain, by its total GPU seconds.

        What a policy learns makes it another one, and all are ranked again by that.
        """
        before = self.history.order
        self.history.add(service_gpu_s, expected_gpu_s)
        # A policy that learned nothing returns itself, the same object.
        if self.history.order is not before:
            self.roster.use(self._as_learned(self.rules))
            self.book.rank_all_anew()
            self.queue.rank_all_anew()

    def _as_learned(self, rules: Rules) -> Rules:
        """Rules with the policies as learned from ended jobs, and with tenants' priority before any order."""
        order: OrderPolicy = self.history.order
        if rules.tenancy is not None:
            order = TenantOrder(inner=order)
        return replace(rules, order=order, placement=self.history.placement)

    def expect(self, row: int, *, predicted_gpu_s: float, remaining_s: float) -> bool:
        """Set what is expected of a job now, by which it is ranked: one that waits, or that may be preempted.

        Args:
            row: The job.
            predicted_gpu_s: In all. One that runs is judged by what was expected of it when it was started.
            remaining_s: What it has left; where it runs, what it had left when it was started.

        Returns:
            Whether it is such a job.
        """
        if row in self.waiting:
            self.table.predicted_gpu_s[row] = predicted_gpu_s
            self.queue.rank_anew(row)
        elif row in self.running and self.traits.is_preemptive:
            self.book.rank_anew(row)
        else:
            return False
        self.table.remaining_s[row] = remaining_s
        self.queue.touch()
        return True

    def watch(self, rows: list[int], now_s: float) -> list[float]:
        """Seconds until each of these jobs, which started, stopped or crossed, has to `cross`; infinite: never.

        One that waits and is due already, the next cycle looks at: it has to run, whatever happens.
        """
        jobs = self.roster.figures(rows, now_s)
        after_s = self.rules.order.next_change_s(jobs)
        # Where jobs have crossed, the next cycle moves them in the list before it reads any rank: ranks of now would be
        # wrong.
        if not self._crossed:
            self.book.foresee_ranks(rows, jobs, now_s + after_s, now_s)
        listed: list[float] = after_s.tolist()
        for row, change_s in zip(rows, listed, strict=True):
            if row in self.running:
                self.book.foresee(row, now_s + change_s)
            elif now_s + change_s <= now_s + EDGE_S and self.queue.has(row):
                self.queue.touch()
                self.queue.note_due(row)
        return listed

    def cross(self, row: int, now_s: float, reached_s: float | None = None) -> None:
        """Handle a job that reached the time of `watch`. If it runs, it goes to the tail of the next queue.

        ``reached_s``: when that was, where this domain was not told of it by `watch`; None: it was, or it is now.
        """
        self.queue.touch()
        if row not in self.running:
            self.queue.note_due(row)
        # Not if `notice` has let it fall already: its next threshold is later.
        elif (at_s := self.book.reached_s(row, now_s)) < math.inf:
            self._fall(row, at_s if reached_s is None else reached_s)

    def _fall(self, row: int, at_s: float) -> None:
        self.book.forget_change(row)
        self._to_tail(row)
        self.book.rank_anew(row)
        self._crossed.append((at_s, row))

    def notice(self, now_s: float) -> None:
        """Let running jobs cross thresholds that they have reached, before the owner of the clock calls `cross`.

        The owner of the clock may be late by a second or a rounding error, while the keys of a job change at once. A
        cycle in between would see the job in its new queue, and would not look at the jobs that go before it there.
        """
        early = self.book.take_crossing(now_s)
        if early:
            jobs = self.roster.figures([row for _, row in early], now_s)
            after_s = self.rules.order.next_change_s(jobs).tolist()
            for (at_s, row), change_s in zip(early, after_s, strict=True):
                if now_s + change_s > at_s + EARLY_S:  # the policy speaks of the one after
                    self.queue.touch()
                    self._fall(row, at_s)
                self.book.foresee(row, now_s + change_s)
        if len(self._crossed) > 1:
            _order_crossed(self)

    def resize(self, nodes: tuple[Node, ...]) -> None:
        """Set which of its nodes the domain has from now on; jobs that run on other nodes may end there."""
        self.ledger.set_nodes(nodes)
        self.queue.touch()

    def close(self, windows: tuple[MaintenanceWindow, ...]) -> None:
        """Set the maintenance windows; a reservation is planned again."""
        self.book.maintenance_windows = windows
        self.reservation = None
        self.queue.touch()

    def touch(self) -> None:
        """Note that something else happened that may let blocked jobs start."""
        self.queue.touch()

    # ------------------------------------------------------------------ what the cycle does

    def admit(self, row: int, allocation: Allocation, now_s: float) -> None:
        """Book a waiting job's GPUs."""
        self.book.take(row, allocation, now_s)
        self.waiting.discard(row)

    def displace(self, row: int, rank: Rank) -> None:
        """Mark a running job as waiting, at this rank until its figures are known; the ledger is updated already."""
        self.book.drop(row)
        self.queue.put_back(row, rank)

    def lodge(self, row: int, host: "Domain", allocation: Allocation, now_s: float) -> None:
        """Book idle GPUs of another domain for a waiting job; the owner may take them back at any time."""
        demand = self.roster.demand(row)
        host.ledger.take(demand, allocation)
        host.guests[row] = self, Held(demand, allocation, now_s, now_s)
        self.book.charge(row)
        self.waiting.discard(row)
        if self.reservation is not None and self.reservation.row == row:
            self.reservation = None
            self.queue.touch()

    def start(self, row: int, allocation: Allocation, ledger: Ledger, now_s: float) -> float:
        """Start a job on booked GPUs; returns the delay before it makes progress."""
        job = self.jobs[row]
        delay_s = self.rules.preemption_cost.preemption_s(job) if row in self.preempted else 0.0
        self.preempted.discard(row)
        self.queue.leave(row)
        if row in self.running:
            self.book.rank_anew(row)
            self.book.hold_up(row, now_s, delay_s)
        speed = self.rules.slowdown.speed(job, allocation, ledger)
        self.table.start(row, now_s=now_s, delay_s=delay_s, speed=speed)
        return delay_s

    def stop(self, row: int, now_s: float) -> None:
        """Stop a job that lost its GPUs. Its rank stays until the next cycle."""
        self.table.stop(row, now_s=now_s)
        self.preempted.add(row)
        self.book.forget_change(row)
        self.queue.enter(row, now_s)
        self.queue.touch()

    def promote(self, row: int, now_s: float) -> None:
        """Move a waiting job to the tail of the first queue, its figures at zero."""
        self.table.promote(row, now_s=now_s)
        self._to_tail(row)
        self.queue.rank_anew(row)

    def _to_tail(self, row: int) -> None:
        """Put a job at the tail of its queue's list."""
        self.table.position[row] = self._tail_position
        self._tail_position += 1

    def settle(self, started: list[tuple[Rank, int]], preempted: list[tuple[Rank, int]], now_s: float) -> None:
        """Restore the order of the lists: running jobs before waiting jobs.

        Jobs that began to run, or that run on in another queue, go behind the other running jobs in the order of their
        ranks. Preempted jobs go in front of all waiting jobs, unless they had just come to the tail.
        """
        at_tail, self._crossed = dict.fromkeys(row for _, row in self._crossed), []
        crossed = [row for row in at_tail if row in self.running]
        if not self.traits.is_keyed_by_position:
            return
        position = self.table.position
        moved = {row: rank for rank, row in started if row in self.running}
        moved.update(zip(crossed, self.roster.ranks(crossed, now_s), strict=True))
        for row in sorted(moved, key=lambda row: moved[row]):
            position[row] = self._running_position
            self._running_position += 1
            self.book.rank_anew(row)
        # The last first, as each goes in front of the one before.
        for _, row in sorted(preempted, reverse=True):
            if row not in self.running and row not in at_tail:
                self._head_position -= 1
                position[row] = self._head_position


def _order_crossed(domain: Domain) -> None:
    """Put jobs that fell together in the order of submission: a rounding error decided which was first."""
    last_s = {row: at_s for at_s, row in domain._crossed if row in domain.running}
    fallen = sorted((at_s, row) for row, at_s in last_s.items())
    together, before_s = 0, -math.inf
    ordered: list[tuple[int, float, int, int]] = []
    for at_s, row in fallen:
        together, before_s = together + (at_s > before_s + NEAR_S), at_s
        job = domain.roster.jobs[row]
        ordered.append((together, job.submit_s, job.sequence, row))
    position = domain.table.position
    places = sorted(position[row] for _, row in fallen)
    for (*_, row), place in zip(sorted(ordered), places, strict=True):
        if position[row] != place:
            position[row] = place
            domain.book.rank_anew(row)


def lenders_to(borrower: Domain, domains: Iterable[Domain]) -> list[Domain]:
    """Those of the domains whose idle nodes may run jobs of another one."""
    return [one for one in domains if one is not borrower and one.lend_grace_s]


def list_anew(domain: Domain) -> None:
    """Put the lists of the queues in the order of how long jobs have waited or run, the longest first.

    A scheduler process that starts has them so: it knows since when jobs wait and run, and not how they were before.
    """
    if not domain.traits.is_keyed_by_position:
        return
    table = domain.table
    domain._crossed.clear()  # they stand where their figures put them
    rows = sorted(domain.jobs, key=lambda row: (table.since_s.item(row), table.sequence.item(row)))
    for row in rows:
        domain._to_tail(row)
    domain.settle([((float(at),), row) for at, row in enumerate(rows)], [], -math.inf)
    domain.queue.rank_all_anew()
    domain.book.rank_all_anew()


def learn_start(domain: Domain, start: MeasuredStart) -> None:
    """Learn from a start of one of the domain's jobs that ended, for the placement of jobs that wait and that come."""
    before = domain.history.placement
    domain.history.add_start(start)
    _place_as_learned(domain, before)


def _learn_slowdown(home: Domain, row: int, allocation: Allocation, ledger: Ledger) -> None:
    """Learn from a job's speed on its last allocation, for the placement of jobs that wait and that come."""
    job, before = home.jobs[row], home.history.placement
    if home.history.is_measured or not before.is_learning or job.gpus == 1 or not skew_of(job):
        return
    spread, speed = spread_of(job, allocation, ledger), float(home.table.speed[row])
    home.history.add_sample(Sample(skew=skew_of(job), spread=spread, speed=speed))
    _place_as_learned(home, before)


def _place_as_learned(domain: Domain, before: PlacementPolicy) -> None:
    if domain.history.placement is before:
        return
    domain.roster.use(domain._as_learned(domain.rules))
    for row, job in list(domain.jobs.items()):
        domain.know(row, job)
