"""Compaction of the log: a snapshot of the state, and old entries moved into the archive.

How it works
  All of it happens beside the manager's other parts, in a process of its own that reads the log as they do:

  1. Jobs that were over before the kept time are forgotten, by an entry (`HistoryForgotten`) that everybody follows.
  2. The snapshot of the state at the last entry takes the place of the one before, in one transaction.
  3. Entries that are older than the kept time and stand before the snapshot are written to an archive file, and then
     taken out of the log, some at a time, so that no writer waits long.

  It may be killed anywhere: each step leaves a store that is right, and the next run goes on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from farside.errors import ConfigError, FarsideError
from farside.scheduler.manager.model.event import Entry, HistoryForgotten
from farside.scheduler.manager.model.snapshot import encode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.archive import Archive
from farside.scheduler.manager.store.event_store import EventStore, Extent
from farside.scheduler.manager.store.load import first_state, read_on
from farside.scheduler.manager.store.transaction import Draft

# A start reads no more than about so many entries.
DUE_ENTRIES = 50_000
# Of one archive file, at most: some megabytes.
FILE_ENTRIES = 100_000
# Nothing younger leaves the log: those who follow it may not have read it yet, and look once a second.
YOUNGEST_S = 600.0
DAY_S = 86400.0
CAUSE = "compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Result of a run: the last entry of the snapshot, forgotten jobs, archived entries."""

    snapshot_seq: int
    forgotten: int
    archived: int


def archive_of(store_url: str, archive_dir: Path) -> Archive | None:
    """The folder of old entries: the configured one, or one beside the SQLite file; None: nowhere."""
    if archive_dir.is_absolute():
        return Archive(archive_dir)
    parsed = make_url(store_url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Archive(Path(f"{parsed.database}.archive"))
    return None


def is_due(extent: Extent, now_s: float, keep_s: float) -> bool:
    """Whether there is enough to do: many entries since the snapshot, or a day's more than are kept."""
    is_long = extent.last_seq - extent.snapshot_seq >= DUE_ENTRIES
    return is_long or bool(keep_s and extent.last_seq >= extent.first_seq and
                           now_s - extent.first_at_s > keep_s + DAY_S)  # fmt: skip


def compact(store: EventStore, archive: Archive | None, now_s: float, keep_s: float) -> Compacted:
    """Does it all once.

    Args:
        store: It may be in use.
        archive: Where old entries go; None: they stay.
        now_s: Seconds since the epoch.
        keep_s: What is older is old; 0: nothing is.

    Raises:
        FarsideError: The store or the archive can't be read or written; both are right.
    """
    state = first_state(store)
    read_on(store, state)
    forgotten = _forget(store, state, now_s - keep_s) if keep_s else 0
    # Step 2. Without new entries the snapshot is written already, and it may be large.
    if state.seq > store.extent().snapshot_seq:
        store.keep_snapshot(state.seq, state.at_s, encode_state(state))
    # Step 3 comes after the snapshot, as entries that a start still needs must stay in the log.
    archived = 0
    if keep_s and archive is not None:
        while count := _archive_some(store, archive, now_s - max(keep_s, YOUNGEST_S)):
            archived += count
    return Compacted(snapshot_seq=store.extent().snapshot_seq, forgotten=forgotten, archived=archived)


def _forget(store: EventStore, state: LiveState, before_s: float) -> int:
    known = len(state.jobs)
    if not any(job.is_over and job.end_s < before_s for job in state.jobs.values()):
        return 0
    # At most once a day: each time adds an entry that all followers apply.
    if before_s - state.forgotten_s < DAY_S and state.forgotten_s:
        return 0
    store.append([Draft(event=HistoryForgotten(before_s=before_s), cause=CAUSE)], state.at_s)
    read_on(store, state)
    return known - len(state.jobs)


def _archive_some(store: EventStore, archive: Archive, before_s: float) -> int:
    """One file's worth; how many entries left the log."""
    extent = store.extent()
    # An earlier run that was killed between archive and drop is finished first; its file has these entries already.
    last = _in_both(store, archive, extent)
    if not last:
        every = _rows(store, extent.first_seq - 1)
        old = takewhile(lambda row: row["seq"] <= extent.snapshot_seq and row["at_s"] < before_s, every)
        rows = list(islice(old, FILE_ENTRIES))
        if not rows:
            return 0
        last = rows[-1]["seq"]
        archive.add(rows, rows[0]["seq"], last)
    # One transaction for each page, so that writers get the lock in between.
    while store.drop(last):
        pass
    return last - extent.first_seq + 1


def _in_both(store: EventStore, archive: Archive, extent: Extent) -> int:
    """The last entry that is in the archive, where the log has it too: a run was ended in between. 0: there is none.

    Raises:
        ConfigError: The archive is of another log.
    """
    last = archive.last_seq()
    if last < extent.first_seq:
        return 0
    # One row is compared as a proof that both are from the same log: places alone would also agree with another log.
    rows = store.rows(last - 1, limit=1)
    if not rows or not archive.holds(rows[0]):
        raise ConfigError(
            f"{archive.folder}: is the archive of another log", hint="move it away, or name another folder: archive_dir"
        )
    return min(last, extent.snapshot_seq)


def _rows(store: EventStore, after: int) -> Iterator[Mapping[str, Any]]:
    """All rows of the log after an entry, page by page."""
    while rows := store.rows(after):
        yield from rows
        after = rows[-1]["seq"]


def whole_log(store: EventStore, archive: Archive | None) -> Iterator[Entry]:
    """All entries ever written, those in the archive first.

    Raises:
        FarsideError: Some are in no archive that is known here, or it is damaged, or of another log.
    """
    seen = 0
    if archive is not None:
        _in_both(store, archive, store.extent())
        for entry in archive.entries():
            seen = entry.seq
            yield entry
    first = store.extent().first_seq
    if first > seen + 1:
        where = archive.folder if archive is not None else "the archive"
        raise FarsideError(f"entries {seen + 1} to {first - 1} have left the log, and are not in {where}",
                           hint="name their folder by archive_dir")  # fmt: skip
    # Entries that are in the archive and still in the log are given once.
    yield from (entry for entry in store.read_all() if entry.seq > seen)
