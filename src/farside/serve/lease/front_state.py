"""What a front leaves on this machine for the one that is started after it was killed: its plan, on which leases.

The file lies beside the admin socket, is written with each new plan, and is removed by a front that gives its
leases back. Jobs are named in it: where these still run, their workers keep the
executors that the plan tells of.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from farside.errors import FarsideError
from farside.log import get_log
from farside.scheduler.sharing.glet.plan import Glet, Plan
from farside.whole_file import write_whole

VERSION = 1
BYTES_MAX = 1 << 22

_log = get_log("serve.leases")


class FrontState(msgspec.Struct, frozen=True, kw_only=True):
    """``numbers``: of GPUs in the plan, by the job of their lease. ``rates``: measured requests a second by model."""

    version: int = VERSION
    deployment: str
    glets: tuple[Glet, ...]
    numbers: dict[str, int]
    rates: dict[str, float]

    @property
    def plan(self) -> Plan:
        """What was routed."""
        return Plan(glets=self.glets)


class StateFile:
    """The file of one deployment.

    Args:
        path: Where it is.
        deployment: Its name: a file of another one is none of ours.
    """

    def __init__(self, path: Path, deployment: str) -> None:
        self._path, self._deployment = path, deployment
        self._problem = ""

    def read(self) -> FrontState | None:
        """What the front before has left; None: nothing, or nothing of use, which the log names."""
        try:
            content = _own_content(self._path)
            if len(content) > BYTES_MAX:
                raise FarsideError(f"has more than {BYTES_MAX} bytes")
            found = msgspec.json.decode(content, type=FrontState)
            if found.version != VERSION or found.deployment != self._deployment:
                raise FarsideError(f"is version {found.version} of deployment {found.deployment}")
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, FarsideError) as error:
            _log.warning("the plan of the front before is of no use; executors start anew", file=self._path, why=error)
            return None
        return found

    def write(self, plan: Plan, numbers: Mapping[str, int], rates: Mapping[str, float]) -> None:
        """Replaces it; that it can't be written is said once, and costs a restart the executors alone."""
        used = {glet.gpu for glet in plan.glets}
        state = FrontState(
            deployment=self._deployment, glets=plan.glets, rates=dict(rates),
            numbers={job: number for job, number in numbers.items() if number in used},
        )  # fmt: skip
        try:
            write_whole(self._path, msgspec.json.encode(state))
        except OSError as error:
            if not self._problem:
                _log.warning("the plan is not kept for a front after this one", file=self._path, why=error.strerror)
            self._problem = str(error)

    def remove(self) -> None:
        """The leases are given back: there is nothing to take over."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _own_content(path: Path) -> bytes:
    """The first BYTES_MAX + 1 bytes of a file that nobody but this user and root can have written.

    Others may be able to write in the folder: no link is followed, and no pipe waited for.

    Raises:
        OSError: It can't be read, or is a link.
        FarsideError: It is no regular file, another user's, or others may write it.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FarsideError("is no regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise FarsideError(f"belongs to user {status.st_uid}, who is neither this one nor root")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FarsideError("may be written by others than its user")
        return file.read(BYTES_MAX + 1)
