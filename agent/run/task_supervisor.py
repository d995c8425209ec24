"""Task supervisor, the process beside each task: starts the program, waits for all its processes, records its end.

How it works: the agent makes the task's folder, takes its lock, and starts this program with the locked descriptor, so
that the folder is locked from before the supervisor exists until it ends. A process that finds the lock free knows that
no supervisor runs. The supervisor belongs to no session: it goes on when the agent is killed, updated or stopped, and
the next agent reads what is in the folder::

    task.json    what to run, as whom, in which cgroup          written by the agent, before the supervisor starts
    state.json   the state of the task, and its process ids     written by the supervisor
    stop.json    the order to end, why and within what time     written by the agent, then SIGUSR1
    limit.json   a longer time limit                            written by the agent, read when the one before is up
    lock         held while the supervisor lives
    claimed      made by the supervisor first of all: where it exists, no second supervisor begins

Guarantees: the state says ``running`` only once the program was executed; a final state is on the disk before the lock
is free; and before a final state is written no process of the task is left. Exit code and signal are the program's own.

Rejected: the agent as parent of the tasks (its end would be theirs, or would lose their exit codes), systemd services
for tasks (not everywhere, and the exit code is gone with the unit).
"""

import fcntl
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farside.agent import messages as m
from farside.agent.run import task_folder as files
from farside.agent.run.containment import containment, send
from farside.agent.run.fence import FenceWatch
from farside.agent.run.hook import hook_environment, run_hook
from farside.agent.run.launch import adopt_orphans, launch
from farside.agent.run.ready_lines import ReadyLines
from farside.agent.run.task_folder import Recipe, Status

if TYPE_CHECKING:
    from farside.agent.profile.profiler import Profiler

LOOK_EVERY_S = 0.02  # while waiting for what was killed
FOREVER_S = 3600.0
DEAF_S = 1.0  # after what a program said by FARSIDE_READY: one that goes on writing costs a look in that time
LAUNCH_LIMIT_S = 60.0
"""For the user's files and folders to be there: an automounter needs seconds, a server that is gone never answers."""
_READY_BYTES = 65536  # all that a pipe holds
# Blocked by `keep`, and taken by sigtimedwait(2) only: none is lost between a look and the wait, and no handler runs in
# the middle of something. One that comes while another of its kind is pending is merged with it, so after each signal
# everything is looked at.
_WATCHED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGIO)


