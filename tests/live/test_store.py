"""The store: order, fencing, crashes, copies; the same behaviours on SQLite and PostgreSQL."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, make_url, text

from farside.errors import ConfigError, FarsideError
from farside.scheduler.manager.model.codec import LaterVersion
from farside.scheduler.manager.model.event import VERSION, CancelRequested, DrainRequested, JobPromoted
from farside.scheduler.manager.store import table
from farside.scheduler.manager.store.event_store import EventStore, StoreError, alive_args
from farside.scheduler.manager.store.migrate import NEWEST, backup, check_readable, migrations, restore, upgrade
from farside.scheduler.manager.store.transaction import Draft, LeadLost
from tests.live.stores import KINDS, a_database, store_url
from tests.support.programs import run

NOBODY = 65534


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventStore]:
    """A database without a table."""
    with store_url(request.param, tmp_path) as url:
        made = EventStore(url)
        yield made
        made.close()


@pytest.fixture
def store(empty: EventStore) -> EventStore:
    upgrade(empty)
    return empty


def told(job_id: str) -> Draft:
    return Draft(event=CancelRequested(job_id=job_id, by="ann"), cause="user ann")


def decided(job_id: str) -> Draft:
    return Draft(event=JobPromoted(job_id=job_id, reason="starved"), cause="cycle")


def test_entries_come_back_in_order_with_what_they_were_given(store: EventStore) -> None:
    generation = store.take_lead("brain", 5.0)
    written = store.append([told("1"), told("2")], 10.0)
    written += store.append([decided("1")], 11.0, generation=generation)

    entries = store.read(1)

    assert entries == written
    assert [(entry.seq, entry.at_s, entry.generation, entry.cause) for entry in entries] == [
        (2, 10.0, 0, "user ann"),
        (3, 10.0, 0, "user ann"),
        (4, 11.0, 1, "cycle"),
    ]
    assert entries[1].event == CancelRequested(job_id="2", by="ann")


def test_a_clock_that_jumps_back_does_not_turn_the_order_of_times(store: EventStore) -> None:
    store.append([told("1")], 100.0)
    store.append([told("2")], 50.0)

    assert [entry.at_s for entry in store.read(0)] == [100.0, 100.0]


def test_a_brain_that_has_lost_the_lead_can_write_nothing(store: EventStore) -> None:
    old = store.take_lead("one", 1.0)
    new = store.take_lead("two", 2.0)

    with pytest.raises(LeadLost, match="two leads as generation 2, this process has 1"):
        store.append([decided("1")], 3.0, generation=old)

    store.append([decided("1")], 3.0, generation=new)
    assert [entry.generation for entry in store.read(2)] == [2]


def test_all_of_a_write_stands_in_the_log_or_nothing(store: EventStore) -> None:
    damaged = Draft(event=CancelRequested(job_id="2", by="ann"), cause=object())  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        store.append([told("1"), damaged], 1.0)

    assert store.read(0) == []


def test_writers_at_once_leave_no_gap_and_no_entry_appears_behind_a_reader(store: EventStore) -> None:
    done = threading.Event()
    seen: list[int] = []

    def write(name: str) -> None:
        for at in range(20):
            store.append([told(f"{name}{at}")], 1.0)

    def follow() -> None:
        while not done.is_set() or len(seen) < 60:
            seen.extend(entry.seq for entry in store.read(seen[-1] if seen else 0))

    reader = threading.Thread(target=follow)
    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()

    assert seen == list(range(1, 61))


def test_the_history_of_a_job_is_its_own(store: EventStore) -> None:
    store.append([told("1"), told("2"), Draft(event=DrainRequested(node="n", reason="", by="x"), cause="x")], 1.0)

    assert [entry.seq for entry in store.history("2")] == [2]
    assert [entry.seq for entry in store.history("n")] == [3]


def test_an_empty_database_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no such table.*farside store upgrade"):
        EventStore(f"sqlite:///{tmp_path}/manager.db").read(0)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite:///relative.db", "sqlite:////no/such/folder/x.db"])
def test_a_wrong_url_is_one_clear_line(url: str) -> None:
    with pytest.raises(ConfigError, match="store_url: ") as caught:
        EventStore(url)

    assert "\n" not in str(caught.value)


def test_a_new_store_has_just_what_the_tables_say(store: EventStore) -> None:
    assert differences(store) == []


@pytest.mark.parametrize("made_by", ["0001", NEWEST])
def test_a_store_of_the_first_or_the_last_migration_gets_what_a_new_one_has(
    empty: EventStore, tmp_path: Path, made_by: str
) -> None:
    migrate(empty, made_by)
    (tmp_path / "new").mkdir()
    new = EventStore(f"sqlite:///{tmp_path}/new/manager.db")

    upgrade(empty)
    upgrade(new)

    assert differences(empty) == []
    assert first_rows(empty) == first_rows(new)
    assert ScriptDirectory.from_config(migrations()).get_current_head() == NEWEST
    assert len(empty.secret()) == len(new.secret()) == 32
    new.close()


def test_tables_without_a_version_are_refused_and_stay(store: EventStore) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))

    with pytest.raises(FarsideError, match=r"store_url: .*already exists"):
        upgrade(store)

    assert store.read(0) == []


def test_a_look_tells_whether_tables_are_there_and_changes_nothing(empty: EventStore) -> None:
    assert not check_readable(empty)
    assert rows(empty) == {}

    migrate(empty, "0001")
    before = rows(empty)

    assert check_readable(empty)
    assert rows(empty) == before
    assert before["alembic_version"] == [("0001",)]


def test_a_store_of_a_later_migration_is_refused_and_stays(store: EventStore) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = rows(store)

    for refusing in (upgrade, check_readable):
        with pytest.raises(ConfigError, match=r"the store is of a later version, 9999; run the newer manager"):
            refusing(store)

    assert rows(store) == before


def test_what_is_there_by_the_name_of_a_table_is_not_taken_for_it(empty: EventStore) -> None:
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE VIEW presence AS SELECT 1 AS beat"))

    with pytest.raises(FarsideError, match=r"store_url: .*already exists"):
        upgrade(empty)

    assert rows(empty) == {}


def test_a_store_is_made_and_opened_again_without_alembic(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from farside.scheduler.manager.store.event_store import EventStore\n"
        "from farside.scheduler.manager.store.migrate import upgrade\n"
        f"for _ in range(2): upgrade(EventStore('sqlite:///{tmp_path}/manager.db'))\n"
        "print('alembic' in sys.modules)"
    )

    assert run([sys.executable, "-c", script]) == "False\n"


def migrate(store: EventStore, revision: str) -> None:
    """Makes the tables as alembic's migrations up to this one do."""
    with store.engine.begin() as connection:
        command.upgrade(migrations(connection), revision)


