"""Leadership: of several managers on one store, one scheduler process leads; another takes over when it ends.

A lock that the operating system or the database takes away from who is gone: flock(2) beside an SQLite file, an
advisory lock of the session in PostgreSQL. It decides who tries; that a scheduler process which only believes to lead
writes nothing is seen to by the generation (event_store.py).
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from farside.log import get_log
from farside.scheduler.manager.store.event_store import EventStore

# Neither lock tells a waiting process that it is free, so the process tries again and again.
TRY_PERIOD_S = 0.5
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


def _of_session(store: EventStore) -> _Lock:
    held: list[Connection] = []

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
        except SQLAlchemyError as error:  # a database that restarts comes back
            _log.warning("the store does not answer", reason=str(error).splitlines()[0])
        return False

    def let_go() -> None:
        for connection in held:
            connection.invalidate()  # closes the session, and the lock goes with it
            connection.close()

    return try_lead, let_go
