"""A writer's transaction: it locks the log, adds entries, and commits all of them or none.

How it works
  Whoever holds the lock of the one row of `lead` knows which entry is the last, so what it adds has its place at once,
  and the writer can hear it before it is durable, as nobody else reads it before the commit. A scheduler process adds
  what it decided, hears it, decides what follows, and so on; one commit does for all of it.

  A writer whose transaction fails has heard what never was. It must forget all and read the log again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from farside.errors import FarsideError
from farside.scheduler.manager.model.codec import is_decided
from farside.scheduler.manager.model.draft import Draft as Draft
from farside.scheduler.manager.model.event import Entry
from farside.scheduler.manager.store.chain import link
from farside.scheduler.manager.store.entry_row import CAUSE_MAX, READ_ON, entries_behind, row_of
from farside.scheduler.manager.store.table import lead, log

# Entries that are read at once: some megabytes.
PAGE = 5000

# PostgreSQL locks the row by FOR UPDATE. SQLite has no such lock, and SQLAlchemy leaves the words out for it: there the
# transaction has begun with the lock of the whole database (`_begin_writing` in event_store.py).
_LOCK = select(lead).with_for_update()
_ADD = insert(log)
_MOVE_ON = update(lead).values(last_seq=bindparam("seq"), last_at_s=bindparam("at_s"), chain=bindparam("last_chain"))


class LeadLost(FarsideError):
    """Another scheduler process has taken the lead: this one must not decide any more."""


def lock(connection: Connection) -> Any:
    """Waits until no other writer has the log, and has it until the transaction ends; the row of `lead`."""
    return connection.execute(_LOCK).one()


class Turn:
    """A transaction that has just begun. `EventStore.turn` makes it, and commits it.

    Attributes:
        unread: The entries behind ``after``, all that there were before this turn.

    Raises:
        LeadLost: Another scheduler process leads than that of ``generation``. 0: it is no scheduler process that
            writes.
    """

    def __init__(self, connection: Connection, generation: int, after: float = math.inf) -> None:
        row = lock(connection)
        # This is the fence: the row is locked, so no other process can take the lead between this check and the commit.
        if generation and generation != row.generation:
            raise LeadLost(f"{row.holder} leads as generation {row.generation}, this process has {generation}")
        self._connection = connection
        self._generation = generation
        self._last_seq, self._last_at_s = int(row.last_seq), float(row.last_at_s)
        self._chain: str | None = row.chain
        self._rows: list[Mapping[str, object]] = []
        self.unread: list[Entry] = []
        # Read under the lock, so nothing can come between these entries and those that this turn adds.
        while after < self._last_seq:
            self.unread += entries_behind(after, connection.execute(READ_ON, {"after": after, "most": PAGE}).all())
            after = self.unread[-1].seq

    def add(self, drafts: Sequence[Draft], now_s: float) -> list[Entry]:
        """The next entries, as all will read them. Their time is never before that of the last entry."""
        assert self._generation or not any(is_decided(draft.event) for draft in drafts), "only a leader decides"
        # Managers on several machines write with their own clocks; readers rely on times that never go back.
        at_s = max(now_s, self._last_at_s)
        entries = [
            Entry(seq=seq, at_s=at_s, generation=self._generation, cause=draft.cause[:CAUSE_MAX], event=draft.event)
            for seq, draft in enumerate(drafts, self._last_seq + 1)
        ]
        for entry in entries:
            fields = row_of(entry)
            self._chain = link(self._chain, fields)
            self._rows.append({**fields, "chain": self._chain})
        if entries:
            self._last_seq, self._last_at_s = entries[-1].seq, at_s
        return entries

    def write(self) -> None:
        """Says what was added to the database, which has it for good once the transaction is committed."""
        # The rows are written at the end, in one statement for all of them; a turn that added nothing writes nothing.
        if self._rows:
            self._connection.execute(_ADD, self._rows)
            self._connection.execute(
                _MOVE_ON, {"seq": self._last_seq, "at_s": self._last_at_s, "last_chain": self._chain}
            )
            self._rows = []