def differences(store: EventStore) -> list[object]:
    """Where its tables differ from those that are declared."""
    with store.engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), table.metadata))


def rows(store: EventStore) -> dict[str, list[tuple[object, ...]]]:
    """What stands in each table that is there."""
    with store.engine.connect() as connection:
        names = inspect(connection).get_table_names()
        return {name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}"))] for name in names}


def first_rows(store: EventStore) -> dict[str, list[tuple[object, ...]]]:
    """What stands in each table, without the value of the secret, which is another in each store."""
    return {name: [row[: 1 if name == "secret" else None] for row in found] for name, found in rows(store).items()}


def test_a_store_is_upgraded_as_often_as_one_likes(store: EventStore) -> None:
    store.append([told("1")], 1.0)

    upgrade(store)

    assert len(store.read(0)) == 1


def test_a_log_of_a_newer_manager_is_refused_before_anything_starts(store: EventStore) -> None:
    store.append([told("1")], 1.0)
    with store.engine.begin() as connection:
        connection.execute(table.log.update().values(version=VERSION + 1))

    with pytest.raises(LaterVersion, match="run the newer manager") as caught:
        upgrade(store)

    assert caught.value.exit_code == 2


def test_a_log_of_the_version_before_is_taken_over(store: EventStore) -> None:
    store.append([told("1")], 1.0)
    with store.engine.begin() as connection:
        connection.execute(table.log.update().values(version=VERSION - 1))

    upgrade(store)
    store.append([told("2")], 2.0)

    assert [entry.event for entry in store.read(0)] == [CancelRequested(job_id=job, by="ann") for job in "12"]
    assert store.newest_version() == VERSION


