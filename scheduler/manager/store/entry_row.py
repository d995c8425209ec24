"""Conversion between entries of the log and rows of its table."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select

from farside.scheduler.manager.model.codec import check_version, decode_event, encode_event
from farside.scheduler.manager.model.event import VERSION, Entry, Event
from farside.scheduler.manager.store.chain import check_chain
from farside.scheduler.manager.store.table import log

CAUSE_MAX, SUBJECT_MAX = 200, 100  # characters, as wide as the columns

# What is said to the database all the time is put together once: that takes longer than the database's own part.
COLUMNS = select(log.c.seq, log.c.at_s, log.c.generation, log.c.cause, log.c.kind, log.c.body, log.c.version)
# With what checksums go over, and with the entry before, which the first one's goes over too.
READ_ON = (
    select(*COLUMNS.selected_columns, log.c.subject, log.c.chain)
    .where(log.c.seq >= bindparam("after"))
    .order_by(log.c.seq)
    .limit(bindparam("most") + 1)
)


def entry_of(row: Any) -> Entry:
    """The entry of a row of `COLUMNS`.

    Raises:
        RemoteProtocolError: It is damaged, or of a later version.
    """
    seq, at_s, generation, cause, kind, body, version = row
    return Entry(seq=seq, at_s=at_s, generation=generation, cause=cause, event=decode_event(kind, body, version))


def entries_behind(after: float, rows: Sequence[Any]) -> list[Entry]:
    """Entries of rows of `READ_ON` with places greater than ``after``.

    Raises:
        RemoteProtocolError: One is damaged, is not as it was written, or of a later version.
    """
    # Versions first: how a later one chains its rows is not known here.
    for row in rows:
        check_version(row.version)
    check_chain([row._mapping for row in rows])
    return [entry_of(row[:7]) for row in rows if row.seq > after]


def row_of(entry: Entry) -> Mapping[str, object]:
    """The row to insert for an entry."""
    kind, body = encode_event(entry.event)
    return {
        "seq": entry.seq, "at_s": entry.at_s, "generation": entry.generation, "cause": entry.cause, "version": VERSION,
        "kind": kind, "subject": subject_of(entry.event)[:SUBJECT_MAX], "body": body,
    }  # fmt: skip


def subject_of(event: Event) -> str:
    """Subject of an event: a job, a node; empty: the cluster, or a job that has no id yet."""
    return str(getattr(event, "job_id", "") or getattr(event, "node", ""))
