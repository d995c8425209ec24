"""Child processes that run as long as their parent: each is restarted when it ends, and killed when it hangs.

How it works
  When the parent is killed, its parts notice by a pipe that closes, and end too.

  A part that hangs is as bad as one that has ended: each writes the time into memory that it shares with the parent,
  from its event loop, and one that has not for its `Part.hang_s` is killed and started again. systemd watches the
  parent.
"""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from farside.config import ManagerConfig
from farside.ending import on_end_signals
from farside.errors import ConfigError, FarsideError, first_of
from farside.log import get_log, start_logging
from farside.notify import notify_systemd, watchdog_period_s
from farside.scheduler.manager.garbage_collection import keep_aside
from farside.whole_file import write_whole

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

PIDS = "manager.json"
# Between the end of a part and its next start: short at first, longer when it keeps ending.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
# A part that ran so long has not been ending at once.
LONG_ENOUGH_S = 10.0
# Less than who ends the manager waits for it: a sandbox 8.5 s, systemd 90 s. A part that is killed loses nothing.
END_LIMIT_S = 6.0
BEAT_PERIOD_S = 1.0

Beat: TypeAlias = "Synchronized[float]"
Work: TypeAlias = Callable[[ManagerConfig], Coroutine[None, None, None]]

_log = get_log("manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A child process: the function that it runs. An event loop that has not turned for ``hang_s`` hangs."""

    work: Work
    hang_s: float


class Parts:
    """The parts by name, started again as often as they end."""

    def __init__(self, config: ManagerConfig, parts: Mapping[str, Part]) -> None:
        self._config = config
        self._parts = parts
        # spawn: each part begins as a new interpreter. A forked one would inherit the event loop and its descriptors.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[str, SpawnProcess] = {}
        self._beats: dict[str, Beat] = {}
        # Set by a signal, or by a part that cannot be configured: starting it again would fail in the same way.
        self._stop = asyncio.Event()
        self._failure = 0

    async def run(self, beside: Coroutine[None, None, None]) -> int:
        """Runs them until SIGTERM or SIGINT, or until one can't be configured; the exit code.

        ``beside``: what the parent itself does meanwhile; it is cancelled in the end.
        """
        with on_end_signals(self._stop.set):
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._watch()), group.create_task(beside)]
                keeping = [group.create_task(self._keep(name)) for name in self._parts]
                # The watch goes on until the last part has ended, as systemd's watchdog must be notified until then.
                await asyncio.wait(keeping)
                for other in others:
                    other.cancel()
        self._pids_file.unlink(missing_ok=True)
        return self._failure

    @property
    def _pids_file(self) -> Path:
        """For `farside status`, and whoever wants to end a part."""
        return self._config.state_dir / PIDS

    async def _keep(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            begun_s = time.monotonic()
            # A new one for each start, at 0: the last beat of an ended process must not count against its successor. It
            # needs no lock: one process writes it, and an aligned double is written at once.
            beat = self._beats[name] = self._context.Value("d", 0.0, lock=False)
            process = self._context.Process(
                target=_part, args=(name, self._parts[name].work, self._config, beat), name=f"farside-{name}"
            )
            process.start()
            self._running[name] = process
            self._write_pids()
            code = await self._end_of(process)
            if self._stop.is_set():
                return
            # The same settings fail again, so all parts are ended and systemd gets the exit code.
            if code == ConfigError.exit_code:
                self._failure = code
                self._stop.set()
                return
            # A part that fails at once is started less and less often; one that ran for a while is started again at
            # once.
            pause_s = FIRST_PAUSE_S if time.monotonic() - begun_s > LONG_ENOUGH_S else pause_s
            _log.error(
                "a process of the manager ended and is started again", part=name, exit_code=code, pause_s=pause_s
            )
            with suppress(TimeoutError):
                # Waiting for the stop and not for the time alone: a manager that is ended during a pause ends at once.
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _watch(self) -> None:
        """Kills parts that hang, and notifies systemd that this process does not."""
        while True:
            if watchdog_period_s() > 0:
                # Sent from this loop, so that systemd also notices when the parent's own loop hangs.
                notify_systemd("WATCHDOG=1")
            for name, process in self._running.items():
                beat_s = self._beats[name].value  # 0: it is still being loaded
                silent_s = time.monotonic() - beat_s
                # SIGKILL: a loop that does not turn would not handle SIGTERM either. `_keep` sees the end and starts it
                # again.
                if beat_s and process.is_alive() and silent_s > self._parts[name].hang_s:
                    _log.error("a process of the manager hangs and is killed", part=name, silent_s=silent_s)
                    process.kill()
            await asyncio.sleep(BEAT_PERIOD_S)

    async def _end_of(self, process: SpawnProcess) -> int:
        """Exit code of a part that has ended, by itself or because all parts are stopped."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # The sentinel is a descriptor that becomes readable when the process ends, so no thread has to wait in join.
        loop.add_reader(process.sentinel, ended.set)
        try:
            stopping = asyncio.ensure_future(self._stop.wait())
            ending = asyncio.ensure_future(ended.wait())
            await asyncio.wait((stopping, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ended.is_set():
                process.terminate()
                await asyncio.wait([ending], timeout=END_LIMIT_S)
            if not ended.is_set():
                process.kill()
                await ended.wait()
            stopping.cancel()
            ending.cancel()
        finally:
            loop.remove_reader(process.sentinel)
        # It has ended already: this collects the exit code and leaves no zombie.
        process.join()
        return process.exitcode or 0

    def _write_pids(self) -> None:
        told = {"manager": os.getpid()} | {name: process.pid for name, process in self._running.items()}
        write_whole(self._pids_file, json.dumps({"pids": told, "listen": self._config.listen}).encode(), mode=0o644)


# ---------------------------------------------------------------------------------------------- in a part


def _part(name: str, work: Work, config: ManagerConfig, beat: Beat) -> None:
    """Entry point of a child process."""
    start_logging(config.log_level)
    try:
        asyncio.run(_until_told(work(config), beat))
    # TaskGroup raises groups; the first error in one says why the part ends, and its exit code tells the parent.
    except* FarsideError as several:
        error = first_of(several)
        _log.error("ends", part=name, reason=error)
        os._exit(error.exit_code)
    except* Exception as several:
        _log.error("unexpected fault", part=name, cause=first_of(several))
        os._exit(1)


async def _until_told(work: Coroutine[None, None, None], beat: Beat) -> None:
    """Runs until a signal, or until the parent is gone."""
    stop = asyncio.Event()
    parent = multiprocessing.parent_process()
    loop = asyncio.get_running_loop()
    if parent is not None:
        # The read end of a pipe whose write end only the parent has: the kernel closes it even when the parent is
        # killed by SIGKILL.
        loop.add_reader(parent.sentinel, stop.set)
    with on_end_signals(stop.set):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(work)
            stopping = group.create_task(stop.wait())
            beside = [group.create_task(_keep_beating(beat)), group.create_task(keep_aside())]
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (running, stopping, *beside):
                task.cancel()


async def _keep_beating(beat: Beat) -> None:
    while True:
        beat.value = time.monotonic()  # of the whole machine, so that the parent can compare it with its own
        await asyncio.sleep(BEAT_PERIOD_S)