def test_a_restored_backup_goes_on_where_it_was_and_its_brain_is_obeyed(store: EventStore, tmp_path: Path) -> None:
    store.take_lead("one", 1.0)
    store.append([told("1")], 2.0)
    kept = backup(store, tmp_path / "copy.db")
    store.append([told("2")], 3.0)  # is lost
    fresh = EventStore(f"sqlite:///{tmp_path}/fresh.db")

    brought = restore(tmp_path / "copy.db", fresh)

    assert (kept, brought) == (2, 2)
    assert fresh.read(0) == store.read(0)[:2]
    assert fresh.take_lead("two", 4.0) > 1_000_000
    assert [entry.seq for entry in fresh.append([told("3")], 5.0)] == [4]
    assert list(tmp_path.glob(".copy*")) == []


@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_store_and_its_backup_are_for_their_owner_only_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        made = EventStore(f"sqlite:///{tmp_path}/manager.db")
        upgrade(made)
        backup(made, tmp_path / "copy")
        made.append([told("1")], 1.0)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        made.close()
    finally:
        os.umask(before)

    assert modes == dict.fromkeys(("manager.db", "manager.db-wal", "manager.db-shm", "copy"), 0o600)


def test_a_store_that_others_could_read_is_tightened_when_it_is_opened(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("manager.db", "manager.db-wal", "manager.db-shm")]
    for file in files:
        file.touch()
        file.chmod(0o644)

    made = EventStore(f"sqlite:///{tmp_path}/manager.db")
    upgrade(made)

    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3
    made.close()


@pytest.fixture
def managers() -> Iterator[Path]:
    """A folder of another user, as the manager's own; pytest's folders only root may pass."""
    with TemporaryDirectory(prefix="farside-store-") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "manager"
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder is made by root only")
@pytest.mark.parametrize("name", ["manager.db", "manager.db-wal", "manager.db-shm"])
@pytest.mark.parametrize("is_there", [True, False])
def test_root_changes_and_makes_nothing_through_a_link_of_the_managers_user(
    name: str, is_there: bool, managers: Path
) -> None:
    """[M10] `farside store check` of root took a file of root's from its readers, and `upgrade` made one."""
    folder, target = managers, managers.with_name("root's")
    if is_there:
        target.write_bytes(b"")
        target.chmod(0o644)
    (folder / name).symlink_to(target)
    os.chown(folder / name, NOBODY, NOBODY, follow_symlinks=False)

    store = EventStore(f"sqlite:///{folder}/manager.db")
    with suppress(FarsideError):
        upgrade(store)
    store.close()

    assert target.exists() == is_there
    assert not is_there or (target.stat().st_mode & 0o777, target.read_bytes()) == (0o644, b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder is made by root only")
def test_what_root_makes_in_the_folder_of_the_managers_user_is_theirs(managers: Path) -> None:
    store = EventStore(f"sqlite:///{managers}/manager.db")
    upgrade(store)
    store.append([told("1")], 1.0)

    owners = {file.name: (file.stat().st_uid, file.stat().st_mode & 0o777) for file in managers.iterdir()}
    store.close()
    assert owners == dict.fromkeys(("manager.db", "manager.db-wal", "manager.db-shm"), (NOBODY, 0o600))


def test_a_server_of_postgresql_is_asked_to_notice_soon_that_a_manager_has_died() -> None:
    with a_database() as url:
        made = EventStore(url.replace("/postgres?", "/postgres?options=-c%20tcp_user_timeout%3D77&connect_timeout=9&"))
        with made.engine.connect() as connection:
            source = connection.execute(text("SELECT name, source FROM pg_settings WHERE name LIKE 'tcp_%'"))
            told = {row.name: row.source for row in source}
        made.close()

    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    assert told == dict.fromkeys(names, "client")


def test_what_a_url_says_of_its_connections_comes_before_what_is_usual() -> None:
    usual = alive_args(make_url("postgresql://host/farside"))
    told = alive_args(make_url("postgresql://host/farside?keepalives_idle=60&options=-c tcp_user_timeout%3D7"))

    assert (usual["connect_timeout"], usual["keepalives_idle"], usual["tcp_user_timeout"]) == (5, 2, 5000)
    assert str(usual["options"]).endswith("-c tcp_keepalives_count=3 -c tcp_user_timeout=5000")
    assert "keepalives_idle" not in told
    assert str(told["options"]).endswith("-c tcp_user_timeout=5000 -c tcp_user_timeout=7")


def test_a_backup_is_never_restored_over_entries(store: EventStore, tmp_path: Path) -> None:
    store.append([told("1")], 2.0)
    backup(store, tmp_path / "copy.db")

    with pytest.raises(ConfigError, match="has entries; stop the manager and move its store away first"):
        restore(tmp_path / "copy.db", store)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _spoil(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:4096] + b"x" * (file.stat().st_size - 4096))


