"""2D-Gittins order policy: the job most likely to end soon for its service goes first. PURE.

[tiresias §3.3.2.2, §3.3.2.3, Pseudocodes 1 and 2]. Queues, demotion and promotion are those of 2D-LAS. In each queue
but the last the job with the highest Gittins index goes first, equal ones in the order that 2D-LAS has; the last queue
is FIFO. Without limits there is a single queue, ordered by the index alone: 2D-Gittins before it is discretized.

The distribution comes from jobs that have ended: from a ``prior`` that the operator gives, from the domain's own
history, or both. `learn` makes a new policy when the history has grown by a tenth, so that all fits together cost no
more than a few of the last; of the history the newest `KEPT_JOBS` count. As long as there is no distribution this is
2D-LAS, as Pseudocode 1 has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import numpy as np

from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.format_pair import apart
from farside.scheduler.order.las import Las, gpu_time, upper_limits
from farside.scheduler.order.policy import INNER, KEPT_JOBS, Motions
from farside.scheduler.table import Floats, JobColumns

UNKNOWN = Distribution()


@dataclass(frozen=True, slots=True)
class Fit:
    """A distribution of the prior and of ended jobs, and how many had ended by then."""

    distribution: Distribution
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gittins(Las):
    """2D-Gittins over ``len(limits_gpu_s) + 1`` queues; `Las` has the other settings.

    Attributes:
        delta: The service quantum. ``limit``: Delta_i is Q_i's upper limit, as in the paper. ``best``: the supremum
            over all, the index by its definition. ``fixed``: ``delta_gpu_s`` in every queue.
        delta_gpu_s: See there.
        is_learning: Ended jobs of the domain count. Otherwise only ``prior`` does.
        first_fit_jobs: So many jobs must have ended before the first fit.
        refit_share: By how much the history has grown when it is fitted again, of what counts of it.
        prior: Services of jobs before the first.
        fitted: What was learned; None: nothing yet.
    """

    name = "gittins"
    delta: Literal["limit", "best", "fixed"] = "limit"
    delta_gpu_s: float = 3200.0
    is_learning: bool = True
    first_fit_jobs: int = 20
    refit_share: float = 0.1
    prior: Distribution = UNKNOWN
    fitted: Fit | None = field(default=None, repr=False)

    @property
    def is_steady(self) -> bool:
        """An index moves all the time."""
        return not self.is_continuous and not len(self.distribution)

    @property
    def distribution(self) -> Distribution:
        """Current distribution of services."""
        return self.prior if self.fitted is None else self.fitted.distribution

    def learn(self, ended_gpu_s: Sequence[float], expected_gpu_s: Sequence[float] = (), *, seen: int = 0) -> "Gittins":
        """The policy with a new distribution of the prior and these jobs, if there are enough new ones."""
        jobs, known = seen or len(ended_gpu_s), 0 if self.fitted is None else self.fitted.jobs
        grown = known * (1 + self.refit_share) if known <= KEPT_JOBS else known + KEPT_JOBS * self.refit_share
        if not self.is_learning or jobs < max(self.first_fit_jobs, known + 1, grown):
            return self
        samples = chain(self.prior.samples.tolist(), ended_gpu_s[-KEPT_JOBS:])
        return replace(self, fitted=Fit(Distribution(samples), jobs))

    def index(self, attained_gpu_s: Floats, queue: Floats) -> Floats:
        """Gittins index of jobs in these queues, 0 the first, for their attained service; per GPU second."""
        if self.delta == "best":
            return self.distribution.best_index(attained_gpu_s)
        if self.delta == "fixed":
            return self.distribution.index(attained_gpu_s, np.full(len(attained_gpu_s), self.delta_gpu_s))
        return self.distribution.index(attained_gpu_s, upper_limits(self.limits_gpu_s)[queue.astype(int)])

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Queue, then the index unless it is the last, then the place in it."""
        # By the name of the class: dataclass(slots=True) makes a new class, of which super() without arguments does not
        # know.
        queue, *place = Las.keys(self, jobs)
        if not len(self.distribution):
            return queue, *place
        attained = attained_gpu_s(jobs)
        if self.is_continuous:
            # Negative, as the smallest keys go first and the highest index should.
            return (-self.index(attained, np.zeros(len(attained))),)
        early = (queue < len(self.limits_gpu_s)).nonzero()[0]  # on a busy cluster, few of those that run
        if len(early) == len(queue):
            return queue, -self.index(attained, queue), *place
        by_index = np.zeros(len(attained))
        if len(early):
            by_index[early] = -self.index(attained[early], queue[early])
        return queue, by_index, *place

    def motion(self, jobs: JobColumns) -> Motions:
        """Within a queue an index moves any way; the last queue has none."""
        motion = Las.motion(self, jobs)
        if len(self.distribution) and not self.is_continuous:
            motion[self.level(jobs) < len(self.limits_gpu_s)] = INNER
        return motion

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Their queues, their indices, or their places."""
        queue, other_queue = self.level(first), self.level(second)
        is_by_index = self.is_continuous or (queue == other_queue and queue < len(self.limits_gpu_s))
        if not len(self.distribution) or not is_by_index:
            return Las.why(self, first, second)
        attained, other = (attained_gpu_s(jobs) for jobs in (first, second))
        index, other_index = self.index(attained, queue).item(), self.index(other, other_queue).item()
        if index == other_index:
            return Las.why(self, first, second)
        behind, other_behind = apart(attained.item(), other.item(), gpu_time)
        share, other_share = apart(index * 3600, other_index * 3600, "{:.3g}".format, unit="")
        return (
            f"is likelier to end soon: past jobs with as much behind them ({behind} of GPU time) ended at "
            f"{share} a GPU hour, those like the other ({other_behind}) at {other_share}"
        )


def attained_gpu_s(jobs: JobColumns) -> Floats:
    """Attained service to a ten-thousandth, so that jobs that fell at one limit have the same index.

    Their seconds are sums of other fractions, and a rounding error would otherwise decide which of them goes first.
    """
    found: Floats = (jobs.executed_s * jobs.gpus).round(4)
    return found
