"""Problems in the rows of a file: rows left out, bad rows, and duplicate ids."""

from collections import Counter
from typing import Literal

from farside.errors import ConfigError
from farside.scheduler.sim.trace.format.row import LeftOut, Problem, shown

OnBad = Literal["refuse", "skip"]

TOLD = 20  # lines about bad rows that are kept, and shown


class Intake:
    """Counts the rows of one file that are not simply jobs.

    Args:
        path: For messages.
        id_column: What a message about an id names.
        on_bad: What `close` does about rows that cannot be used: refuse the file, or let them be skipped. None: refuse
            it, and name no option, since what reads the file has none.

    Attributes:
        problems: The first lines about rows that cannot be used.
    """

    def __init__(self, path: str, *, id_column: str, on_bad: OnBad | None) -> None:
        self._path = path
        self._id_column = id_column
        self._on_bad = on_bad
        self._lines: dict[str, int] = {}
        self.problems: list[str] = []
        self._notes: Counter[str] = Counter()
        self.bad = 0

    @property
    def notes(self) -> tuple[tuple[int, str], ...]:
        """What else was said of rows, and of how many."""
        return tuple((count, note) for note, count in self._notes.items())

    def is_new(self, job_id: str, line: int) -> bool:
        """Whether this is the first job of this id; a later one is a bad row, and counted as such."""
        first = self._lines.get(job_id)
        if first is None:
            self._lines[job_id] = line
            return True
        reason = f"{shown(job_id)} is on line {first} already"
        self.add(Problem(line, self._id_column, reason, "keep one of them, or give it an id of its own"))
        return False

    def note(self, text: str) -> None:
        """Something is said of a row."""
        self._notes[text] += 1

    def add(self, item: LeftOut | Problem) -> None:
        """Add a row that does not hold a job."""
        if isinstance(item, LeftOut):
            self.note(item.reason)
            return
        self.bad += 1
        if len(self.problems) < TOLD:
            self.problems.append(item.told(self._path))

    def close(self, jobs: int) -> None:
        """Finish after the last row, with the number of jobs read.

        Raises:
            ConfigError: Rows cannot be used, and that is not to be passed over; or there is no job.
        """
        if self.bad and self._on_bad != "skip":
            raise self._refusal()
        if not jobs:
            told = self.problems[:1] or [f"{count} {note}" for count, note in self.notes]
            why = f" ({'; '.join(told)})" if told else ""
            raise ConfigError(f"{self._path}: holds no job{why}", hint="name a file with at least one")

    def _refusal(self) -> ConfigError:
        has_choice = self._on_bad is not None
        if self.bad == 1:
            return ConfigError(self.problems[0] + (", or leave it out with --on-bad skip" if has_choice else ""))
        left = self.bad - len(self.problems)
        several = [*self.problems, *([f"{self._path}: and {left} more"] if left > 0 else [])]
        rows = f"{self._path}: {self.bad} rows cannot be used"
        return ConfigError(
            "\n".join([*several, rows]),
            hint="fix them" + (", or leave them out with --on-bad skip" if has_choice else ""),
        )
