"""Idempotency keys: a request that is sent again gets the answer of the first one.

A client that means the same request says so by a key of its own (Idempotency-Key), which the log keeps with what was
written, so that a restart forgets none. Two that come here at the same moment wait for each other; of two that come to
two managers the second is refused where the log is written, and nobody else writes (`EventStore.append`).
"""

import asyncio
from collections.abc import Mapping
from typing import Annotated
from weakref import WeakValueDictionary

from fastapi import Header

from farside.http_header import IDEMPOTENCY_KEY
from farside.http_header import TAKES as TAKES_HEADER
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.event import JobSubmitted, NodesReserved
from farside.scheduler.manager.model.state import RequestKey
from farside.scheduler.manager.store.event_store import AskedBefore

TAKES: Mapping[str, str] = {TAKES_HEADER: IDEMPOTENCY_KEY}
"""What every answer says, so that a client knows whether it may ask again."""

Key = Annotated[
    str,
    Header(
        alias=IDEMPOTENCY_KEY, max_length=64, pattern=r"^[!-~]*$",
        description="A request with the key of an earlier one is that one, and gets its answer",
    ),
]  # fmt: skip


class Idempotency:
    """Writes what is asked, once for each key of a caller."""

    def __init__(self, log: LiveLog) -> None:
        self._log = log
        # Weak: a lock goes when the last request that holds or awaits it is over, so keys do not pile up.
        self._locks: WeakValueDictionary[RequestKey, asyncio.Lock] = WeakValueDictionary()

    def seq_of(self, request: RequestKey) -> int | None:
        """The entry of the log that an earlier one made; None: there was none, or it has no key."""
        return self._log.state.requests.get(request) if request.key else None

    async def write(self, event: JobSubmitted | NodesReserved, request: RequestKey, cause: str) -> int:
        """The entry that this event, or that of an earlier request, has become.

        Raises:
            StoreError: It could not be written.
        """
        if not request.key:
            return (await self._log.write([event], cause)).start
        lock = self._locks.setdefault(request, asyncio.Lock())
        async with lock:  # the first may be on its way into the log
            try:
                return (await self._log.write([event], cause)).start
            except AskedBefore:
                known = self.seq_of(request)
                assert known is not None, "the log was read up to it"
                return known
