"""Rows of the log have checksums that chain: a row that was changed after it was written is noticed [L8]."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from farside.errors import RemoteProtocolError
from farside.scheduler.manager.model.draft import Draft
from farside.scheduler.manager.model.event import CancelRequested, Entry
from farside.scheduler.manager.store import chain
from farside.scheduler.manager.store.archive import Archive
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.load import whole_state
from farside.scheduler.manager.store.migrate import backup, restore, upgrade

ENTRIES = 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    made = EventStore(f"sqlite:///{tmp_path}/manager.db")
    upgrade(made)
    for at in range(ENTRIES):
        made.append([Draft(event=CancelRequested(job_id=str(at), by="ann"), cause="test")], float(at))
    yield made
    made.close()


def change(store: EventStore, statement: str) -> None:
    """As a disk or a mistake does, behind the manager's back."""
    assert store.engine.url.database is not None
    with closing(sqlite3.connect(store.engine.url.database)) as connection, connection:
        assert connection.execute(statement).rowcount


CHANGES = [
    "UPDATE log SET body = replace(body, 'ann', 'bob') WHERE seq = 3",
    "UPDATE log SET at_s = at_s + 0.5 WHERE seq = 3",
    "UPDATE log SET generation = 7 WHERE seq = 6",
    "UPDATE log SET kind = 'HoldRequested' WHERE seq = 2",
    "UPDATE log SET cause = 'user bob' WHERE seq = 4",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_a_changed_row_in_json_that_stays_valid_is_told_and_not_applied(store: EventStore, statement: str) -> None:
    """[L8] A flipped digit passed."""
    whole_state(store)

    change(store, statement)

    with pytest.raises(RemoteProtocolError, match="is not as it was written"):
        whole_state(store)


def test_whoever_reads_on_from_any_place_notices_it(store: EventStore) -> None:
    """[L8]"""
    change(store, CHANGES[0])

    for after in (0, 1, 2):
        with pytest.raises(RemoteProtocolError, match="entry 3 "):
            store.read(after)
    assert [entry.seq for entry in store.read(3)] == [4, 5, 6]


def test_a_row_that_was_taken_out_or_put_in_the_place_of_another_is_noticed(store: EventStore) -> None:
    """[L8]"""
    change(store, "DELETE FROM log WHERE seq = 4")

    with pytest.raises(RemoteProtocolError, match="entry 5 "):
        store.read(0)


def test_rows_of_a_version_before_have_none_and_are_read_and_the_chain_begins_behind_them(store: EventStore) -> None:
    change(store, "UPDATE log SET chain = NULL")
    change(store, "UPDATE lead SET chain = NULL")

    store.append([Draft(event=CancelRequested(job_id=str(at), by="ann"), cause="test") for at in range(3)], 9.0)

    assert [entry.seq for entry in store.read(0)] == list(range(1, ENTRIES + 4))
    change(store, "UPDATE log SET at_s = 8.0 WHERE seq = 8")
    with pytest.raises(RemoteProtocolError, match="entry 8 "):
        store.read(0)


def test_a_backup_has_the_chain_and_goes_on_with_it(store: EventStore, tmp_path: Path) -> None:
    backup(store, tmp_path / "copy")
    other = EventStore(f"sqlite:///{tmp_path}/other.db")

    restore(tmp_path / "copy", other)
    other.append([Draft(event=CancelRequested(job_id="9", by="ann"), cause="test")], 99.0)

    rows = other.rows(0)
    assert all(row["chain"] for row in rows)
    chain.check_chain(rows)
    assert len(other.read(0)) == ENTRIES + 1
    other.close()


def test_the_archive_keeps_it_and_reads_files_that_have_none(store: EventStore, tmp_path: Path) -> None:
    rows = store.rows(0)
    archive = Archive(tmp_path / "archive")
    archive.add(rows[:3], 1, 3)
    archive.add([{name: value for name, value in row.items() if name != "chain"} for row in rows[3:]], 4, 6)

    entries: list[Entry] = list(archive.entries())

    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
    archive_of_first = Archive(tmp_path / "first")
    archive_of_first.add(rows[:3], 1, 3)
    assert archive_of_first.holds(rows[2])
    assert archive.holds(rows[5])  # which a manager of the version before archived
    assert not archive.holds({**rows[5], "body": rows[4]["body"]})
