"""Oracle estimator: knows the true run times, and errs by a given factor. PURE.

What a policy that trusts estimates is worth depends on how good they are; here that is a setting. The error of a job
depends on the seed and the job's id alone: it is the same under every policy, and whatever else is in the trace.
"""

import hashlib
import math
from dataclasses import dataclass, field
from statistics import NormalDist

from farside.scheduler.sim.trace.job import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Oracle: returns the GPU seconds that it expects of a job; always above 0.

    Attributes:
        error_factor: How wrong it is. For 68 of 100 jobs the estimate is between the truth divided by this and the
            truth times this, for 95 of 100 by its square; the factor is log-normal, its median 1. 1: never wrong.
        seed: Another seed, other errors of the same size.
    """

    error_factor: float = field(default=1.0, metadata={"least": 1.0})
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses factors below 1, which have no meaning."""
        if self.error_factor < 1:
            raise ValueError(f"error_factor: must be at least 1, is {self.error_factor:g}")

    def __call__(self, job: TraceJob) -> float:
        """Its true GPU seconds, times its error."""
        return job.duration_s * job.job.gpus * math.pow(self.error_factor, self._deviations(job.job.job_id))

    def _deviations(self, job_id: str) -> float:
        """A draw from the normal distribution that belongs to this job."""
        # A hash and not a generator: the draw does not depend on which jobs were asked about before.
        drawn = hashlib.blake2b(f"{self.seed}:{job_id}".encode(), digest_size=6).digest()
        share = (int.from_bytes(drawn) + 0.5) / 2.0**48  # inside of 0 and 1, and exact
        return NormalDist().inv_cdf(share)
