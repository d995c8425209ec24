"""All jobs of one domain by row: demand, priority class, figures and rank of each. PURE.

A row is a job's index in the table of figures. The queue (queue.py) and the book of what is held (book.py) share one
roster: both rank jobs, and both need to know what a job asks for.
"""

import math
from dataclasses import replace

import numpy as np

from farside.scheduler.admission.rules import Rules
from farside.scheduler.order.policy import OrderTraits
from farside.scheduler.state import Demand, Job
from farside.scheduler.table import Floats, JobColumns, JobTable
from farside.scheduler.tenancy import Cap, PriorityClass
from farside.scheduler.waiting import Rank

NOBODY = PriorityClass()


class Roster:
    """Jobs of a domain, waiting or running.

    Args:
        rules: By what the domain is scheduled.
        table: The figures of its jobs, and maybe of other domains' too.
        is_counting_more: CPUs or memory may be what a node lacks, here or at a lender. Otherwise jobs that differ in
            those alone are alike, however many sizes of memory a trace has.
        is_counting_limits: Time limits decide who has room.
    """

    def __init__(self, rules: Rules, table: JobTable, *, is_counting_more: bool, is_counting_limits: bool) -> None:
        self.rules = rules
        self.traits: OrderTraits = rules.order.traits
        self.table = table
        self.jobs: dict[int, Job] = {}
        self.demands: list[Demand] = []  # by class
        self.groups: dict[int, int] = {}  # the class of each job
        self.priority_classes: dict[int, PriorityClass] = {}  # where there is a tenancy
        self._is_counting_more = is_counting_more
        self._is_counting_limits = is_counting_limits
        self._group_of: dict[tuple[Demand, float, tuple[Cap, ...], bool, bool, float], int] = {}

    def add(self, row: int, job: Job, *, remaining_s: float, predicted_gpu_s: float) -> None:
        """Add a job. Its figures are in the table from now on, under this row."""
        self.jobs[row] = job
        priority_class = NOBODY
        if self.rules.tenancy is not None:
            priority_class = self.priority_classes[row] = self.rules.tenancy.priority_class(job)
        self.groups[row] = self._class_of(job, priority_class)
        self.table.submit(row, job, remaining_s=remaining_s, predicted_gpu_s=predicted_gpu_s)
        if priority_class is not NOBODY:
            self.table.priority[row] = priority_class.priority

    def know(self, row: int, job: Job) -> None:
        """Update what is known of a job."""
        self.jobs[row] = job
        self.groups[row] = self._class_of(job, self.priority_class(row))

    def drop(self, row: int) -> None:
        """Remove a job from this domain."""
        del self.jobs[row], self.groups[row]
        self.priority_classes.pop(row, None)

    def _class_of(self, job: Job, priority_class: PriorityClass) -> int:
        demand = self.rules.placement.demand(job)
        limit_s = job.limit_s if self._is_counting_limits else math.inf
        # All of it decides who has room, the last two on lent nodes.
        key = (
            demand, limit_s, priority_class.caps, priority_class.may_preempt, job.preemptible, job.grace_s
        )  # fmt: skip
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

    def use(self, rules: Rules) -> None:
        """Use these rules from now on, for ranks and placement."""
        self.rules = rules
        self.traits = rules.order.traits

    def priority_class(self, row: int) -> PriorityClass:
        """Priority class of a job, by its account and QOS."""
        return self.priority_classes.get(row, NOBODY)

    def demand(self, row: int) -> Demand:
        """Demand of a job for resources."""
        return self.demands[self.groups[row]]

    def figures(self, rows: list[int], now_s: float) -> JobColumns:
        """Current figures of some rows."""
        return self.table.figures(np.array(rows, dtype=np.intp), now_s)

    def ranks(self, rows: list[int], now_s: float) -> list[Rank]:
        """The policy's keys, then submit time and sequence: smaller goes first."""
        if not rows:
            return []
        return list(zip(*(key.tolist() for key in self._keys(rows, now_s)), strict=True))

    def _keys(self, rows: list[int], now_s: float) -> tuple[Floats, ...]:
        jobs = self.figures(rows, now_s)
        return (*self.rules.order.keys(jobs), jobs.submit_s, jobs.sequence)
