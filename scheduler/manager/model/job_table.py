"""Jobs by id, in order of submission, with callbacks for each change. PURE."""

from collections.abc import Callable, Iterable

from farside.scheduler.manager.model.record import LiveJob

Follower = Callable[[LiveJob, bool], None]
"""Told of a job as it is now, and whether it is known any longer."""


class JobTable(dict[str, LiveJob]):
    """A dictionary that is changed by ``table[job_id] = job`` and ``del table[job_id]`` alone.

    What an entry of the log touches is not all that looks different after it, so who keeps something of each job is
    told here, where no change can be left out.
    """

    def __init__(self, jobs: Iterable[LiveJob] = ()) -> None:
        super().__init__((job.job_id, job) for job in jobs)
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> None:
        """Calls a follower for each change from now on."""
        self._followers.append(follower)

    def __setitem__(self, job_id: str, job: LiveJob) -> None:
        """Puts a job, or what it has become."""
        super().__setitem__(job_id, job)
        for follower in self._followers:
            follower(job, True)

    def __delitem__(self, job_id: str) -> None:
        """Forgets a job."""
        job = self[job_id]
        super().__delitem__(job_id)
        for follower in self._followers:
            follower(job, False)
