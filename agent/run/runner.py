"""Runner of tasks: turns the ledger's commands into task supervisors and signals, and their records into states.

What is on the disk is the truth. Each step is written before it is done. After an agent is killed at any moment, the
next agent finds every task running, ended, or never begun, and starts no task twice.
"""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from farside.agent import messages as m
from farside.agent.gpu_files import GpuFiles
from farside.agent.gpu_share import Device
from farside.agent.profile import ring_file
from farside.agent.run import ledger as rules
from farside.agent.run import task_folder as files
from farside.agent.run.account import Account, Refused, account_of
from farside.agent.run.containment import Cgroup, CgroupRoot, TaskCgroup, leftovers, send, task_cgroup_of
from farside.agent.run.fork_server import ForkServer
from farside.agent.run.hook import Hooks
from farside.agent.run.ledger import FINAL, RANK, Key, Ledger, Task
from farside.agent.run.record_file import Damaged, RecordT, read_record, write_record
from farside.errors import Unavailable
from farside.log import get_log, last_line

LOOK_EVERY_S = 1.0
"""How late the end of a task may be noticed when its supervisor's word was lost, or its supervisor was killed."""
KILL_LIMIT_S = 5.0
NO_HOOKS = Hooks()
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND

_log = get_log("agent.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Policy of this node: which tasks it runs, and how.

    Attributes:
        run_as: "submitter", or "starter" for a sandbox.
        users: Users whose tasks run here; empty: all but uid 0.
        cgroup: Where tasks' cgroups are made; None: process trees.
        devices: The healthy GPUs now, or the parts that they are cut into.
        has_swap: Whether tasks may have Farside swap now.
        processes: The most of one task, threads among them; 0: any number.
        hooks: What is run before and after each task.
        fence: Record of when the manager was last heard; empty: none is kept.
        gpu_files: What a task's cgroup is closed to but for its own; None: tasks are not fenced from others' GPUs.
        gpu_uuids: Of the GPUs whose driver tells it, by index.
    """

    run_as: str
    users: Collection[str]
    cgroup: CgroupRoot | None
    devices: Callable[[], Collection[Device]]
    has_swap: Callable[[], bool] = lambda: False
    processes: int = 0
    hooks: Hooks = NO_HOOKS
    fence: str = ""
    gpu_files: GpuFiles | None = None
    gpu_uuids: Mapping[int, str] = field(default_factory=dict)


class _Kept(Struct, frozen=True, kw_only=True):
    """ledger.json: what is in no task's folder."""

    generation: int
    forgotten: tuple[tuple[str, int], ...]
    proved_generation: int = 0  # agents of before knew no proof


class Runner:
    """All tasks of this node. Used from one event loop; `run` must be running for states to come by themselves.

    Attributes:
        policy: What this node runs, and how.
        ledger: The tasks that it knows.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        tell: Callable[[m.TaskState], None],
        *,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Reads what is in ``folder`` (made if need be). ``tell`` gets every state that the manager should hear.

        Without a ``fork_server``, or where systemd makes the cgroups, each task supervisor is a Python of its own.

        Raises:
            OSError: the folder cannot be used.
            Damaged: ledger.json is.
        """
        self.policy = policy
        self._folder, self._tell = folder, tell
        self._tasks_folder = folder / "tasks"
        self._socket = folder / "agent.notify"
        self._fork_server = fork_server
        self._pids: dict[Key, int] = {}  # of task supervisors that we started, for as long as they have said nothing
        self._recipes: dict[Key, files.Recipe] = {}  # of tasks that were asked for
        self._children: set[int] = set()  # to be waited for
        self._unseen: set[Key] = set()  # tasks that could not be looked at, as is logged
        self._tasks_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ledger = self._restored()
        self._kept = _worth_keeping(self.ledger)

    @property
    def states(self) -> tuple[m.TaskState, ...]:
        """Every task that is known."""
        return tuple(task.state for task in self.ledger.tasks.values())

    def take(self, command: rules.Command, *, is_proved: bool = True) -> None:
        """Carry out a command of the manager, which has proved itself, or has not.

        Raises:
            OSError: it could not be written down, and was not done; it may be said again.
        """
        # Judged before the ledger is asked, as that is pure: it does not look at users and devices.
        objection, account = self._judged(command) if isinstance(command, m.Start) else ("", None)
        asked = rules.Asked(command=command, at_s=time.time(), objection=objection, is_proved=is_proved)
        self._step(asked, account)

    def welcomed(self, generation: int, *, is_proved: bool) -> None:
        """Note which manager leads.

        Raises:
            OSError: it could not be written down.
        """
        self._step(rules.Welcomed(generation=generation, is_proved=is_proved))

    def forget_generation(self) -> None:
        """Obey the next manager whatever its generation, as a node that comes from another cluster must.

        Raises:
            OSError: it could not be written down.
        """
        self._step(rules.Unled())

    def look(self) -> None:
        """Read the states of the live tasks."""
        for key, task in self.ledger.tasks.items():
            if not task.is_live:
                continue
            try:
                self._look_at(key, task)
                self._unseen.discard(key)
            except OSError as error:  # no descriptor, no memory: that says nothing of the task, so look again later
                if key not in self._unseen:
                    _log.error("a task's state cannot be read", task=files.folder_name(key), why=error.strerror)
                self._unseen.add(key)
        # Only those that were started without the fork server are our children; each is reaped once it has ended.
        self._children = {pid for pid in self._children if os.waitpid(pid, os.WNOHANG) == (0, 0)}

    async def run(self) -> None:
        """Looks whenever a task supervisor says that there is something to see, and every second."""
        loop = asyncio.get_running_loop()
        with self._notified() as ear:
            while True:
                # What a supervisor says is only that there is something to see: a lost or doubled word changes nothing.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await loop.sock_recv(ear, 64)
                self.look()

    def end_all(self, cause: str, grace_s: float) -> None:
        """Stops every live task, whatever the manager wants."""
        for key, task in self.ledger.tasks.items():
            if task.is_live:
                self._order_stop(key, files.StopOrder(cause=cause, grace_s=grace_s))

    @property
    def has_live_tasks(self) -> bool:
        """True while some task may have processes."""
        return any(task.is_live for task in self.ledger.tasks.values())

    def supervisor_pids(self) -> dict[Key, int]:
        """Process ids of the live tasks' supervisors, as far as they have said anything."""
        statuses = {key: self._status(key) for key, task in self.ledger.tasks.items() if task.is_live}
        return {key: status.supervisor_pid for key, status in statuses.items() if status is not None}

    def recipe(self, key: Key) -> files.Recipe | None:
        """What a task was started by, which is written once; None: it is not there, or damaged."""
        recipe = self._recipes.get(key) or self._read_or_none(files.Recipe, key)
        if recipe is not None:
            self._recipes[key] = recipe
        return recipe

    def gpu_uuids_of(self, key: Key) -> Mapping[int, str]:
        """UUIDs of a live task's GPUs, by the indexes that these had when it was started; they may be others since."""
        recipe = self.recipe(key)
        return {} if recipe is None else recipe.gpu_uuids

    # ---- decisions

    def _judged(self, start: m.Start) -> tuple[str, Account | None]:
        try:
            account = account_of(start.spec.user, run_as=self.policy.run_as, allowed=self.policy.users)
        except Refused as refusal:
            return str(refusal), None
        missing = sorted(set(start.spec.devices) - set(self.policy.devices()))
        if missing:
            what = f"part {missing[0].part} of GPU" if missing[0].part else "GPU"
            return f"no healthy {what} {missing[0].gpu} on this node", None
        if start.spec.swap_bytes and not self.policy.has_swap():
            return "no Farside swap on this node", None
        return "", account

    def _step(self, event: rules.Event, account: Account | None = None) -> None:
        after, actions = rules.step(self.ledger, event)
        if _worth_keeping(after) != self._kept:
            # First of all: where it can't be written, nothing has changed.
            write_record(self._folder / "ledger.json", _worth_keeping(after))
            self._kept = _worth_keeping(after)
        self.ledger = after
        for action in actions:
            match action:
                case rules.Launch(start=start):
                    assert account is not None
                    self._launch(start, account)
                case rules.Signal(key=key, cause=cause, grace_s=grace_s):
                    self._order_stop(key, files.StopOrder(cause=cause, grace_s=grace_s))
                case rules.Lengthen(key=key, time_limit_s=time_limit_s):
                    _lengthen(self._at(key), time_limit_s)
                case rules.Remove(key=key):
                    self._pids.pop(key, None)
                    self._unseen.discard(key)
                    self._recipes.pop(key, None)
                    shutil.rmtree(self._at(key), ignore_errors=True)
                case rules.Tell(state=state):
                    self._tell(state)

    # ---- tasks

    def _launch(self, start: m.Start, account: Account) -> None:
        key = rules.key_of(start)
        try:
            self._pids[key] = self._start_supervisor(start, account)
        except OSError as error:
            _log.error("a task was not started", task=files.folder_name(key), why=error.strerror)
            recipe = self.recipe(key)
            if recipe is not None:
                _kill_all(recipe)  # nothing ran; its cgroup goes
            cause = f"this node could not start it: {error.strerror}"
            self._step(rules.Observed(state=rules.state_of(key, "exited", time.time(), cause)))

    def _start_supervisor(self, start: m.Start, account: Account) -> int:
        key = rules.key_of(start)
        folder = self._at(key)
        folder.mkdir(mode=0o700)
        # Locked before the supervisor exists: at no moment does a task that is being started look like one that has
        # ended.
        lock = files.lock(folder)
        assert lock is not None
        try:
            cgroup = self._task_cgroup(start)
            recipe = files.Recipe(
                start=start,
                account=account,
                cgroup=os.fspath(cgroup.folder) if cgroup is not None else "",
                # Random: no process of another task has it in its environment.
                mark=secrets.token_hex(16),
                notify=os.fspath(self._socket),
                hooks=self.policy.hooks,
                **_gpu_fence(self.policy.gpu_files, start.spec),
                gpu_uuids={gpu: uuid for gpu, _ in start.spec.devices if (uuid := self.policy.gpu_uuids.get(gpu))},
                fence=self.policy.fence,
                profile=os.fspath(ring_file.new_path()) if start.spec.profile else "",
            )
            files.write(folder, recipe)
            return self._spawn(folder, lock, cgroup.prefix if cgroup is not None else ())
        finally:
            os.close(lock)  # the task supervisor has its own

    def _spawn(self, folder: Path, lock: int, prefix: tuple[str, ...]) -> int:
        if self._fork_server is not None and not prefix:
            try:
                return self._fork_server.spawn(folder, lock)
            except Unavailable as error:
                _log.warning("a task supervisor is started without the fork server", folder=folder, why=error)
        pid = _spawn(folder, lock, prefix)
        self._children.add(pid)
        return pid

    def _task_cgroup(self, start: m.Start) -> TaskCgroup | None:
        if self.policy.cgroup is None:
            return None
        # Several agents may share a home, and each has a task 1.0.
        name = f"farside-{files.folder_name(rules.key_of(start))}-{secrets.token_hex(4)}"
        return task_cgroup_of(self.policy.cgroup, name, start.spec, processes=self.policy.processes)

    def _look_at(self, key: Key, task: Task) -> None:
        lives = files.is_locked(self._at(key))  # before the status: the last one is written before the lock goes
        status = self._read(files.Status, key)
        if status is not None:
            self._step(rules.Observed(state=status.state))
        is_final = status is not None and RANK[status.state.state] >= FINAL
        if not lives and not is_final:
            self._step(rules.Observed(state=self._after_its_supervisor(key, status)))
        elif task.state.state == "stopping" and (status is None or RANK[status.state.state] < RANK["stopping"]):
            self._signal(key)  # the first signal came too early, or another agent wrote the order

    def _after_its_supervisor(self, key: Key, status: files.Status | None) -> m.TaskState:
        """The end of a task whose supervisor is gone: kills its processes; how they ended is not known."""
        recipe = self._read(files.Recipe, key)
        # No recipe or no state: the supervisor has not said that anything ran. Its log may say why.
        if recipe is None or status is None:
            said = last_line(self._at(key) / "shepherd.log")
            unstarted = "the agent ended before the task was started"
            cause = f"its task supervisor did not start: {said}" if said else unstarted
        else:
            cause = "its task supervisor was killed"
        if recipe is not None:
            _kill_all(recipe)
            if recipe.profile:
                ring_file.remove(Path(recipe.profile))
        return rules.state_of(key, "lost", time.time(), cause)

    def _order_stop(self, key: Key, order: files.StopOrder) -> None:
        try:
            files.write(self._at(key), order)
        except OSError as error:  # the disk is full: SIGTERM means the same, with the grace of the task's own
            _log.error("a stop cannot be recorded", task=files.folder_name(key), why=error.strerror)
            self._signal(key, signal.SIGTERM)
        else:
            self._signal(key)

    def _signal(self, key: Key, number: int = signal.SIGUSR1) -> None:
        status = self._status(key)
        pid = status.supervisor_pid if status is not None else self._pids.get(key, 0)
        if not pid:
            return
        try:
            # The descriptor names one process for good; a number alone may be given to another between check and
            # signal.
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            # Only while the lock is held is this process the task supervisor, and not one that got its number.
            if files.is_locked(self._at(key)):
                signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)

    # ---- files

    def _at(self, key: Key) -> Path:
        return self._tasks_folder / files.folder_name(key)

    def _status(self, key: Key) -> files.Status | None:
        return self._read_or_none(files.Status, key)

    def _read_or_none(self, kind: type[RecordT], key: Key) -> RecordT | None:
        try:
            return self._read(kind, key)
        except OSError as error:
            _log.error("a task's record cannot be read", task=files.folder_name(key), why=error)
            return None

    def _read(self, kind: type[RecordT], key: Key) -> RecordT | None:
        """One of a task's records; a damaged one counts as none."""
        try:
            return files.read(self._at(key), kind)
        except Damaged as error:
            _log.error("a task's record is damaged", task=files.folder_name(key), why=error)
            return None

    def _restored(self) -> Ledger:
        kept = read_record(self._folder / "ledger.json", _Kept) or _Kept(generation=0, forgotten=())
        tasks = tuple(self._restored_task(key) for key in self._keys())
        return rules.restored(
            generation=kept.generation, proved_generation=kept.proved_generation, forgotten=kept.forgotten, tasks=tasks
        )

    def _restored_task(self, key: Key) -> Task:
        status, recipe = self._status(key), self.recipe(key)
        # The agent was killed before it wrote what to run, or that is damaged: the next look finds no lock, and calls
        # it lost.
        if recipe is None:
            return Task(state=status.state if status is not None else rules.state_of(key, "starting", 0, ""))
        task = rules.fresh(recipe.start, 0)
        return task if status is None else replace(task, state=status.state)

    def _keys(self) -> Iterator[Key]:
        for folder in sorted(self._tasks_folder.iterdir()):
            task_id, _, nth = folder.name.rpartition("-")
            if task_id and nth.isdigit():
                yield task_id, int(nth)

    @contextmanager
    def _notified(self) -> Iterator[socket.socket]:
        # Left behind by an agent that was killed: a socket's name can't be bound twice.
        self._socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ear:
            ear.setblocking(False)
            ear.bind(os.fspath(self._socket))
            self._socket.chmod(0o600)
            try:
                yield ear
            finally:
                self._socket.unlink(missing_ok=True)


