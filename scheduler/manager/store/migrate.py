"""Creation, upgrade, backup and restore of a store."""

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from farside.errors import ConfigError, FarsideError
from farside.scheduler.manager.model.codec import check_version
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.table import image, lead, log, metadata, pulse, secret

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"
NEWEST = "0006"
"""The newest migration. alembic, a tenth of what a manager imports, is loaded only for a store that has another one."""
# alembic's own table: one row, the migration that came last.
_revision = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def upgrade(store: EventStore) -> None:
    """Makes the tables, or brings those of an older Farside up to date.

    Raises:
        FarsideError: It cannot, or a newer Farside wrote it; what was there is as it was.
    """
    try:
        # One transaction: all or nothing.
        with store.engine.begin() as connection:
            found = _revision_of(connection)
            if found is None and not _has_tables(connection):
                _make(connection)
            elif found != NEWEST:
                _migrate(connection, found)
    except SQLAlchemyError as error:
        first = str(error).splitlines()[0]
        raise FarsideError(f"store_url: {first}", hint="is the database there, and may this user write it?") from error
    # Tables may be unchanged while the entries in them have a later version.
    check_version(store.newest_version())


def check_readable(store: EventStore) -> bool:
    """Whether a Farside has made the tables already; nothing is changed.

    Raises:
        FarsideError: The store can't be read, or a newer Farside wrote it.
    """
    try:
        with store.engine.connect() as connection:
            found = _revision_of(connection)
            if found not in (None, NEWEST):
                _refuse_later(found)
    except SQLAlchemyError as error:
        raise FarsideError(f"store_url: {str(error).splitlines()[0]}", hint="is the database there?") from error
    if found is not None:
        check_version(store.newest_version())
    return found is not None


def _has_tables(connection: Connection) -> bool:
    """Whether any of ours is there."""
    return not metadata.tables.keys().isdisjoint(inspect(connection).get_table_names())


def _revision_of(connection: Connection) -> str | None:
    """The migration that came last; None: there was none yet."""
    if not inspect(connection).has_table(_revision.name):
        return None
    return connection.execute(select(_revision.c.version_num)).scalar_one_or_none()


def _make(connection: Connection) -> None:
    """Makes at once what all migrations would have made one after the other; a test compares the two."""
    # What is there already, such as a view of one of these names, is an error and not taken for ours.
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(lead).values(id=1, generation=0, holder="", last_seq=0, last_at_s=0.0))
    connection.execute(insert(secret).values(id=1, value=secrets.token_bytes(32)))
    connection.execute(insert(pulse).values(id=1, holder="", beat=0))
    _revision.metadata.create_all(connection)
    connection.execute(insert(_revision).values(version_num=NEWEST))


def _migrate(connection: Connection, found: str | None) -> None:
    """Brings tables of an older Farside up to date.

    Raises:
        ConfigError: A newer one made them.
    """
    from alembic import command

    _refuse_later(found)
    command.upgrade(migrations(connection), "head")


def _refuse_later(found: str | None) -> None:
    # alembic itself would only report that it cannot find the revision; an older manager has to say why it refuses.
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(migrations()).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(f"the store is of a later version, {found}", hint="run the newer manager")


def migrations(connection: Connection | None = None) -> "Config":
    """What alembic asks for; ``connection``: what is migrated."""
    from alembic.config import Config

    config = Config()
    config.attributes["connection"] = connection  # migrations/env.py takes it
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", str(MIGRATIONS / "versions"))
    return config


def backup(store: EventStore, to: Path) -> int:
    """Writes a copy of the log as it is at this moment into a new SQLite file, while managers run on.

    Returns:
        The entries in it.

    Raises:
        ConfigError: There is a file already.
        FarsideError: The disk is full, or the store can't be read.
    """
    if to.exists() or to.is_symlink():
        raise ConfigError(f"{to}: is there already", hint="name another file")
    part = to.with_name(f".{to.name}.part")
    part.unlink(missing_ok=True)
    target = EventStore(f"sqlite:///{part.absolute()}")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # nobody else's, nor a link
    except OSError as error:
        raise ConfigError(f"{to}: {error.strerror}", hint="name another file") from error
    try:
        count = _copy(store, target)
        with closing(sqlite3.connect(part)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a write-ahead log beside it
        # The file has its name only when it is whole.
        part.replace(to)
    finally:
        for left in (part, part.with_name(part.name + "-wal"), part.with_name(part.name + "-shm")):
            left.unlink(missing_ok=True)
    return count


def restore(source: Path, store: EventStore) -> int:
    """Writes a backup into a store that is empty.

    The generation goes on from the backup's and skips a million: agents that have seen later ones obey again.

    Returns:
        The entries in it.

    Raises:
        ConfigError: There is no such file, it is no whole backup, or the store has entries.
    """
    if not source.is_file():
        raise ConfigError(f"{source}: no such file", hint="name what `farside store backup` has written")
    # The backup is checked before anything is written, so a damaged one leaves the target empty.
    if not _is_whole(source):
        hint = "nothing was written; name another that `farside store backup` has written"
        raise ConfigError(f"{source}: is damaged, cut short, or no backup of a store", hint=hint)
    upgrade(store)
    if store.extent().last_seq:
        where = make_url(store.url).render_as_string()
        raise ConfigError(f"{where}: has entries", hint="stop the manager and move its store away first")
    count = _copy(EventStore(f"sqlite:///{source.absolute()}"), store)
    with store.engine.begin() as connection:
        connection.execute(update(lead).values(generation=lead.c.generation + GENERATIONS_SKIPPED))
    return count


def _is_whole(source: Path) -> bool:
    """Whether a file is a store of SQLite, and no page of it is damaged or missing."""
    try:
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("SELECT last_seq FROM lead").fetchone()
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


# More than any cluster's managers take the lead between a backup and its return.
GENERATIONS_SKIPPED = 1_000_000


def _copy(source: EventStore, target: EventStore) -> int:
    try:
        upgrade(target)
        with source.engine.connect().execution_options(is_reading=True) as reading, target.engine.begin() as writing:
            # One read transaction: the row of `lead`, the entries and the snapshot are from the same moment while
            # managers write.
            leading = reading.execute(select(*_there(reading, lead))).one()
            rows = reading.execute(
                select(*_there(reading, log)).where(log.c.seq <= leading.last_seq).order_by(log.c.seq)
            )
            count = 0
            # In parts, so that the insert of a long log does not have to be in memory at once.
            for part in rows.partitions(1000):
                writing.execute(insert(log), [row._asdict() for row in part])
                count += len(part)
            for row in reading.execute(select(image)):
                writing.execute(insert(image), [row._asdict()])
            writing.execute(update(lead).values(leading._asdict()))
            # The keys of jobs that run are made of it.
            kept = reading.execute(select(secret)).one_or_none()
            if kept is not None:
                writing.execute(update(secret).values(value=kept.value))
        return count
    except SQLAlchemyError as error:
        raise FarsideError(f"the copy was not made: {str(error).splitlines()[0]}") from error
    finally:
        source.close()
        target.close()


def _there(connection: Connection, table: Table) -> list[Column[Any]]:
    """The table's columns, as far as a backup of an earlier version has them."""
    names = {column["name"] for column in inspect(connection).get_columns(table.name)}
    return [column for column in table.c if column.name in names]
