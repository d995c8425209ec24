"""What a domain has learned from jobs that ended, and the policies that result from it. PURE.

A domain is made anew whenever its nodes change (live) or at each look at the cluster (over Slurm); what was learned
belongs to its owner, who gives it to the next domain. All of it follows from the jobs that ended, in the order of their
ends: whoever adds the same jobs in the same order has the same policies.
"""

import math

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.slowdown_sample import Sample


class History:
    """Ended jobs of one domain and of the domains that it replaces.

    Attributes:
        order: The order policy as these jobs have made it.
        placement: The placement policy, likewise.
        ended_gpu_s: The whole service of each job, GPU seconds.
        expected_gpu_s: What was expected of each when it came; NaN where nothing was.
        samples: Speed of each job on its last allocation.
    """

    def __init__(self, order: OrderPolicy, placement: PlacementPolicy) -> None:
        self.order = order
        self.placement = placement
        self.ended_gpu_s: list[float] = []
        self.expected_gpu_s: list[float] = []
        self.samples: list[Sample] = []

    def add(self, service_gpu_s: float, expected_gpu_s: float = math.nan) -> None:
        """Add a job that has ended, by the GPU seconds that it held in all."""
        self.ended_gpu_s.append(service_gpu_s)
        self.expected_gpu_s.append(expected_gpu_s)
        self.order = self.order.learn(self.ended_gpu_s, self.expected_gpu_s)

    def add_sample(self, sample: Sample) -> None:
        """Add the speed of an ended job on its last allocation."""
        self.samples.append(sample)
        self.placement = self.placement.learn(self.samples)
