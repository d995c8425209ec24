"""The event store: the log in a database. Append entries, read on, take the lead.

It keeps no state of the cluster; `scheduler/manager/log_follower.py` reads the log and makes that state for the API.

How it works
  All writers lock the one row of `lead`, so entries get their places in the order in which they become visible, and a
  reader that has come to place n never finds one before it later. That row also has the generation: a scheduler process
  that took the lead made it greater, and what an older one wants to write from then on is refused, whatever it
  believes.

  SQLite: one file, write-ahead log, synced at each commit; what was acknowledged survives a crash of the machine.
  Entries are written many at once where many wait, as a commit costs the same for one and for a thousand.
"""

import ctypes
import math
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from farside.errors import ConfigError, FarsideError
from farside.scheduler.manager.model.codec import check_version
from farside.scheduler.manager.model.event import VERSION, Entry, SchedulerTookLead
from farside.scheduler.manager.model.state import keyed_request_of
from farside.scheduler.manager.store.entry_row import COLUMNS, READ_ON, entries_behind, entry_of
from farside.scheduler.manager.store.table import image, lead, log, secret
from farside.scheduler.manager.store.transaction import PAGE, Draft, Turn, lock

# How long one waits in SQLite for another writer, and how often it looks; a commit takes milliseconds.
BUSY_S, LOOK_S = 30.0, 0.0005
_NEVER = threading.Event()  # waited for instead of time.sleep, which fails where libfaketime makes a clock jump
_BEGIN_WRITING = "BEGIN IMMEDIATE"
# A machine that does not answer is given up after two seconds and three more, or when what was sent to it stays without
# an answer for five.
KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, KEEP_ALIVE_COUNT = 2, 1, 3
SILENT_MAX_MS = 5000
CONNECT_LIMIT_S = 5
# A commit that finds so many pages in SQLite's write-ahead log moves them into the database itself, which takes ten
# times as long as the commit. A manager sees to it that none does, see `EventStore.checkpoint`.
CHECKPOINT_PAGES = 8000


class StoreError(FarsideError):
    """The store could not be read or written; what was to be written is not there."""


class AskedBefore(FarsideError):
    """Requests that were to be written are in the log already, by another writer; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The first and last entry, up to where there is a snapshot (0: there is none), and who led last.

    Of an empty log the first is the one that comes next.
    """

    first_seq: int
    first_at_s: float
    last_seq: int
    snapshot_seq: int
    holder: str


