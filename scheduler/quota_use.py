"""What the running jobs of a domain hold together: by account, and by each cap on them. PURE."""

from farside.scheduler.tenancy import Cap, Standing


class Tally:
    """GPUs and jobs that are held now."""

    def __init__(self) -> None:
        self._caps: dict[Cap, tuple[int, int]] = {}  # GPUs, jobs
        self.gpus_of: dict[str, int] = {}  # by account, those that hold any

    def take(self, standing: Standing, gpus: int) -> None:
        """A job starts."""
        self._move(standing, gpus, 1)

    def give(self, standing: Standing, gpus: int) -> None:
        """A job stops."""
        self._move(standing, -gpus, -1)

    def _move(self, standing: Standing, gpus: int, jobs: int) -> None:
        for cap in standing.caps:
            held_gpus, held_jobs = self._caps.get(cap, (0, 0))
            self._caps[cap] = held_gpus + gpus, held_jobs + jobs
        held = self.gpus_of.get(standing.account, 0) + gpus
        if held:
            self.gpus_of[standing.account] = held
        else:
            self.gpus_of.pop(standing.account, None)

    def why_not(self, standing: Standing, gpus: int) -> str:
        """Why a job may not start beside those that run; empty: it may. The first cap that it would break."""
        for cap in standing.caps:
            held_gpus, held_jobs = self._caps.get(cap, (0, 0))
            why = cap.why_not(gpus=gpus, held_gpus=held_gpus, held_jobs=held_jobs)
            if why:
                return why
        return ""
