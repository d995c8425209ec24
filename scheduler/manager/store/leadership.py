"""Leadership: of several managers on one store, one scheduler process leads; another takes over when it ends.

A lock that the operating system or the database takes away from who is gone: flock(2) beside an SQLite file, an
advisory lock of the session in PostgreSQL. It decides who tries; that a scheduler process which only believes to lead
writes nothing is seen to by the generation (event_store.py).

A process that is frozen keeps its session, and the lock with it. So over PostgreSQL the leader changes a number in the
store once a second, from a thread. Another manager that has seen the same number for `FROZEN_S` ends the sessions of
that process, one of which may also have the log locked, and takes the lead. [M8] Nobody can take a file's lock away:
there the parent of the process replaces it (`scheduler/manager/processes.py`).
"""

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

from sqlalchemy import Connection, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from farside.log import get_log
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.table import pulse

# Neither lock tells a waiting process that it is free, so the process tries again and again.
TRY_PERIOD_S = 0.5
BEAT_S = 1.0
# A process whose machine is gone loses its session after five seconds (event_store.py); a thread of a busy one may wait
# for others for a while.
FROZEN_S = 10.0
# Any number will do as long as no other program that shares the database takes it: "farside" in ASCII.
_ADVISORY = int.from_bytes(b"farside")

_log = get_log("manager.scheduler")

_Lock = tuple[Callable[[], bool], Callable[[], None]]  # try to lead; let go


@asynccontextmanager
async def leading(store: EventStore) -> AsyncIterator[None]:
    """Waits until nobody else leads, and leads until the block is left."""
    try_lead, let_go = _of_file(store) if store.engine.dialect.name == "sqlite" else _of_session(store)
    has_told = False
    try:
        while not try_lead():
            if not has_told:
                _log.info("the scheduler process waits: another one leads")
            has_told = True
            await asyncio.sleep(TRY_PERIOD_S)
        with nullcontext() if store.engine.dialect.name == "sqlite" else _beating(store):
            yield
    finally:
        let_go()


def _of_file(store: EventStore) -> _Lock:
    # A file of its own: SQLite has POSIX locks on the database file, and a process that closes any descriptor of that
    # file loses all of them. O_CLOEXEC: the lock lasts as long as any process has this open file.
    fd = os.open(f"{store.engine.url.database}.lead", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_lead() -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    # The file stays. If it were removed, one process could lock the old file and another one a new file of the same
    # name.
    return try_lead, lambda: os.close(fd)


@contextmanager
def _beating(store: EventStore) -> Iterator[None]:
    """Changes the pulse once a second, also while this process's event loop is busy."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            _beat_once(store)

    _beat_once(store)  # before the thread: from now on the row names this process
    thread = threading.Thread(target=beat, name="fs-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _beat_once(store: EventStore) -> None:
    try:
        with store.engine.begin() as connection:
            connection.execute(update(pulse).values(holder=store.session_name, beat=pulse.c.beat + 1))
    except SQLAlchemyError as error:  # a database that restarts comes back; the lock is lost then anyway
        _log.warning("the store does not answer", reason=str(error).splitlines()[0])


# The two halves of the key are how pg_locks shows it.
_HOLDER = text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database() "
    "AND l.classid::bigint = :high AND l.objid::bigint = :low"
)
_END = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name = :name AND datname = current_database()"
)


class _Frozen:
    """Watches the process that leads, for one that waits."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._seen: tuple[str, int] | None = None
        self._since_s = 0.0

    def look(self) -> None:
        """Ends the sessions of a process that has not changed the pulse for `FROZEN_S`."""
        with self._store.engine.begin() as connection:
            halves = {"high": _ADVISORY >> 32, "low": _ADVISORY & 0xFFFFFFFF}
            leads = connection.execute(_HOLDER, halves).scalar()
            row = connection.execute(select(pulse)).one()
            # A process of the version before has no pulse: the row names another one.
            now = (str(leads), int(row.beat)) if leads and leads == row.holder else None
            if now is None or now != self._seen:
                self._seen, self._since_s = now, time.monotonic()
            elif time.monotonic() - self._since_s >= FROZEN_S:
                self._seen = None
                ended = connection.execute(_END, {"name": now[0]}).scalar()
                _log.error("the scheduler process that leads is frozen; its sessions are ended", sessions=ended)


def _of_session(store: EventStore) -> _Lock:
    held: list[Connection] = []
    frozen = _Frozen(store)

    def try_lead() -> bool:
        try:
            # AUTOCOMMIT: the lock belongs to the session. In a transaction this session would be idle as long as it
            # leads, and a server may end such sessions (idle_in_transaction_session_timeout), and the lock with them.
            connection = store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY}).scalar_one():
                held.append(connection)
                return True
            # A connection without the lock goes back to the pool; otherwise each attempt would keep one more open.
            connection.close()
            frozen.look()
        except SQLAlchemyError as error:  # a database that restarts comes back
            _log.warning("the store does not answer", reason=str(error).splitlines()[0])
        return False

    def let_go() -> None:
        for connection in held:
            connection.invalidate()  # closes the session, and the lock goes with it
            connection.close()

    return try_lead, let_go
