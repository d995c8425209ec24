"""Child processes of a sandbox: they end with the sandbox, and in order.

Two guards, because either alone has a hole. Each child leads a process group of its own, so that ending it takes its
own children along and a Ctrl-C in the terminal reaches only the sandbox, which then ends them in the right order. And
each child asks the kernel for SIGTERM when its parent dies (PR_SET_PDEATHSIG), so that a sandbox that was killed with
SIGKILL leaves nothing behind either.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from farside.ending import die_with
from farside.errors import PeerError
from farside.sandbox.settings import PATIENCE

END_LIMIT_S = 8.0 * PATIENCE
# To a borrower one SIGTERM means "when your clients have left", a second one means "now".
PATIENCE_S = 0.5


class Child:
    """One `farside` process and its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    @property
    def pid(self) -> int:
        """Process id, also the id of its group."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """False once it has ended and been waited for."""
        return self.process.returncode is None

    async def end(self) -> None:
        """Ends it: SIGTERM, once more after `PATIENCE_S`, and SIGKILL for what is left of its group at the end."""
        for limit_s in (PATIENCE_S, END_LIMIT_S):
            if self.is_running:
                self.process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await self.process.wait()
        _kill_group(self.pid)
        await self.process.wait()


async def start(name: str, arguments: Sequence[str], *, log: Path) -> Child:
    """Starts `farside ARGUMENTS` with its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command(*arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent, signal.SIGTERM),
        )
    return Child(name, process)


def kill_leftover(pid: int, state: Path) -> None:
    """Ends a child, and its own children, that a sandbox in that folder left behind when it was killed.

    Nothing happens when it has ended, or when another process has its number by now.

    Raises:
        PeerError: it does not go away.
    """
    try:
        process = psutil.Process(pid)
        if not any(word.startswith(f"{state}/") for word in process.cmdline()):
            return
        family = [process, *process.children(recursive=True)]
        for one in family:
            one.kill()
    except psutil.Error:
        return  # it ended by itself
    if psutil.wait_procs(family, timeout=END_LIMIT_S)[1]:
        raise PeerError(f"process {pid}, which a killed sandbox in {state} left behind, does not end")


def command(*arguments: str) -> list[str]:
    """Command line of `farside` by the interpreter that runs us."""
    return [sys.executable, "-m", "farside", *arguments]


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing was left
