"""Background tasks of the donor: a fault in one is recorded and ends only that task."""

import asyncio
from collections.abc import Coroutine

from farside.log import get_log

_log = get_log("daemon")


class Tasks:
    """Starts work in a task group that outlives it."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def start(self, work: Coroutine[object, object, object], what: str) -> None:
        """Run `work`; `what` names the task in the log if it fails."""
        # A fault that reached the group would cancel all its tasks.
        self._group.create_task(self._record(work, what))

    async def _record(self, work: Coroutine[object, object, object], what: str) -> None:
        try:
            await work
        # A fault in one connection's or one slab's work must not end the donor for all others.
        except Exception as error:
            _log.error("unexpected fault", cause=error, work=what)
