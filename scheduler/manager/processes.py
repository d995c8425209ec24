"""Child processes that run as long as their parent: each is started again when it ends, and killed when it hangs.

How it works
  The parent has everything imported before it forks the first part, and shares those pages with all of them: a part
  that was killed is back in milliseconds. It opens neither the store nor a connection, as a forked child would inherit
  both, and it has no threads but those of numpy's library, which that one ends before each fork. When it is killed, the
  kernel ends its parts.

  A part that hangs is as bad as one that has ended: each writes the time into memory that it shares with the parent,
  from its event loop, and one that has not for its `Part.hang_s` is killed and started again. systemd watches the
  parent.
"""

import asyncio
import gc
import json
import math
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn, TypeAlias

from farside.config import ManagerConfig
from farside.ending import ENDING, on_end_signals, run_forked
from farside.errors import ConfigError, FarsideError, first_of
from farside.log import get_log
from farside.notify import notify_systemd, watchdog_period_s
from farside.scheduler.manager.garbage_collection import keep_aside
from farside.whole_file import write_whole

PIDS = "manager.json"
# Between the end of a part and its next start: short at first, longer when it keeps ending.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
# A part that ran so long has not been ending at once.
LONG_ENOUGH_S = 10.0
# Less than who ends the manager waits for it: a sandbox 8.5 s, systemd 90 s. A part that is killed loses nothing.
END_LIMIT_S = 6.0
BEAT_PERIOD_S = 1.0
# Its second number counts beats. The first one comes as a part begins, and the third after its loop has turned freely.
TURNS, LOADED_TURNS = 1, 3

Beat: TypeAlias = "memoryview[float]"
"""Two numbers: time.monotonic() when the part's event loop last turned, 0 if it has not; and how often it has."""
Work: TypeAlias = Callable[[ManagerConfig], Coroutine[None, None, None]]

