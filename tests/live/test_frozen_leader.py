"""A scheduler process that is frozen while it leads, over PostgreSQL [M8]: another one leads within seconds."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from farside.scheduler.manager.store import leadership
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.leadership import leading
from farside.scheduler.manager.store.migrate import upgrade
from tests.live.stores import a_database

FROZEN_S = 3.0
LEADER = """
import asyncio, sys, threading
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.leadership import leading
from farside.scheduler.manager.store.transaction import LeadLost, lock

async def lead():
    store = EventStore(sys.argv[1])
    async with leading(store):
        generation = store.take_lead("first", 1.0)
        if sys.argv[2] == "writing":
            with store.writing() as connection:
                lock(connection)
                print("leads", flush=True)
                threading.Event().wait()
        print("leads", flush=True)
        sys.stdin.readline()
        try:
            store.append([], 2.0, generation=generation)
        except LeadLost:
            print("lost", flush=True)

asyncio.run(lead())
"""


@contextmanager
def a_leader(url: str, how: str) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", LEADER, url, how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who waits, three beats instead of ten are enough here."""
    monkeypatch.setattr(leadership, "FROZEN_S", FROZEN_S)


async def take_lead(store: EventStore, limit_s: float) -> int:
    async with asyncio.timeout(limit_s), leading(store):
        return store.take_lead("second", 3.0)


@pytest.mark.parametrize("how", ["idle", pytest.param("writing", marks=pytest.mark.long)])
def test_a_frozen_leader_is_replaced_and_writes_nothing_when_it_thaws(how: str) -> None:
    """[M8] For ten minutes nobody decided; one that froze in the middle of a write has the log locked too."""
    with a_database() as url:
        store = EventStore(url)
        upgrade(store)
        with a_leader(url, how) as process:
            os.kill(process.pid, signal.SIGSTOP)

            generation = asyncio.run(take_lead(store, 60.0))

            assert generation == 2
            os.kill(process.pid, signal.SIGCONT)
            if how == "idle":
                told, _ = process.communicate("go on\n", timeout=60)
                assert told == "lost\n"
        store.close()


@pytest.mark.long
def test_a_leader_that_only_computes_keeps_the_lead() -> None:
    """[M8] Its thread says that it is there while its event loop does not turn."""
    with a_database() as url:
        store = EventStore(url)
        upgrade(store)
        with a_leader(url, "idle"), pytest.raises(TimeoutError):
            asyncio.run(take_lead(store, FROZEN_S + 4.0))
        store.close()


@pytest.mark.long
def test_a_leader_of_the_version_before_has_no_pulse_and_is_left_alone() -> None:
    """[M8] It never changes the row, which names another process."""
    with a_database() as url:
        store = EventStore(url)
        upgrade(store)
        with a_leader(url, "idle") as process:
            os.kill(process.pid, signal.SIGSTOP)
            with store.writing() as connection:
                connection.exec_driver_sql("UPDATE pulse SET holder = 'another'")

            with pytest.raises(TimeoutError):
                asyncio.run(take_lead(store, FROZEN_S + 4.0))
        store.close()
