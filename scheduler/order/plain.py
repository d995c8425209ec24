"""What most order policies share: nothing changes by itself, nobody is promoted. PURE."""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """Base of policies whose keys know no thresholds."""

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Never."""
        return np.full(len(jobs.gpus), np.inf)

    def promotes(self, jobs: JobColumns) -> Floats:
        """Nobody."""
        return np.zeros(len(jobs.gpus))