_log = get_log("manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A child process: the function that it runs. An event loop that has not turned for ``hang_s`` hangs.

    At its start it may take ``load_s``, as it may have a long log to read before its loop turns.
    """

    work: Work
    hang_s: float
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Child:
    """The process of a part."""

    pidfd: int  # becomes readable when it ends
    beat: Beat


class Parts:
    """The parts by name, started again as often as they end."""

    def __init__(self, config: ManagerConfig, parts: Mapping[str, Part]) -> None:
        self._config = config
        self._keepers = {name: _Keeper(name, part) for name, part in parts.items()}
        self._stops = 0  # how often we were told to
        # The exit code of a part that cannot be configured: starting it again would fail in the same way.
        self._failure = 0

    def run(self) -> int:
        """Runs them until SIGTERM or SIGINT, or until one can't be configured; the exit code."""
        woken, wake = socket.socketpair()
        with woken, wake:
            woken.setblocking(False)
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
            for number in ENDING:
                signal.signal(number, self._on_end)
            # What is imported stays shared with all parts: the collector would touch, and so copy, each page of it.
            gc.collect()
            gc.freeze()
            while not (self._stops or self._failure):
                self._start_due()
                self._wait(woken, min(self._next_start_s(), BEAT_PERIOD_S))
                self._collect()
                self._look()
            self._end(woken)
            signal.set_wakeup_fd(-1)
        (self._config.state_dir / PIDS).unlink(missing_ok=True)
        return self._failure

    def _start_due(self) -> None:
        due = [keeper for keeper in self._keepers.values() if keeper.child is None and keeper.is_due()]
        for keeper in due:
            keeper.fork(self._config)
        if due:
            self._write_pids()

    def _next_start_s(self) -> float:
        """Seconds until a part is due that pauses now; inf: none does."""
        return min((keeper.due_in_s() for keeper in self._keepers.values() if keeper.child is None), default=math.inf)

    def _wait(self, woken: socket.socket, limit_s: float) -> None:
        """Until a part ends or a signal comes, at most that long."""
        running = [keeper.child.pidfd for keeper in self._keepers.values() if keeper.child is not None]
        ready, _, _ = select.select([woken.fileno(), *running], [], [], limit_s)
        if woken.fileno() in ready:
            woken.recv(4096)

    def _collect(self) -> None:
        """Notes which parts have ended, and when they are started again."""
        for name, keeper in self._keepers.items():
            code = keeper.collected()
            if code is None or self._stops:
                continue
            if code == ConfigError.exit_code:
                # The same settings fail again, so all parts are ended and systemd gets the exit code.
                self._failure = code
                return
            _log.error(
                "a process of the manager ended and is started again", part=name, exit_code=code, pause_s=keeper.rest()
            )

    def _look(self) -> None:
        """Kills parts that hang, and notifies systemd that this process does not."""
        if watchdog_period_s() > 0:
            notify_systemd("WATCHDOG=1")
        for name, keeper in self._keepers.items():
            if (silent_s := keeper.silent_s()) > keeper.hang_s():
                _log.error("a process of the manager hangs and is killed", part=name, silent_s=silent_s)
                # SIGTERM would be handled by the loop that does not turn.
                keeper.send(signal.SIGKILL)

    def _end(self, woken: socket.socket) -> None:
        """Ends all parts; those that have not after `END_LIMIT_S` are killed."""
        deadline_s = time.monotonic() + END_LIMIT_S
        for keeper in self._keepers.values():
            keeper.send(signal.SIGTERM)
        while any(keeper.child is not None for keeper in self._keepers.values()):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                for keeper in self._keepers.values():
                    keeper.send(signal.SIGKILL)
            if watchdog_period_s() > 0:
                notify_systemd("WATCHDOG=1")
            self._wait(woken, min(max(left_s, BEAT_PERIOD_S / 10), BEAT_PERIOD_S))
            for keeper in self._keepers.values():
                keeper.collected()

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1

    def _write_pids(self) -> None:
        """For `farside status`, and whoever wants to end a part."""
        told = {"manager": os.getpid()} | {name: keeper.pid for name, keeper in self._keepers.items()}
        written = json.dumps({"pids": told, "listen": self._config.listen}).encode()
        write_whole(self._config.state_dir / PIDS, written, mode=0o644)


class _Keeper:
    """One part: its process now, or when it gets the next one."""

    def __init__(self, name: str, part: Part) -> None:
        self._name = name
        self.part = part
        self.child: _Child | None = None
        self.pid = 0
        self._begun_s = self._due_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def is_due(self) -> bool:
        return self.due_in_s() == 0.0

    def due_in_s(self) -> float:
        return max(0.0, self._due_s - time.monotonic())

    def fork(self, config: ManagerConfig) -> None:
        """Starts the part."""
        # A new one for each start, at 0: the last beat of an ended process must not count against its successor. It
        # needs no lock: one process writes it, and an aligned double is written at once.
        beat = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        parent = os.getpid()
        self._begun_s = time.monotonic()
        # Blocked, so that no signal for the child finds the parent's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self.pid = os.fork()
        if self.pid == 0:
            _become(parent, self._name, self.part.work, config, beat)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self.child = _Child(os.pidfd_open(self.pid), beat)

    def collected(self) -> int | None:
        """Exit code of a process that has ended since, by itself or by a signal (-9); None: there is none."""
        if self.child is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        os.close(self.child.pidfd)
        self.child = None
        return os.waitstatus_to_exitcode(status)

    def rest(self) -> float:
        """Seconds until the next start: more where parts end at once, few after one that ran for a while."""
        now_s = time.monotonic()
        pause_s = FIRST_PAUSE_S if now_s - self._begun_s > LONG_ENOUGH_S else self._pause_s
        self._due_s = now_s + pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        return pause_s

    def silent_s(self) -> float:
        """How long its event loop has not turned; 0.0 where it has not begun."""
        beat_s = self.child.beat[0] if self.child is not None else 0.0
        return time.monotonic() - beat_s if beat_s else 0.0

    def hang_s(self) -> float:
        """How long its event loop may be silent now."""
        is_loading = self.child is None or self.child.beat[TURNS] < LOADED_TURNS
        return max(self.part.load_s, self.part.hang_s) if is_loading else self.part.hang_s

    def send(self, number: signal.Signals) -> None:
        """Nothing happens where it has ended."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.child.pidfd, number)


# ---------------------------------------------------------------------------------------------- in a part


def _become(parent: int, name: str, work: Work, config: ManagerConfig, beat: Beat) -> NoReturn:
    """Is the part, in a process that was just forked."""

    def begin() -> None:
        signal.set_wakeup_fd(-1)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
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

    run_forked(parent, begin, lambda error: _log.error("ends", part=name, reason=error))


async def _until_told(work: Coroutine[None, None, None], beat: Beat) -> None:
    """Runs until a signal."""
    stop = asyncio.Event()
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
        beat[TURNS] += 1
        beat[0] = time.monotonic()  # of the whole machine, so that the parent can compare it with its own
        await asyncio.sleep(BEAT_PERIOD_S)