class TaskSupervisor:
    """Supervisor of one task, from its start to its end."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder = folder
        self._recipe = recipe
        self._held = containment(recipe.cgroup, recipe.devices)
        self._pid = 0
        self._given_up = ""  # why the prolog was, or the start
        self._kind = m.EndKind.OTHER  # of its end, as far as it is known
        self._is_known = False  # its state has been written
        self._used_s = 0.0  # by the prolog
        self._ready = -1  # where the program says that it is ready
        self._said = ReadyLines()  # what it says there
        self._deaf_until_s: float | None = None  # CLOCK_MONOTONIC; None: what it says there wakes us
        self._profiler: Profiler | None = None  # of a task that is to be profiled
        self._fence = FenceWatch(recipe.fence)
        self._is_fenced = False
        self._exit: int | None = None  # wait status of the program, once it ended
        self._kill_at_s: float | None = None  # CLOCK_MONOTONIC
        self._state = m.TaskState(
            task_id=recipe.start.task_id, start=recipe.start.start, state="starting", at_s=time.time(),
            submitted_s=recipe.start.submitted_s,
        )  # fmt: skip

    def run(self) -> None:
        """Runs the task and returns when nothing is left of it and its end is on the disk."""
        spec = self._recipe.start.spec
        self._write_first()
        if not self._prepare() or self._is_fenced_off():
            return
        self._ready, ready_fd = _ready_pipe()
        self._profiler = self._make_profiler()
        begun_s = time.monotonic()
        launched = launch(
            self._recipe.start,
            self._recipe.account,
            self._held,
            mark=self._recipe.mark,
            ready_fd=ready_fd,
            given_up=lambda: self._why_give_up(time.monotonic() - begun_s),
            profiled_by=self._profiler.preload if self._profiler is not None else None,
            gpu_names=self._recipe.gpu_names,
        )
        self._pid = launched.pid
        if launched.fault:
            # Before the end is written: GPUs of a task with an end are given to the next.
            self._clear()  # it may have begun just before it was given up
            self._end_profile(self._state)
            code = launched.exit_code
            cause = launched.fault if code is None else m.NOT_STARTED + launched.fault
            kind = self._kind if code is None else m.EndKind.NOT_EXECUTED
            state = "lost" if self._is_fenced else "exited"
            ended = msgspec.structs.replace(self._state, state=state, exit_code=code, cause=_clipped(cause), kind=kind)
            self._finish(ended)
            return
        # What the prolog and the start took does not count.
        limit_s, launched_s = spec.time_limit_s, time.monotonic()
        deadline_s = launched_s + limit_s if limit_s else None
        self._say(state="running", at_s=time.time())
        # 1. Reap, and see whether it is over. 2. Order its end at its limit, or when its node has lost the manager. 3.
        # Kill what had its grace. 4. Read the profile. 5. Wait for a signal, or for the next of these moments.
        while not self._is_over():
            self._look_at_fence()
            if deadline_s is not None and time.monotonic() >= deadline_s and self._kill_at_s is None:
                limit_s = files.time_limit_s(self._folder, self._recipe.start)  # it may have been extended
                deadline_s = launched_s + limit_s
                if time.monotonic() >= deadline_s:
                    self._end(f"{m.TIME_LIMIT} of {limit_s:g} s", spec.grace_s, m.EndKind.TIME_LIMIT)
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._held.kill()
            self._look_at_profile()
            self._wait(deadline_s)
        self._hear_ready()  # it may have ended right after it said so
        self._clear()
        self._finish(self._after_epilog(self._end_profile(self._final())))

    def _write_first(self) -> None:
        """Write the first state where a prolog runs: the agent needs the process id to signal a stop."""
        if self._recipe.hooks.prolog:
            with suppress(OSError):
                self._write()

    def _prepare(self) -> bool:
        """Runs the prolog; False: it failed, or was given up, and that is the end of this task."""
        hooks, recipe = self._recipe.hooks, self._recipe
        if not hooks.prolog:
            return True
        told = hook_environment(recipe.start, recipe.account.name)
        problem = run_hook(hooks.prolog, hooks, self._folder, told, wait=self._is_given_up)
        # The kernel adds up all children that were waited for: what the prolog used is taken off at the end.
        self._used_s = _children_s()
        if not problem:
            return True
        said = _clipped(self._given_up or m.PROLOG + problem)
        ended = msgspec.structs.replace(self._state, state="exited", at_s=time.time(), cause=said, kind=self._kind)
        if not self._given_up:
            ended = msgspec.structs.replace(ended, kind=m.EndKind.UNPREPARED, unfit=said)
        self._finish(ended)
        return False

    def _is_given_up(self, limit_s: float) -> bool:
        order = self._order_of(signal.sigtimedwait(_WATCHED, limit_s))
        if order is not None:
            self._given_up = order.cause or "stopped"
        return bool(self._given_up)

    def _order_of(self, got: signal.struct_siginfo | None) -> files.StopOrder | None:
        """The order to end that a signal brings; None: it brings none."""
        if got is not None and got.si_signo == signal.SIGTERM:
            return files.StopOrder(cause="the node is shutting down", grace_s=self._recipe.start.spec.grace_s)
        return files.read(self._folder, files.StopOrder) if got is not None and got.si_signo == signal.SIGUSR1 else None

    def _why_give_up(self, waited_s: float) -> str:
        """Why not to wait any longer for the program's start; empty: wait."""
        if not self._is_known:
            with suppress(OSError):
                self._write()  # the next agent needs the process id to signal a stop
        limit_s = self._recipe.start.spec.time_limit_s
        if self._is_given_up(0):
            return self._given_up
        self._fence.look()
        if self._fence.is_over:
            self._is_fenced = True
            return self._fence.cause
        if limit_s and waited_s >= limit_s:
            self._kind = m.EndKind.TIME_LIMIT
            return f"{m.TIME_LIMIT} of {limit_s:g} s"
        if waited_s >= LAUNCH_LIMIT_S:
            return f"not started within {LAUNCH_LIMIT_S:g} s: its folder, output or program does not answer"
        return ""

    def _after_epilog(self, end: m.TaskState) -> m.TaskState:
        """How it ended, and why the node is unfit now, if it is. Its GPUs are its own until the epilog has ended."""
        hooks, recipe = self._recipe.hooks, self._recipe
        if not hooks.epilog:
            return end
        told = hook_environment(recipe.start, recipe.account.name, end)
        problem = run_hook(hooks.epilog, hooks, self._folder, told, wait=_until_signal)
        return msgspec.structs.replace(end, unfit=_clipped(f"epilog: {problem}")) if problem else end

    def _is_fenced_off(self) -> bool:
        """True where the fence came before the program: it is not started, and that is the end of this task."""
        self._fence.look()
        if self._fence.is_over:
            self._finish(msgspec.structs.replace(self._state, state="lost", at_s=time.time(), cause=self._fence.cause))
        return self._fence.is_over

    def _look_at_fence(self) -> None:
        self._fence.look()
        if self._fence.is_over and not self._is_fenced:
            self._is_fenced = True
            self._end(self._fence.cause, min(self._recipe.start.spec.grace_s, self._fence.grace_s))

    def _make_profiler(self) -> "Profiler | None":
        if not self._recipe.profile:
            return None
        from farside.agent.profile.profiler import Profiler  # few tasks need it

        account = self._recipe.account
        return Profiler(Path(self._recipe.profile), uid=account.uid, gid=account.gid, now_s=time.monotonic())

    def _look_at_profile(self) -> None:
        """Report the profile as soon as there is one."""
        if self._profiler is None or self._profiler.due_s > time.monotonic() or self._kill_at_s is not None:
            return
        found = self._profiler.look(time.monotonic())
        if found is not None:
            self._say(profile=found)

    def _end_profile(self, end: m.TaskState) -> m.TaskState:
        """The end of the task with all that its messages say."""
        return end if self._profiler is None else msgspec.structs.replace(end, profile=self._profiler.close())

    def _is_over(self) -> bool:
        """True when the program has ended and, after an order to stop, its children have ended or had their grace."""
        self._reap()
        if self._exit is None:
            return False
        # After an order to stop, children may use the grace, as for a checkpoint. Without one, the program's end is the
        # task's.
        is_waiting = self._kill_at_s is not None and time.monotonic() < self._kill_at_s
        return not is_waiting or not self._held.pids()

    def _wait(self, deadline_s: float | None) -> None:
        now_s = time.monotonic()
        look_at_s = self._profiler.due_s if self._profiler is not None else None
        ahead = (deadline_s, self._kill_at_s, look_at_s, self._deaf_until_s)
        moments = [when_s for when_s in ahead if when_s is not None and when_s > now_s]
        limit_s = min((FOREVER_S, self._fence.wait_s, *(when_s - now_s for when_s in moments)))
        if self._exit is not None or (self._kill_at_s is not None and now_s >= self._kill_at_s):
            limit_s = min(limit_s, LOOK_EVERY_S)  # not every process that we wait for is our child
        got = signal.sigtimedwait(_WATCHED, limit_s)
        if (order := self._order_of(got)) is not None:
            self._end(order.cause, order.grace_s)
        elif got is not None and got.si_signo == signal.SIGIO:
            _tell_of(self._ready, is_wanted=False)
            self._deaf_until_s = time.monotonic() + DEAF_S
            self._hear_ready()
        if self._deaf_until_s is not None and time.monotonic() >= self._deaf_until_s:
            self._deaf_until_s = None
            _tell_of(self._ready, is_wanted=True)
            self._hear_ready()

    def _hear_ready(self) -> None:
        # The pipe is emptied each time: a program that goes on writing must not wait for room in it.
        with suppress(BlockingIOError):
            self._said.hear(os.read(self._ready, _READY_BYTES))
        if self._said.is_ready and self._state.ready_at_s is None:
            self._say(ready_at_s=time.time())

    def _end(self, cause: str, grace_s: float, kind: m.EndKind = m.EndKind.OTHER) -> None:
        """SIGTERM to all, once; a later order can only shorten the grace."""
        kill_at_s = time.monotonic() + grace_s
        if self._kill_at_s is not None:
            self._kill_at_s = min(self._kill_at_s, kill_at_s)
            return
        self._kill_at_s = kill_at_s
        self._kind = kind
        self._say(state="stopping", at_s=time.time(), cause=_clipped(cause))
        send(self._held.pids(), signal.SIGTERM)

    def _reap(self) -> None:
        # As a subreaper this process is the parent of every orphan of the task: all of them are reaped, not the program
        # alone.
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid and self._exit is None:  # another of its processes may get its number later
                    self._exit = status

    def _clear(self) -> None:
        """Kills what the program left behind; returns when the kernel has taken all of it away."""
        # One that was just being started may be missed by a look: look and kill until none is left.
        while self._held.pids():
            self._held.kill()
            signal.sigtimedwait((signal.SIGCHLD,), LOOK_EVERY_S)
            self._reap()
        self._reap()

    def _final(self) -> m.TaskState:
        assert self._exit is not None
        code = os.waitstatus_to_exitcode(self._exit)
        cause = self._state.cause
        largest_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of one process, not of all together
        # For want of memory the kernel may kill any process of the cgroup, and the program then ends with any code: the
        # cgroup's count says why.
        if self._held.oom_kills():
            cause = f"out of memory: its limit is {self._recipe.start.spec.memory_bytes} bytes"
            self._kind = m.EndKind.OTHER
        return msgspec.structs.replace(
            self._state,
            # Its job goes on elsewhere, if it has not already: that a program ends well when it is told to is no end.
            state="lost" if self._is_fenced else "exited",
            at_s=time.time(),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            cause=cause or ("" if code == 0 else f"exit code {code}" if code > 0 else f"signal {-code}"),
            kind=self._kind,
            cpu_s=max(0.0, _children_s() - self._used_s),
            rss_bytes=largest_kib * 1024,
            iterations=self._said.iterations(),
        )

    # ---- telling

    def _say(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)
        with suppress(OSError):  # a full disk must not end the task; its last state is tried until it is written
            self._write()
        files.notify(self._recipe.notify)

    def _finish(self, state: m.TaskState) -> None:
        self._state = state
        self._held.close()
        while True:
            try:
                self._write()
                break
            except FileNotFoundError:
                break  # the task's folder was taken away: nothing is left that would ask
            except OSError as error:
                with suppress(OSError):  # its log is on the same disk
                    print(f"{self._folder}: {error.strerror}; trying again", file=sys.stderr)  # noqa: T201
                time.sleep(1.0)
        files.notify(self._recipe.notify)

    def _write(self) -> None:
        files.write(self._folder, Status(state=self._state, supervisor_pid=os.getpid(), program_pid=self._pid))
        self._is_known = True


