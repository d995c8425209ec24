"""Launch of a task on its node: the last steps of a new process before it becomes the user's program.

`scheduler/manager/decider/launch.py` has another work: it decides in the manager which jobs can start.

The order matters: into the cgroup while still privileged; then the user's identity; and only then files and folders,
so that the user's own permissions decide about them.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farside.agent import messages as m
from farside.agent.profile.library import Preload
from farside.agent.run.account import Account, become
from farside.agent.run.containment import Containment
from farside.agent.run.environment import NO_NAMES, environment, with_library

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
FAULT_BYTES_MAX = 512
# What a shell says of a program that is not there, and of one that is and cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_FAILED = 1  # of our own process, before it came to the program
LOOK_EVERY_S = 0.1  # whether to go on waiting; most programs start in less

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A program that runs, or why it does not; then with a shell's exit code, if it is the program's own fault."""

    pid: int = 0
    fault: str = ""
    exit_code: int | None = None


class _NotExecuted(OSError):
    """execve(2) refuses the program."""


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def launch(
    start: m.Start,
    account: Account,
    held_by: Containment,
    *,
    mark: str,
    ready_fd: int,
    given_up: Callable[[], str],
    profiled_by: Preload | None = None,
    gpu_names: Mapping[int, str] = NO_NAMES,
) -> Launched:
    """Starts the task's program.

    ``ready_fd`` is what the program finds as FARSIDE_READY; it is closed here. ``given_up`` is asked again and again
    while the user's files and folders keep us waiting, and says why to end that; empty: go on.
    """
    # execve(2) closes the new process's end (O_CLOEXEC): an end of the pipe without a word means that the program runs.
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _run(partial(_become_the_program, start, account, held_by, mark, ready_fd, profiled_by, gpu_names), theirs)
    # Our copy must go, or the end of the pipe would never be seen.
    os.close(theirs)
    os.close(ready_fd)
    with os.fdopen(ours, "rb") as said:
        fault = ""
        while not fault and not select.select([said], [], [], LOOK_EVERY_S)[0]:
            fault = given_up()
        # Given up: its own word, if there is one, does not count any more.
        if fault:
            os.kill(pid, signal.SIGKILL)
        else:
            fault = said.read(FAULT_BYTES_MAX).decode(errors="replace")
    # Once the program runs, its parent waits for it; a process that did not come so far is reaped here.
    if not fault:
        return Launched(pid=pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Launched(fault=fault, exit_code=code if code in (NOT_FOUND, NOT_EXECUTABLE) else None)


def _run(become_the_program: Callable[[], None], report: int) -> None:
    code = _FAILED
    try:
        become_the_program()
    except BaseException as error:  # whatever it was: this process must never return into the task supervisor's code
        if isinstance(error, _NotExecuted):
            code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        # At most 512 bytes: a pipe takes up to PIPE_BUF (4096) at once and whole.
        os.write(report, _fault(error).encode()[:FAULT_BYTES_MAX])
    finally:
        os._exit(code)


def _become_the_program(
    start: m.Start,
    account: Account,
    held_by: Containment,
    mark: str,
    ready_fd: int,
    profiled_by: Preload | None,
    gpu_names: Mapping[int, str],
) -> None:
    spec = start.spec
    # A session of its own: what signals the supervisor's process group does not reach the task.
    os.setsid()
    held_by.enter()
    if account.becomes:
        os.fchown(ready_fd, account.uid, account.gid)  # or the user could not open it by its name
    os.set_inheritable(ready_fd, True)
    become(account)
    # Set after the change of identity, which clears it: a task supervisor that is killed takes the program along.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.umask(spec.umask)
    # From here on every file is touched as the user, and may hang; the supervisor can still end this process.
    os.chdir(spec.cwd or account.home)
    _check_checkpoint_folder(spec.checkpoint_dir)
    _connect_output(spec)
    _plain_signals()
    pipe = os.fstat(ready_fd)
    told = environment(
        start, user=account.name, home=account.home, shell=account.shell, ready_fd=ready_fd,
        ready_pipe=f"{pipe.st_dev}:{pipe.st_ino}", gpu_names=gpu_names,
    )  # fmt: skip
    # One that the user may not read would make the loader complain in the job's own output.
    if profiled_by is not None and os.access(profiled_by.library, os.R_OK):
        told = with_library(told, profiled_by.library, profiled_by.variables)
    try:
        os.execvpe(spec.argv[0], list(spec.argv), {**told, "FARSIDE_MARK": mark})  # noqa: S606 - a shell is what the user may name
    except OSError as error:  # a search along PATH ends with an error that names no file
        raise _NotExecuted(error.errno, error.strerror, spec.argv[0]) from None


def _check_checkpoint_folder(path: str) -> None:
    # Checked at submission on the nodes that were there; this one may have come later, or the folder have gone.
    if path and not os.path.isdir(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if path and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _connect_output(spec: m.TaskSpec) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    out = _open_output(spec.stdout) if spec.stdout else nothing
    err = _open_output(spec.stderr) if spec.stderr else out
    for number, fd in enumerate((nothing, out, err)):
        os.dup2(fd, number)


def _open_output(path: str) -> int:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        # Before opening for a plain reason, and after it for what was opened: the path may name another file by then.
        _check_kind(os.stat(path), path)
    # A pipe that was put there just now must not keep us waiting for its reader, nor a terminal become the task's.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o666)  # less the umask, which is the submitter's [L4]
    _check_kind(os.fstat(fd), path)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    return fd


def _check_kind(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISCHR(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or disk"
        raise OSError(errno.EINVAL, f"is {kind}, and output goes into a file", path)


def _plain_signals() -> None:
    # Python ignores SIGPIPE and the task supervisor blocks some; a program expects neither.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _fault(error: BaseException) -> str:
    if isinstance(error, OSError):
        return ": ".join(filter(None, (os.fsdecode(error.filename or ""), error.strerror or str(error))))
    return f"{type(error).__name__}: {error}"