class EventStore:
    """One database. May be used from several threads, one call at a time each."""

    def __init__(self, url: str) -> None:
        """Opens, but does not make it: see `migrate.py`.

        Raises:
            ConfigError: The URL is none, or of a database that Farside does not know.
        """
        self.url = url
        # Of this process's sessions, apart from those of all others: who takes the lead may have to end them.
        self.session_name = f"farside-{os.getpid()}-{secrets.token_hex(8)}"
        self.engine = open_engine(url, self.session_name)

    def close(self) -> None:
        """Closes its connections."""
        self.engine.dispose()

    # ------------------------------------------------------------------ writing

    def take_lead(self, holder: str, now_s: float) -> int:
        """Generation of the scheduler process that leads from now on; earlier ones can't write decisions."""
        with self.writing() as connection:
            generation = int(lock(connection).generation) + 1
            connection.execute(sa.update(lead).values(generation=generation, holder=holder))
            turn = Turn(connection, generation)
            turn.add(
                [Draft(event=SchedulerTookLead(generation=generation, holder=holder, counts_lent=True), cause=holder)],
                now_s,
            )
            turn.write()
        return generation

    @contextmanager
    def turn(self, generation: int = 0, after: float = math.inf) -> Iterator[Turn]:
        """One transaction, committed at the end of the block; see turn.py.

        Args:
            generation: Of the scheduler process that decides; 0: none does.
            after: What stands behind this place is read first.

        Raises:
            LeadLost: Another scheduler process leads.
            StoreError: The database could not do it; nothing was written.
        """
        with self.writing() as connection:
            turn = Turn(connection, generation, after)
            yield turn
            turn.write()

    def append(
        self, drafts: Sequence[Draft], now_s: float, *, generation: int = 0, read_to: int | None = None
    ) -> list[Entry]:
        """Writes entries, all or none, and returns what they have become.

        Args:
            drafts: What to write, in this order.
            now_s: The writer's clock. Where it stands before the last entry's time, that time is taken.
            generation: Of the scheduler process that decided it; 0: none did.
            read_to: The writer has read the log so far, and found none of the requests that it writes. What others
                wrote behind that is looked at here, where nobody else writes; None: there are no requests among it.

        Raises:
            AskedBefore: Another writer has written one of the requests.
            LeadLost: Another scheduler process leads.
            StoreError: The database could not do it; nothing was written.
        """
        with self.turn(generation, math.inf if read_to is None else read_to) as turn:
            _refuse_repeats(turn.unread, drafts)
            return turn.add(drafts, now_s)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end of the block.

        Raises:
            StoreError: The database could not do it; nothing was written.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise broken(self.url, error) from error

    def keep_snapshot(self, seq: int, at_s: float, body: bytes) -> bool:
        """Puts a snapshot of entry ``seq`` in the place of an older one; False: there is a newer one already.

        Raises:
            StoreError: The database could not do it; the old one is as it was.
        """
        with self.writing() as connection:
            lock(connection)
            # Another run of the compaction may have come further; an older snapshot must not replace it, as entries up
            # to the newer one may have left the log.
            if (connection.execute(sa.select(image.c.seq)).scalar() or 0) >= seq:
                return False
            connection.execute(sa.delete(image))
            connection.execute(sa.insert(image), [{"seq": seq, "at_s": at_s, "version": VERSION, "body": body}])
            return True

    def drop(self, up_to: int, *, limit: int = PAGE) -> int:
        """Takes the oldest entries away, at most ``limit``, none behind ``up_to`` or the snapshot; returns how many.

        Raises:
            StoreError: The database could not do it; they are all there.
        """
        with self.writing() as connection:
            lock(connection)
            last = min(up_to, connection.execute(sa.select(image.c.seq)).scalar() or 0)
            first = connection.execute(sa.select(sa.func.min(log.c.seq))).scalar()
            if first is None or first > last:
                return 0
            # The places have no gaps, so the number of entries follows from the places and nothing has to be counted.
            last = min(last, first + limit - 1)
            connection.execute(sa.delete(log).where(log.c.seq <= last))
            return int(last - first + 1)

    def checkpoint(self) -> None:
        """Moves what SQLite's write-ahead log has into the database, beside who reads and writes: nobody waits for it.

        Raises:
            StoreError: The database could not do it; nothing is lost.
        """
        if self.engine.dialect.name != "sqlite":
            return
        try:
            # A raw connection: SQLAlchemy would begin a transaction first (`_begin`), and SQLite refuses a checkpoint
            # in one. PASSIVE waits for no reader and no writer; the pages that are in use stay for the next call.
            with closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise broken(self.url, error) from error

    # ------------------------------------------------------------------ reading

    def snapshot(self) -> tuple[bytes, int] | None:
        """The bytes of the snapshot and the version of the log that its writer knew; None: there is none yet.

        Raises:
            StoreError: The database could not do it.
            LaterVersion: A newer manager wrote it.
        """
        row = self._first(sa.select(image.c.version, image.c.body))
        if row is None:
            return None
        check_version(row.version)
        return bytes(row.body), row.version

    def extent(self) -> "Extent":
        """Extent of the log.

        Raises:
            StoreError: The database could not do it.
        """
        first_seq = sa.select(sa.func.min(log.c.seq)).scalar_subquery()
        first_at_s = sa.select(log.c.at_s).order_by(log.c.seq).limit(1).scalar_subquery()
        snapshot_seq, coalesce = sa.select(sa.func.max(image.c.seq)).scalar_subquery(), sa.func.coalesce
        row = self._first(
            sa.select(
                lead.c.last_seq,
                lead.c.holder,
                coalesce(first_seq, lead.c.last_seq + 1).label("first_seq"),
                coalesce(first_at_s, 0.0).label("first_at_s"),
                coalesce(snapshot_seq, 0).label("snapshot_seq"),
            )
        )
        assert row is not None, "a store has the row that writers lock"
        return Extent(**row._asdict())

    def rows(self, after: int, *, limit: int = PAGE) -> list[Mapping[str, Any]]:
        """Rows of entries as they are in the table, for the archive.

        Raises:
            StoreError: The database could not do it.
        """
        found = self._read(sa.select(log).where(log.c.seq > after).order_by(log.c.seq).limit(limit))
        return [row._asdict() for row in found]

    def _read(self, query: Any, values: Mapping[str, int] | None = None) -> Sequence[Any]:
        try:
            # `_begin` sees this mark: in write-ahead mode readers need no lock, and must not take the writers' lock.
            with self.engine.connect().execution_options(is_reading=True) as connection:
                return connection.execute(query, values).all()
        except SQLAlchemyError as error:
            raise broken(self.url, error) from error

    def _first(self, query: Any) -> Any:
        return next(iter(self._read(query)), None)

    def read(self, after: int) -> list[Entry]:
        """The entries after ``after``, at most `PAGE`; fewer only at the end of the log.

        Raises:
            StoreError: The database could not do it.
            RemoteProtocolError: An entry is damaged, or of a later version.
        """
        return entries_behind(after, self._read(READ_ON, {"after": after, "most": PAGE}))

    def read_all(self) -> Iterator[Entry]:
        """All entries that are not in an archive, page by page."""
        after = 0
        while entries := self.read(after):
            yield from entries
            after = entries[-1].seq

    def history(self, subject: str, *, at: int = 0, limit: int = PAGE) -> list[Entry]:
        """The entries about one job or node, and that at one place, the oldest first."""
        query = COLUMNS.where((log.c.subject == subject) | (log.c.seq == at)).order_by(log.c.seq).limit(limit)
        return self._entries(query)

    def newest_version(self) -> int:
        """The version of the last entry; 0: there is none.

        Raises:
            StoreError: The database could not do it.
        """
        row = self._first(sa.select(log.c.version).order_by(log.c.seq.desc()).limit(1))
        return 0 if row is None else int(row.version)

    def secret(self) -> bytes:
        """What keys of jobs are made of: the same for all managers of this store, and in no entry of the log.

        Raises:
            StoreError: The database could not do it.
        """
        return bytes(self._first(sa.select(secret.c.value)).value)

    def size_bytes(self) -> int:
        """Size of the database on its disk, if it reports one.

        Raises:
            StoreError: It could not be asked.
        """
        if self.engine.url.get_backend_name() == "sqlite":
            parts = (Path(f"{self.engine.url.database}{end}") for end in ("", "-wal"))
            # The write-ahead log counts too: it holds what is committed and not yet moved into the database.
            return sum(part.stat().st_size for part in parts if part.exists())
        return int(self._first(sa.text("SELECT pg_database_size(current_database())"))[0])

    def told_by_people(self, *, actor: str = "", before: int | None = None, limit: int = PAGE) -> list[Entry]:
        """The entries that users and operators brought about (one of them: ``actor``), the newest first."""
        names = [f"{role} {escaped(actor)}" for role in ("user", "operator", "node")] if actor else []
        # A cause is "ROLE NAME", and may go on after a comma. Without the comma the pattern of ann would find anna as
        # well.
        patterns = [p for name in names for p in (name, f"{name}, %")] or ["user %", "operator %"]
        by_people = sa.or_(*(log.c.cause.like(pattern, escape="\\") for pattern in patterns))
        by_people = sa.or_(by_people, log.c.kind == "AccessNoted") if not actor else by_people
        query = COLUMNS.where(by_people).order_by(log.c.seq.desc()).limit(limit)
        return self._entries(query if before is None else query.where(log.c.seq < before))

    def _entries(self, query: Any, values: Mapping[str, int] | None = None) -> list[Entry]:
        return [entry_of(row) for row in self._read(query, values)]


