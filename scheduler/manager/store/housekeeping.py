"""Housekeeping of the store: compaction of the log when it is due, and checkpoints of the database.

The first is done in a process of its own, the second in a thread of this one. Neither holds up who reads or writes.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from contextlib import suppress

from farside.config import ManagerConfig
from farside.ending import die_with
from farside.errors import FarsideError
from farside.log import get_log, start_logging
from farside.scheduler.manager.store.compact import archive_of, compact, is_due
from farside.scheduler.manager.store.event_store import EventStore

# How often it is looked.
LOOK_S = 60.0
# How often SQLite's pages are moved: some hundreds by then, and each page once, however often it was written.
CHECKPOINT_S = 1.0
# Jobs' starts go before it.
NICE = 10
_log = get_log("manager")


async def keep_house(config: ManagerConfig) -> None:
    """Does both until it is cancelled."""
    store = EventStore(config.store_url)
    async with asyncio.TaskGroup() as group:
        group.create_task(_keep_level(store))
        group.create_task(_keep_short(store, config))


async def _keep_level(store: EventStore) -> None:
    while True:
        await asyncio.sleep(CHECKPOINT_S)
        with suppress(FarsideError):  # a full disk: who writes says so
            # In a thread, as the checkpoint syncs the disk; the event loop of the parent also has to notify systemd.
            await asyncio.to_thread(store.checkpoint)


async def _keep_short(store: EventStore, config: ManagerConfig) -> None:
    """Looks now and then, where the scheduler process leads."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            extent = await asyncio.to_thread(store.extent)
        except FarsideError:
            continue  # the parts say so themselves
        # Of several managers on one store only one compacts: that on the node whose scheduler process leads.
        if extent.holder.startswith(f"{config.node}:") and is_due(extent, time.time(), config.keep_history_s):
            await _run_beside(config)


async def _run_beside(config: ManagerConfig) -> None:
    # spawn, not fork: a forked child would inherit open SQLite connections, which SQLite forbids to use after a fork,
    # and the locks of other threads.
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_work, args=(config, os.getpid()), name="farside-compact")
    process.start()
    try:
        await asyncio.to_thread(process.join)
    finally:
        process.kill()  # wherever it is: the next one goes on


def _work(config: ManagerConfig, parent: int) -> None:
    # A part of the manager that is killed runs no `finally`, and the next manager begins a compaction of its own.
    die_with(parent, signal.SIGKILL)
    start_logging(config.log_level)
    os.nice(NICE)
    store = EventStore(config.store_url)
    begun_s = time.monotonic()
    try:
        archive = archive_of(config.store_url, config.archive_dir)
        done = compact(store, archive, time.time(), config.keep_history_s)
    except FarsideError as error:
        _log.error("the log could not be compacted; it is unchanged", reason=error)
        return
    finally:
        store.close()
    _log.info(
        "the log was compacted", snapshot=done.snapshot_seq, forgotten_jobs=done.forgotten, archived=done.archived,
        seconds=round(time.monotonic() - begun_s, 1),
    )  # fmt: skip
