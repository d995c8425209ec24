"""Hooks: the prolog and epilog, programs that the node's operator has run before and after each task.

A prolog that fails means that this node can't run tasks as it should, an epilog that fails that it may not be left as
the next task needs it; either way the node takes nothing new until somebody has looked. Both run as the agent's user,
or as the one that its settings name, never as the job's; with their output in the task's folder, in hooks.log.
"""

import ctypes
import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from farside.agent import messages as m
from farside.agent.run.account import identity
from farside.agent.run.environment import PATH_DEFAULT
from farside.errors import ConfigError
from farside.log import last_line

LOG = "hooks.log"
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


class Hooks(Struct, frozen=True, kw_only=True):
    """Programs to run around each task; an empty argv: none. ``user`` empty: as the agent."""

    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    limit_s: float = 60.0
    user: str = ""


def hooks_of(prolog: str, epilog: str, *, user: str, limit_s: float) -> Hooks:
    """Hooks as settings name them, quoted as for a shell.

    Raises:
        ConfigError: One is not an absolute path, or there is no such user here.
    """
    if user:
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise ConfigError(f"hook_user: there is no user {user} on this node") from None
    return Hooks(prolog=_argv("prolog", prolog), epilog=_argv("epilog", epilog), limit_s=limit_s, user=user)


def _argv(name: str, text: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}", hint="quote it as for a shell") from error
    if argv and not argv[0].startswith("/"):
        raise ConfigError(f"{name}: {argv[0]} is not an absolute path", hint="write the program's full path")
    return argv


def hook_environment(start: m.Start, account: str, end: m.TaskState | None = None) -> Mapping[str, str]:
    """Environment of a hook: the task, and how it ended if it has."""
    spec = start.spec
    told = {
        "PATH": PATH_DEFAULT,
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": ",".join(part or str(gpu) for gpu, part in spec.devices),
        "FARSIDE_JOB": m.job_of_task(start.task_id),
        "FARSIDE_TASK": start.task_id,
        "FARSIDE_START": str(start.start),
        "FARSIDE_USER": account,
        "FARSIDE_CHECKPOINT_DIR": spec.checkpoint_dir,
    }
    if end is not None:
        told["FARSIDE_EXIT_CODE"] = "" if end.exit_code is None else str(end.exit_code)
        told["FARSIDE_SIGNAL"] = "" if end.signal is None else str(end.signal)
    return told


def run_hook(
    argv: Sequence[str],
    hooks: Hooks,
    folder: Path,
    environment: Mapping[str, str],
    *,
    wait: Callable[[float], bool],
) -> str:
    """Run a hook to its end; returns what went wrong, or an empty text.

    Args:
        argv: Program and arguments.
        hooks: Its limit, and as whom.
        folder: Of the task.
        environment: All that it gets.
        wait: Waits up to this number of seconds for a signal, and says whether the hook is to be given up.
    """
    end_s = time.monotonic() + hooks.limit_s
    with (folder / LOG).open("ab") as log:
        try:
            entry = pwd.getpwnam(hooks.user) if hooks.user else None
            process = subprocess.Popen(
                argv,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A process group of its own, which is killed as a whole at the end.
                start_new_session=True,
                preexec_fn=_as_a_child,
                **(identity(hooks.user, entry.pw_uid, entry.pw_gid) if entry is not None else {}),
            )
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            return f"{argv[0]}: {getattr(error, 'strerror', None) or error}"
        problem = ""
        while not problem and not _has_ended(process.pid):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                problem = f"{argv[0]} has not ended within {hooks.limit_s:g} s"
            elif wait(min(left_s, _LOOK_S)):
                problem = "given up"
        # What it left behind goes too; it had its time. Only then is it reaped: until then no other has its number.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if problem or code == 0:
        return problem
    how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    return ": ".join(filter(None, (f"{argv[0]} {how}", last_line(folder / LOG)[:120])))


def _has_ended(pid: int) -> bool:
    # WNOWAIT: it stays a zombie, so that its number belongs to no other process before its group is killed.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _as_a_child() -> None:
    # After the change of identity, which clears it: a task supervisor that is killed takes its hook along.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
