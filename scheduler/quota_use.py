"""Quota use: GPUs and jobs that the running jobs of a domain hold, by account and by cap. PURE.

Where several domains have the same accounts, as the manager's partitions have, a quota counts what is held in all.
"""

from collections import Counter

from farside.scheduler.tenancy import Cap, PriorityClass


class QuotaUse:
    """GPUs and jobs in use now, by account and by cap.

    ``together``: the use of all domains whose accounts are the same, to which this one is added; None: there is no
    other.
    """

    def __init__(self, together: list["QuotaUse"] | None = None) -> None:
        self._caps: dict[Cap, tuple[int, int]] = {}  # GPUs, jobs
        self.gpus_of: dict[str, int] = {}  # by account, those that hold any
        self._together = [] if together is None else together
        self._together.append(self)

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
            held = [use._caps.get(cap, (0, 0)) for use in self._together]
            held_gpus, held_jobs = map(sum, zip(*held, strict=True))
            why = cap.why_not(gpus=gpus, held_gpus=held_gpus, held_jobs=held_jobs)
            if why:
                return why
        return ""

    def gpus_together(self) -> dict[str, int]:
        """By account the GPUs in use in all these domains."""
        if len(self._together) == 1:
            return self.gpus_of
        found = Counter[str]()
        for use in self._together:
            found.update(use.gpus_of)
        return dict(found)
