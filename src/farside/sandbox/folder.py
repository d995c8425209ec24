"""The sandbox's folder: claimed before the first write, and restored at the end.

A sandbox takes a folder that is not there yet, an empty one, or one that a sandbox left behind when it was killed; the
lock file tells the last of these apart, and whether one is at work in it. So whatever bears one of our names in a
claimed folder is ours to remove, and a folder with anybody else's files is never touched.

Nobody else may enter it meanwhile: a user who reaches the sockets in it has programs run as the sandbox's user.
"""

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from farside.endpoint import socket_path
from farside.errors import ConfigError
from farside.listen import clear_stale
from farside.sandbox.cluster import agent_folder, end_tasks
from farside.sandbox.files import socket_of
from farside.sandbox.layout import FILES, FOLDERS, LOCK_NAME, RECORD_NAME, ProcessRecord, read_record
from farside.sandbox.pressure import donor_folder
from farside.sandbox.process import kill_leftover
from farside.whole_file import lock_file


@contextmanager
def claimed(state: Path) -> Iterator[None]:
    """Makes `state` this sandbox's own for the body of the `with`, and removes the sandbox's files afterwards.

    What a killed sandbox left there, processes and files, goes first.

    Raises:
        ConfigError: it can't be made or closed to others, is somebody else's, or a sandbox runs in it.
    """
    with ExitStack() as stack:
        try:
            made = [folder for folder in (state, *state.parents) if not folder.exists()]
            with suppress(FileExistsError):
                state.mkdir(mode=0o700, parents=True)
            stack.callback(_remove_empty, made)
            stack.enter_context(_closed(state))
            lock = _lock(state)
        except OSError as error:
            raise ConfigError(f"--state {state}: {error.strerror}", hint="name a folder that can be made") from error
        try:
            _clear(state)
            yield
        finally:
            _clear(state)
            (state / LOCK_NAME).unlink(missing_ok=True)
            os.close(lock)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # somebody has put something there meanwhile
            folder.rmdir()


@contextmanager
def _closed(state: Path) -> Iterator[None]:
    """Nobody else can enter the folder during the body; what others could have put in before is not trusted."""
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"--state {state}: belongs to {_user(found.st_uid)}, who could have programs run as you",
                hint="name a folder of your own, or one that does not exist",
            )
        os.fchmod(fd, 0o700)
        try:
            if mode & 0o022 and any(state.iterdir()):
                raise ConfigError(
                    f"--state {state}: holds files, and others may write there",
                    hint=f"empty it, or check its files and then: chmod 700 {state}",
                )
            yield
        finally:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def check_length(state: Path, *, has_cluster: bool) -> None:
    """Check that the longest path of a socket in the folder fits; those of a cluster's agents are the longest.

    Raises:
        ConfigError: it is too long for that.
    """
    longest = (
        agent_folder(state, "n64") / "state" / "agent.notify"
        if has_cluster
        else donor_folder(state, "d64") / "control.sock"
    )
    try:
        socket_path(os.fspath(longest))
    except ValueError:
        raise ConfigError(f"--state {state}: is too long for the sockets in it", hint="name a shorter path") from None


def _lock(state: Path) -> int:
    path = state / LOCK_NAME
    if not path.exists() and any(state.iterdir()):
        raise ConfigError(
            f"--state {state}: holds files that no sandbox made",
            hint="name an empty folder, or one that does not exist",
        )
    fd = lock_file(path)
    if fd is not None and os.fstat(fd).st_nlink == 0:  # that sandbox ended just now, and took the file with it
        os.close(fd)
        fd = None
    if fd is None:
        raise ConfigError(f"a sandbox runs in {state} already", hint="end it, or name another folder")
    return fd


def _clear(state: Path) -> None:
    with suppress(ConfigError):  # no record: it ended before it had started anything
        record = read_record(state)
        cluster: tuple[ProcessRecord, ...] = ()
        if record.cluster is not None:
            told = record.cluster
            cluster = (told.manager, *told.agents, *told.aggregators, *told.executors)
        for process in (record.blockdev, *record.donors, *cluster):
            kill_leftover(process.pid, state)
        if cluster:
            end_tasks(state)
        for path in filter(None, map(socket_of, record.uris)):
            with suppress(OSError):  # another process serves it by now
                clear_stale(os.fspath(path))
    for file in (*(state / name for name in FILES), *state.glob(f".{RECORD_NAME}.*")):
        file.unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(state / name, ignore_errors=True)