def _refuse_repeats(unread: Sequence[Entry], drafts: Sequence[Draft]) -> None:
    """Refuses a request that another manager has written: each of two may get it at the same moment.

    Raises:
        AskedBefore: One of these drafts is among what others have written.
    """
    theirs = {keyed_request_of(entry.event) for entry in unread} - {None}
    if theirs and any(keyed_request_of(draft.event) in theirs for draft in drafts):
        raise AskedBefore("another manager has written this request meanwhile")


def escaped(told: str) -> str:
    """A text that LIKE takes as it is."""
    return told.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def open_engine(url: str, session_name: str) -> sa.Engine:
    """The engine of a URL, whose sessions have this name where the database knows names.

    Raises:
        ConfigError: It is none, or its folder is not there.
    """
    hint = "write sqlite:////var/lib/farside/manager.db or postgresql+psycopg://user@host/name"
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ConfigError(f"store_url: {parsed.get_backend_name()} is not a store that Farside knows", hint=hint)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            return _open_sqlite(parsed)
        # pool_pre_ping: a pooled connection may be from before a restart of the server; it is tried before it is used.
        told = {**alive_args(parsed), "application_name": session_name}
        return sa.create_engine(parsed, pool_pre_ping=True, connect_args=told)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"store_url: {str(error).splitlines()[0]}", hint=hint) from error