def _worth_keeping(ledger: Ledger) -> _Kept:
    return _Kept(generation=ledger.generation, proved_generation=ledger.proved_generation, forgotten=ledger.forgotten)


def _gpu_fence(files: GpuFiles | None, spec: m.TaskSpec) -> dict[str, Any]:
    gpus = [device.gpu for device in spec.devices]
    if files is None:
        return {}
    return {"devices": files.rules(gpus), "gpu_names": files.named(gpus)}


def _lengthen(folder: Path, time_limit_s: float) -> None:
    """Record a longer limit. The task supervisor reads it when the one that it knows is up: it need not be woken."""
    if files.ordered_limit_s(folder) >= time_limit_s:
        return
    try:
        files.write(folder, files.LimitOrder(time_limit_s=time_limit_s))
    except OSError as error:
        _log.error("a longer time limit cannot be recorded", task=folder.name, why=error.strerror)


def _kill_all(recipe: files.Recipe) -> None:
    held = Cgroup(Path(recipe.cgroup)) if recipe.cgroup else None
    # Bounded, as the event loop waits here: a process in an uninterruptible wait may take any time to die.
    end_s = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < end_s:
        pids = held.pids() if held is not None else leftovers(recipe.mark)
        if not pids:
            break
        if held is not None:
            held.kill()
        else:
            send(pids, signal.SIGKILL)
        time.sleep(0.01)
    if held is not None:
        held.close()


def _spawn(folder: Path, lock: int, prefix: tuple[str, ...]) -> int:
    """Starts the task supervisor of this folder, which inherits the lock, and returns its process id."""
    try:
        os.set_inheritable(lock, True)
        # -P: what happens to lie in the agent's working folder is no module of ours
        own = (sys.executable, "-P", "-m", "farside.agent.run.task_supervisor", os.fspath(folder), str(lock))
        return os.posix_spawn(
            (prefix or own)[0],
            (*prefix, *own),
            os.environ,
            # What is said before the task supervisor has its own log, by systemd-run for one, belongs there too.
            file_actions=((os.POSIX_SPAWN_OPEN, 2, os.fspath(folder / "shepherd.log"), _LOG_FLAGS, 0o600),),
            setsid=True,
            # A stop that comes before the task supervisor listens waits for it.
            setsigmask=(signal.SIGUSR1,),
        )
    finally:
        os.set_inheritable(lock, False)
