"""Answer to the manager's question about a checkpoint folder, found as the user whose job would run there.

What looks is a process of that user, who may stop it, or speak for it: it knows nothing worth having, and its answer is
taken as a stranger's.
"""

import asyncio
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath
from weakref import WeakValueDictionary

from farside.agent import messages as m
from farside.agent.run import checkpoint_folder
from farside.agent.run.account import Account, Refused, account_of, identity
from farside.agent.run.environment import PATH_DEFAULT

LIMIT_S = 8.0
"""A mount that answers later than this holds a job's start up longer than a person waits at a prompt."""
TURN_LIMIT_S = 5.0
"""To wait for others of the same user: the manager waits for both, and not for ever."""
AT_ONCE_MAX = 4
"""Of one user; each is a process."""
ANSWER_BYTES_MAX = 8192
"""Two lines, one of them a path of at most 4 KiB."""
_FAILED = "this node could not look"


class Prober:
    """Looks at folders, a few of each user's at a time."""

    def __init__(self, *, run_as: str, allowed: Collection[str]) -> None:
        """``run_as`` and ``allowed`` as in `account_of`."""
        self._run_as, self._allowed = run_as, allowed
        # Weak: a user's entry goes with the last that waits or looks.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def answer(self, probe: m.Probe) -> m.Probed:
        """Answer what this user lacks in that folder on this node."""
        try:
            account = account_of(probe.user, run_as=self._run_as, allowed=self._allowed)
        except Refused:
            return m.Probed(probe_id=probe.probe_id, is_refused=True)
        turn = self._turns.setdefault(account.name, asyncio.Semaphore(AT_ONCE_MAX))
        try:
            async with asyncio.timeout(TURN_LIMIT_S):
                await turn.acquire()
        except TimeoutError:
            return m.Probed(probe_id=probe.probe_id, problem="too many folders of this user are looked at; try again")
        try:
            problem, made = await _tried(probe, account)
        except OSError as error:
            problem, made = f"{_FAILED}: {error.strerror}", ""
        finally:
            turn.release()
        return m.Probed(probe_id=probe.probe_id, problem=problem[: m.CAUSE_CHARS_MAX], made=made)


def look(step: str, path: str, mark: str, made: str) -> list[str]:
    """The command that looks. It needs nothing that its user might not read: Farside may lie in a folder of root's."""
    script = Path(checkpoint_folder.__file__).read_text()
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", script, step, path, mark, made]


async def _tried(probe: m.Probe, account: Account) -> tuple[str, str]:
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    reader = asyncio.StreamReader(limit=ANSWER_BYTES_MAX)
    # Not asyncio's own pipe, which stays open for as long as whoever has got hold of its other end likes.
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
    )
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *look(probe.step, probe.path, probe.mark, probe.made),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env={"PATH": PATH_DEFAULT, "LANG": "C.UTF-8"},  # not ours: its user may read it
                umask=0o022,
                **(identity(account.name, account.uid, account.gid) if account.becomes else {}),
            )
        finally:
            os.close(theirs)
        return await _answer_of(process, reader, probe.path)
    finally:
        pipe.close()


async def _answer_of(process: asyncio.subprocess.Process, reader: asyncio.StreamReader, path: str) -> tuple[str, str]:
    told = b""
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(told) <= ANSWER_BYTES_MAX and (more := await reader.read(ANSWER_BYTES_MAX)):
                told += more
            # Read on until it ends or is too long: the process may say anything, for as long as it likes.
            is_too_long = len(told) > ANSWER_BYTES_MAX
            if is_too_long:
                with suppress(ProcessLookupError):
                    process.kill()
            if await process.wait() != 0 or is_too_long:
                return _FAILED, ""
    except TimeoutError:
        return f"does not answer within {LIMIT_S:g} s", ""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()  # and not waited for: what waits for a dead mount can't be killed
    problem, made, *_ = [*told.decode(errors="replace").split("\n"), "", ""]
    return problem, made if _is_on_the_way(made, path) else ""


def _is_on_the_way(made: str, path: str) -> bool:
    """True for the folder and those that it lies in."""
    folder = PurePosixPath(os.path.normpath(path))
    return made in map(str, (folder, *folder.parents))
