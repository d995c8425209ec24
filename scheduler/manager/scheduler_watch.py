"""Status of this manager's scheduler process, polled every `ASK_PERIOD_S`, so that readers do not wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import FarsideError
from farside.scheduler.manager.decider.scheduler_process import ASK

ASK_PERIOD_S = 5.0
ASK_LIMIT_S = 2.0


class SchedulerWatch:
    """The scheduler process's last answer.

    Attributes:
        latest: Its status; None: it does not answer, or none leads here.
        failed_s: When a cycle failed last, also one of a scheduler process before this one; None: none has.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.latest: Mapping[str, Any] | None = None
        self.failed_s: float | None = None

    @property
    def failures_in_a_row(self) -> int:
        """Cycles that have failed since the last that has not; 0 where no scheduler process answers."""
        return int((self.latest or {}).get("cycle_failures_in_a_row", 0))

    async def ask(self) -> None:
        """Asks once."""
        try:
            told = dict(await admin.ask(self._folder / ASK, "status", timeout_s=ASK_LIMIT_S))
        except FarsideError:
            self.latest = None
            return
        # A new scheduler process has no failure to report; the time of an earlier one's is kept.
        self.latest, self.failed_s = told, told.get("cycle_failed_s") or self.failed_s


async def keep_asking(ask: Callable[[], Awaitable[None]]) -> None:
    """Asks again and again, until it is cancelled."""
    while True:
        await ask()
        await asyncio.sleep(ASK_PERIOD_S)
