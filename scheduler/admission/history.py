"""What a domain has learned from jobs that ended, and the policies that result from it. PURE.

A domain is made anew whenever its nodes change (live) or at each look at the cluster (over Slurm); what was learned
belongs to its owner, who gives it to the next domain. All of it follows from the jobs that ended, in the order of their
ends: whoever adds the same jobs in the same order has the same policies.
"""

import math

from farside.scheduler.order.policy import KEPT_JOBS, OrderPolicy
from farside.scheduler.placement.measured_speed import MeasuredSpeeds, MeasuredStart
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.slowdown_sample import Sample, SampleWindow


class History:
    """Ended jobs of one domain and of the domains that it replaces.

    Attributes:
        order: The order policy as these jobs have made it.
        placement: The placement policy, likewise.
        is_measured: Speeds are those that starts were measured to have (`add_start`), and a slowdown model's are none.
        ended_gpu_s: The whole service of each job, GPU seconds, in the order of their ends: the newest `KEPT_JOBS` at
            least, and an eighth more at most.
        expected_gpu_s: What was expected of each when it came; NaN where nothing was.
        ended_jobs: How many have ended in all.
        samples: The newest speeds of jobs on their last allocation, or of starts that were measured and compared.
        measured_starts: Starts that told how long their iterations took; ``spread_starts``: those of them that were on
            more machines than they needed.
        learned_at_s: When the placement learned what it goes by; NaN: it goes by its settings.
        learned_from: From how many samples.
    """

    def __init__(self, order: OrderPolicy, placement: PlacementPolicy, *, is_measured: bool = False) -> None:
        self.order = order
        self.placement = placement
        self.is_measured = is_measured
        self.ended_gpu_s: list[float] = []
        self.expected_gpu_s: list[float] = []
        self.ended_jobs = 0
        self.samples = SampleWindow()
        self.measured_starts = self.spread_starts = 0
        self.learned_at_s = math.nan
        self.learned_from = 0
        self._speeds = MeasuredSpeeds()

    def add(self, service_gpu_s: float, expected_gpu_s: float = math.nan) -> None:
        """Add a job that has ended, by the GPU seconds that it held in all."""
        self.ended_jobs += 1
        for values, value in ((self.ended_gpu_s, service_gpu_s), (self.expected_gpu_s, expected_gpu_s)):
            values.append(value)
            if len(values) > KEPT_JOBS + KEPT_JOBS // 8:  # not one by one: the rest moves each time
                del values[:-KEPT_JOBS]
        self.order = self.order.learn(self.ended_gpu_s, self.expected_gpu_s, seen=self.ended_jobs)

    def add_sample(self, sample: Sample, at_s: float = math.nan) -> None:
        """Add the speed of an ended job on its last allocation."""
        self.samples.add(sample)
        before, self.placement = self.placement, self.placement.learn(self.samples, self.samples.seen)
        # A policy that learned nothing returns itself, the same object.
        if self.placement is not before:
            self.learned_at_s, self.learned_from = at_s, len(self.samples)

    def add_start(self, start: MeasuredStart) -> None:
        """Add a start of a job that has ended, with the iteration time that was measured."""
        self.measured_starts += 1
        self.spread_starts += start.is_spread
        for sample in self._speeds.add(start):
            self.add_sample(sample, start.at_s)
