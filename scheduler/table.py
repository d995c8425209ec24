"""Table of job figures, a column each: the input of order policies. PURE.

How it works
  A running job's figures grow by themselves, so a row stores what they were when its phase last changed; `figures`
  gives what they are now. Policies get only that, a frozen `JobColumns`, and answer for all rows at once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.state import Job

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


class JobColumns(NamedTuple):
    """Figures of some jobs at one instant: arrays with one entry for each job.

    Attributes:
        submit_s: When it was submitted.
        sequence: What breaks ties between jobs submitted in one second; unique.
        gpus: W_J, the GPUs it needs.
        is_running: 1.0 while it holds GPUs, otherwise 0.0.
        executed_s: t_J, seconds that it has held GPUs since it was submitted or last promoted.
        waited_s: delta_J, seconds that it has waited since then.
        since_s: Since when it waits or runs, as it does now; a promotion counts as a new wait.
        slice_s: Seconds since it began to make progress, once it was started the last time; negative while it still
            resumes, 0 when it waits.
        first_start_s: When it was started first; infinite before that.
        position: Its place in the list of its queue; smaller stands before greater.
        remaining_s: Run time that is left, at full speed; NaN where it is not known.
        predicted_gpu_s: What an estimator expects of it in all, GPU seconds; NaN where there is none.
        priority: That of its QOS; 0 where it has none.
        share_level: Where its account stood among all when it was last ranked as waiting (fair_share.py).
    """

    submit_s: Floats
    sequence: Floats
    gpus: Floats
    is_running: Floats
    executed_s: Floats
    waited_s: Floats
    since_s: Floats
    slice_s: Floats
    first_start_s: Floats
    position: Floats
    remaining_s: Floats
    predicted_gpu_s: Floats
    priority: Floats
    share_level: Floats


class JobTable:
    """Stored figures. A job keeps its row for its whole life; rows come in any order."""

    # In one block, a row a job: the figures of some jobs are gathered in one go. Each name is a view of a column.
    _COLUMNS = (
        "submit_s", "sequence", "gpus", "is_running", "executed_s", "waited_s", "first_start_s", "position",
        "remaining_s", "predicted_gpu_s", "since_s", "progress_from_s", "speed", "priority", "share_level",
    )  # fmt: skip
    submit_s: Floats
    sequence: Floats
    gpus: Floats
    is_running: Floats
    executed_s: Floats
    waited_s: Floats
    first_start_s: Floats
    position: Floats
    remaining_s: Floats
    predicted_gpu_s: Floats
    since_s: Floats  # when the phase last changed
    progress_from_s: Floats  # when a start's delay ends
    speed: Floats
    priority: Floats
    share_level: Floats

    def __init__(self, capacity: int = 64) -> None:
        self._block = np.zeros((0, len(self._COLUMNS)))
        self._grow(capacity - 1)

    def _grow(self, row: int) -> None:
        old = self._block
        if row < len(old):
            return
        self._block = np.zeros((max(row + 1, 2 * len(old)), len(self._COLUMNS)))
        self._block[: len(old)] = old
        # The views are of the new block: a column that was kept from before a `submit` is an old one.
        for at, name in enumerate(self._COLUMNS):
            setattr(self, name, self._block[:, at])
        for name, value in (("first_start_s", np.inf), ("remaining_s", np.nan), ("predicted_gpu_s", np.nan)):
            getattr(self, name)[len(old) :] = value

    def submit(self, row: int, job: Job, *, remaining_s: float, predicted_gpu_s: float) -> None:
        """Add a job that waits."""
        self._grow(row)
        self.submit_s[row] = self.since_s[row] = job.submit_s
        self.sequence[row] = job.sequence
        self.gpus[row] = job.gpus
        self.remaining_s[row] = remaining_s
        self.predicted_gpu_s[row] = predicted_gpu_s

    def restore(
        self, row: int, *, executed_s: float, waited_s: float, since_s: float, first_start_s: float
    ) -> None:  # fmt: skip
        """Set the past of a job that waits or runs since then; it started then at the latest."""
        self.executed_s[row], self.waited_s[row], self.since_s[row] = executed_s, waited_s, since_s
        self.first_start_s[row] = min(first_start_s, self.first_start_s.item(row))

    def start(self, row: int, *, now_s: float, delay_s: float, speed: float) -> None:
        """Start a job, which makes progress after ``delay_s`` at ``speed`` (1: full speed)."""
        self.waited_s[row] += now_s - self.since_s[row]
        self.since_s[row] = now_s
        self.is_running[row] = 1.0
        self.progress_from_s[row] = now_s + delay_s
        self.speed[row] = speed
        if self.first_start_s[row] == np.inf:
            self.first_start_s[row] = now_s

    def stop(self, row: int, *, now_s: float) -> None:
        """Stop a job that lost its GPUs; its service counts."""
        self.executed_s[row] += now_s - self.since_s[row]
        self.remaining_s[row] -= max(0.0, now_s - self.progress_from_s[row]) * self.speed[row]
        self.since_s[row] = now_s
        self.is_running[row] = 0.0

    def promote(self, row: int, *, now_s: float) -> None:
        """Reset t_J and delta_J of a job to zero. [tiresias §3.3.2.3]"""
        self.executed_s[row] = self.waited_s[row] = 0.0
        self.since_s[row] = now_s

    def figures(self, rows: Rows, now_s: float) -> JobColumns:
        """Current figures of the rows."""
        (
            submit_s, sequence, gpus, running, executed_s, waited_s, first_start_s, position,
            remaining_s, predicted_gpu_s, since_s, progress_from_s, speed, priority, share_level,
        ) = self._block[rows].T  # fmt: skip
        spent_s = now_s - since_s
        held_s = spent_s * running
        slice_s = (now_s - progress_from_s) * running
        progress_s = np.maximum(0.0, slice_s) * speed
        return JobColumns(
            submit_s=submit_s,
            sequence=sequence,
            gpus=gpus,
            is_running=running,
            executed_s=executed_s + held_s,
            waited_s=waited_s + (spent_s - held_s),
            since_s=since_s,
            slice_s=slice_s,
            first_start_s=first_start_s,
            position=position,
            remaining_s=remaining_s - progress_s,
            predicted_gpu_s=predicted_gpu_s,
            priority=priority,
            share_level=share_level,
        )