def _until_signal(limit_s: float) -> bool:
    signal.sigtimedwait(_WATCHED, limit_s)
    return False


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ready_pipe() -> tuple[int, int]:
    """A pipe whose reader gets SIGIO when something is written, so that the supervisor waits for signals only."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    # SIGIO goes to the owner of the descriptor.
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    _tell_of(reader, is_wanted=True)
    return reader, writer


def _tell_of(reader: int, *, is_wanted: bool) -> None:
    """Set whether SIGIO comes when something is written; reading never waits."""
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK | (os.O_ASYNC if is_wanted else 0))


def keep(folder: Path, lock: int) -> None:
    """Keeps the task of this folder to its end. SIGUSR1 must be blocked already.

    Raises:
        SystemExit: no task is here, or another task supervisor has it.
    """
    try:
        # O_EXCL: of two supervisors that the agent and a late fork server started, one makes it. It is never removed: a
        # task starts once, also after its supervisor has died.
        os.close(os.open(folder / "claimed", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        sys.exit(f"{folder}: another task supervisor has this task")
    # The program must not inherit the lock, or the folder would look alive for as long as any process of it runs.
    os.set_inheritable(lock, False)
    # No mount is kept busy by this process, however long the task runs.
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # Before the program exists, so that no orphan of it goes to init.
    adopt_orphans()
    recipe = files.read(folder, Recipe)
    if recipe is None:
        sys.exit(f"{folder}: no task is here")
    TaskSupervisor(folder, recipe).run()


def connect_output(folder: Path) -> None:
    """Connect standard input to /dev/null, and output to shepherd.log."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    log = os.open(folder / "shepherd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number, fd in enumerate((nothing, log, log)):
        os.dup2(fd, number)
    os.close(nothing)
    os.close(log)


def main() -> None:
    """``python -m farside.agent.run.task_supervisor FOLDER LOCK_FD``."""
    connect_output(Path(sys.argv[1]))
    keep(Path(sys.argv[1]), int(sys.argv[2]))


def _clipped(cause: str) -> str:
    return cause[: m.CAUSE_CHARS_MAX]


if __name__ == "__main__":
    main()
