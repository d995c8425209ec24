"""Quota use: GPUs and jobs that the running jobs of a domain hold, by account and by cap. PURE."""

from farside.scheduler.tenancy import Cap, PriorityClass


class QuotaUse:
    """GPUs and jobs in use now, by account and by cap."""

    def __init__(self) -> None:
        self._caps: dict[Cap, tuple[int, int]] = {}  # GPUs, jobs
        self.gpus_of: dict[str, int] = {}  # by account, those that hold any

    def take(self, priority_class: PriorityClass, gpus: int) -> None:
        """Add a job that starts."""
        self._move(priority_class, gpus, 1)

    def give(self, priority_class: PriorityClass, gpus: int) -> None:
        """Remove a job that stops."""
        self._move(priority_class, -gpus, -1)

    def _move(self, priority_class: PriorityClass, gpus: int, jobs: int) -> None:
        for cap in priority_class.caps:
            held_gpus, held_jobs = self._caps.get(cap, (0, 0))
            self._caps[cap] = held_gpus + gpus, held_jobs + jobs
        held = self.gpus_of.get(priority_class.account, 0) + gpus
        if held:
            self.gpus_of[priority_class.account] = held
        else:
            self.gpus_of.pop(priority_class.account, None)

    def why_not(self, priority_class: PriorityClass, gpus: int) -> str:
        """First cap that a job would break if it started now, in words; empty: the job may start."""
        for cap in priority_class.caps:
            held_gpus, held_jobs = self._caps.get(cap, (0, 0))
            why = cap.why_not(gpus=gpus, held_gpus=held_gpus, held_jobs=held_jobs)
            if why:
                return why
        return ""