def alive_args(parsed: URL) -> dict[str, str | int]:
    """How both sides of a connection to PostgreSQL notice that the other's machine has died; the URL's own win.

    Without, the server keeps the session of a scheduler process whose machine lost its power, and the lead with it, for
    two hours.
    """
    ours: dict[str, str | int] = {
        "keepalives_idle": KEEP_ALIVE_IDLE_S,
        "keepalives_interval": KEEP_ALIVE_INTERVAL_S,
        "keepalives_count": KEEP_ALIVE_COUNT,
        "tcp_user_timeout": SILENT_MAX_MS,
    }
    # The server calls all of them by what TCP they are of.
    options = [f"-c tcp_{name.removeprefix('tcp_')}={value}" for name, value in ours.items()]
    told = parsed.query.get("options", "")
    ours["connect_timeout"] = CONNECT_LIMIT_S
    kept = {name: value for name, value in ours.items() if name not in parsed.query}
    # Of two that set the same, the server takes the last.
    return {**kept, "options": " ".join([*options, *([told] if isinstance(told, str) else told)]).strip()}


def _open_sqlite(parsed: Any) -> sa.Engine:
    if not parsed.database or not Path(parsed.database).is_absolute():
        raise ConfigError("store_url: needs the absolute path of a file", hint="sqlite:////var/lib/farside/manager.db")
    if not Path(parsed.database).parent.is_dir():
        raise ConfigError(f"store_url: {Path(parsed.database).parent}: no such folder", hint="make it")
    # check_same_thread: asyncio.to_thread runs each call in any thread of its pool, so a connection is used by several,
    # one after the other.
    engine = sa.create_engine(parsed, connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @event.listens_for(engine, "do_connect")
    def _make(dialect: Any, record: object, words: list[Any], options: dict[str, Any]) -> Any:
        with _as_owner_of(Path(parsed.database).parent):
            _keep_private(Path(parsed.database))
            # SQLite opens the database here, and what lies beside it later; there it follows no links itself.
            return dialect.connect(*words, **options)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # else the driver begins transactions by itself, and too late
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        # FULL syncs the write-ahead log at each commit. With NORMAL a power failure could take entries that were
        # acknowledged.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("is_reading"):
            connection.exec_driver_sql("BEGIN")
        else:
            _begin_writing(connection)

    return engine


@contextmanager
def _as_owner_of(folder: Path) -> Iterator[None]:
    """Has root open files of another user's folder as that user: links there lead no further than that user can go.

    For files, and in this thread only (setfsuid(2)); what root makes there is theirs, so that their manager can use it.
    [M10]
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setfsgid(owner.st_gid)
    libc.setfsuid(owner.st_uid)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(os.getegid())


def _keep_private(file: Path) -> None:
    """Makes it for its owner only, or tightens it: jobs' environments have secrets. SQLite's files beside it follow."""
    with suppress(OSError):  # it is there, or SQLite says what is wrong
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # SQLite gives the files beside it the mode of the database when it makes them; older ones keep the mode they have.
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):  # it is not there, or this user only reads what is another's
            _tighten(file.with_name(file.name + suffix))


def _tighten(file: Path) -> None:
    """Takes a regular file's mode from others; a link is left alone. [M10]"""
    # Not opened for reading: closing that would end the locks that SQLite has on it in this process (fcntl(2)).
    fd = os.open(file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        told = os.fstat(fd)
        if stat.S_ISREG(told.st_mode) and told.st_mode & 0o077:
            os.chmod(f"/proc/self/fd/{fd}", 0o600)
    finally:
        os.close(fd)


def _begin_writing(connection: sa.Connection) -> None:
    """Begins with the lock: IMMEDIATE takes the place of the row lock that SQLite has not. Readers need none.

    SQLite itself would look for it less and less often, in the end ten times a second: where two write without a pause,
    who has waited longest has the least chance.
    """
    cursor, end_s = connection.connection.cursor(), time.monotonic() + BUSY_S
    # SQLite's own wait is off while this loop waits in its place.
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        while time.monotonic() < end_s:
            try:
                cursor.execute(_BEGIN_WRITING)
            except sqlite3.OperationalError as error:
                # The low byte is the primary code: extended ones, such as SQLITE_BUSY_SNAPSHOT, mean busy as well.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    break
                _NEVER.wait(LOOK_S)
            else:
                return
        connection.exec_driver_sql(_BEGIN_WRITING)  # again, as the errors that callers know are this one's
    finally:
        # A pooled connection is used again, and a reader may still meet a short exclusive lock.
        cursor.execute(f"PRAGMA busy_timeout={BUSY_S * 1e3:.0f}")
        cursor.close()


def broken(url: str, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
    """The error of a database in one line."""
    cause = str(error.orig) if isinstance(error, DBAPIError) and error.orig is not None else str(error)
    first = cause.strip().splitlines()[0] if cause.strip() else type(error).__name__
    if "no such table" in first or "no such column" in first or "does not exist" in first:
        return StoreError(f"{make_url(url).render_as_string()}: {first}", hint="run `farside store upgrade`")
    return StoreError(f"{make_url(url).render_as_string()}: {first}", hint="nothing was written")