@pytest.mark.parametrize("harm", [_cut, _spoil, lambda file: file.write_bytes(b""), lambda file: file.write_text("no")])
def test_a_backup_that_is_damaged_is_one_clear_line_and_nothing_is_written(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:
    whole, empty = EventStore(f"sqlite:///{tmp_path}/whole.db"), EventStore(f"sqlite:///{tmp_path}/empty.db")
    upgrade(whole)
    whole.append([told(str(at)) for at in range(100)], 2.0)
    file = tmp_path / "copy.db"
    backup(whole, file)
    harm(file)

    with pytest.raises(ConfigError) as caught:
        restore(file, empty)

    assert str(caught.value).startswith(f"{file}: is damaged, cut short, or no backup of a store; nothing was written")
    assert not (tmp_path / "empty.db").exists()
    for store in (whole, empty):
        store.close()


def test_a_full_disk_is_one_clear_line_and_nothing_is_written(tmp_path: Path) -> None:
    store = EventStore(f"sqlite:///{tmp_path}/manager.db")
    upgrade(store)
    store.append([told("1")], 1.0)
    with store.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    with pytest.raises(FarsideError, match="database or disk is full; nothing was written"):
        store.append([told("x" * 50) for _ in range(10_000)], 2.0)

    seqs = [entry.seq for entry in store.read(0)]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_turn_that_fails_leaves_nothing(store: EventStore) -> None:
    def fail() -> None:
        with store.turn() as turn:
            turn.add([told("1")], 1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert store.read(0) == []


def test_a_turn_begins_with_what_others_wrote_and_what_it_adds_has_the_next_places(store: EventStore) -> None:
    generation = store.take_lead("brain", 1.0)
    before = store.append([told("1"), told("2")], 2.0)

    with store.turn(generation, after=2) as turn:
        unread = turn.unread
        added = turn.add([decided("1")], 3.0) + turn.add([decided("2")], 2.5)
        is_hidden = store.read(3) == []

    assert unread == before[1:]
    assert is_hidden
    assert [(entry.seq, entry.at_s, entry.generation) for entry in added] == [(4, 3.0, 1), (5, 3.0, 1)]
    assert store.read(3) == added


def test_a_checkpoint_moves_what_was_written_into_the_database_itself(tmp_path: Path) -> None:
    store = EventStore(f"sqlite:///{tmp_path}/manager.db")
    upgrade(store)
    written = store.append([told("1")], 1.0)

    store.checkpoint()

    shutil.copy(tmp_path / "manager.db", tmp_path / "alone.db")  # without what is beside it
    assert EventStore(f"sqlite:///{tmp_path}/alone.db").read(0) == written
