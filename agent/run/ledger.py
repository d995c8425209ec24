"""Ledger of tasks: which tasks this node knows, and what a command or an observation changes. PURE.

The rules of this file:

* (task_id, start) is started at most once, however often START comes, also after its end and after FORGET. One of the
  same name that is another job's is told apart by when that was submitted, and never taken for this one.
* A task's states only go forward: starting, running, stopping, and then exited or lost, for good.
* No GPU, and no part of one, is given to two live tasks, whatever the manager says.
* A command of an older generation than one seen does nothing. Where the manager has proved itself, only generations of
  managers count that had proved themselves too: one that is none can't make a node refuse the true one for ever.
* A final state is reported until the manager says FORGET; nothing is forgotten by itself.

The manager chooses the GPUs of a task (`scheduler/manager/decider/launch.py`) and names them in START. The ledger does
not choose: it accepts them, or refuses a GPU that a live task holds.

`step` takes an event and returns the ledger after it with the actions to perform, in order. Performing an action twice
is harmless, so that a crash between two of them needs no undo: the files of the tasks are the truth, and a new agent
reads them back with `restored`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from farside.agent import messages as m
from farside.agent.gpu_share import Device, Share, clash, is_twice, shares_of

FORGOTTEN_MAX = 4096
"""Tasks remembered after FORGET, so that a late START finds them: more than are ever under way."""

RANK: Mapping[str, int] = MappingProxyType({"starting": 0, "running": 1, "stopping": 2, "exited": 3, "lost": 3})
FINAL = RANK["exited"]

Key: TypeAlias = tuple[str, int]
"""task_id and start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: what was asked, and its state."""

    state: m.TaskState
    devices: tuple[Device, ...] = ()
    memory_bytes: int = 0  # its limit; 0: none
    user: str = ""  # whose job it is; empty: what was asked is not known any more

    @property
    def is_live(self) -> bool:
        """True while the task may have processes."""
        return RANK[self.state.state] < FINAL

    @property
    def shares(self) -> tuple[Share, ...]:
        """Devices that the task holds."""
        return shares_of(self.devices, key_of(self.state)) if self.is_live else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All tasks of a node.

    Attributes:
        generation: Highest that a manager came with, proved or not.
        proved_generation: Highest of those that had proved themselves.
        forgotten: Keys that are over, oldest first.
    """

    generation: int = 0
    proved_generation: int = 0
    tasks: Mapping[Key, Task] = field(default_factory=lambda: MappingProxyType({}))
    forgotten: tuple[Key, ...] = ()


Command: TypeAlias = m.Start | m.Stop | m.Extend | m.Forget
"""What a manager may have done with a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command came; ``objection`` is why this node can't run it, after a look at users and devices.

    ``is_proved``: of a manager that has proved itself.
    """

    command: Command
    at_s: float
    objection: str = ""
    is_proved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcomed:
    """A manager of this generation leads, and has proved itself, or has not."""

    generation: int
    is_proved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """State of a task, by its supervisor or a failed launch."""

    state: m.TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Unled:
    """The operator says that no manager led so far; the next one that comes does."""


Event: TypeAlias = Asked | Observed | Welcomed | Unled


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Write the task down and start its supervisor."""

    start: m.Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Have the task's supervisor end it within ``grace_s``."""

    key: Key
    cause: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengthen:
    """Let the task run so long from its start, if it may not run longer already."""

    key: Key
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove the files of the task."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Report this state to the manager."""

    state: m.TaskState


Action: TypeAlias = Launch | Signal | Lengthen | Remove | Tell


def key_of(named: m.TaskKey) -> Key:
    """The task that a command or state is about."""
    return named.task_id, named.start


def restored(*, generation: int, proved_generation: int, forgotten: tuple[Key, ...], tasks: tuple[Task, ...]) -> Ledger:
    """The ledger that a new agent starts with."""
    known = {key_of(task.state): task for task in tasks}
    return Ledger(
        generation=generation,
        proved_generation=proved_generation,
        forgotten=forgotten,
        tasks=MappingProxyType(known),
    )


def over_below(ledger: Ledger, *, is_proved: bool) -> int:
    """The generation below which a manager is over that has proved itself, or has not."""
    return ledger.proved_generation if is_proved else ledger.generation


def step(ledger: Ledger, event: Event) -> tuple[Ledger, tuple[Action, ...]]:
    """The ledger after an event, and what is to be done."""
    if isinstance(event, Observed):
        return _observed(ledger, event.state)
    if isinstance(event, Welcomed):
        return _led(ledger, event.generation, is_proved=event.is_proved), ()
    if isinstance(event, Unled):
        return replace(ledger, generation=0, proved_generation=0), ()
    command = event.command
    if isinstance(command, m.Forget):
        return _forget(ledger, command)
    # A manager that was replaced may still be connected, and its commands late. FORGET has no generation: only what has
    # ended is forgotten.
    if command.generation < over_below(ledger, is_proved=event.is_proved):
        return ledger, ()
    ledger = _led(ledger, command.generation, is_proved=event.is_proved)
    if isinstance(command, m.Start):
        return _start(ledger, command, event)
    if isinstance(command, m.Extend):
        return ledger, _extended(ledger, command)
    return _stop(ledger, command, event)


def shares_in(ledger: Ledger) -> tuple[Share, ...]:
    """Which live task holds what of which GPU."""
    return tuple(share for task in ledger.tasks.values() for share in task.shares)


def _led(ledger: Ledger, generation: int, *, is_proved: bool) -> Ledger:
    if generation < over_below(ledger, is_proved=is_proved):
        return ledger
    # What others claimed meanwhile is forgotten with the first that proves itself.
    proved_generation = generation if is_proved else ledger.proved_generation
    return replace(ledger, generation=generation, proved_generation=proved_generation)


def _start(ledger: Ledger, start: m.Start, event: Asked) -> tuple[Ledger, tuple[Action, ...]]:
    key = key_of(start)
    known = ledger.tasks.get(key)
    if known is not None and _are_one(start, known.state):
        return ledger, (Tell(state=known.state),)
    if known is not None:
        # How that one ended, or goes on, says nothing of this one, which gets other numbers at its next start.
        return ledger, (Tell(state=_answer(start, "lost", event.at_s, "another job has this number on this node")),)
    # How it ended, if it ever ran, is not known here any more.
    if key in ledger.forgotten:
        return ledger, (Tell(state=_answer(start, "lost", event.at_s, "this start is over")),)
    if len(ledger.tasks) >= m.TASKS_MAX:
        # Not kept: the next HELLO must fit into a frame.
        told = _answer(start, "exited", event.at_s, "this node has too many tasks to be forgotten")
        return ledger, (Tell(state=told),)
    objection = event.objection or _taken(ledger, start)
    if objection:
        # Kept like any other end, so that the answer survives a lost connection.
        refused = _answer(start, "exited", event.at_s, objection)
        return _with(ledger, Task(state=refused)), (Tell(state=refused),)
    task = fresh(start, event.at_s)
    return _with(ledger, task), (Launch(start=start), Tell(state=task.state))


def fresh(start: m.Start, at_s: float) -> Task:
    """A task that is to be started."""
    state = _answer(start, "starting", at_s, "")
    spec = start.spec
    return Task(state=state, devices=spec.devices, memory_bytes=spec.memory_bytes, user=spec.user)


def _taken(ledger: Ledger, start: m.Start) -> str:
    taken = clash(start.spec.devices, shares_in(ledger))
    if taken is not None:
        task, number = taken.holder
        # As the manager's texts name jobs, of which it leaves out those that a reader does not see. [L5]
        return f"GPU {taken.gpu} is in use by job {task.rpartition('.')[0]}, start {number}"
    if is_twice(start.spec.devices):
        return "a GPU is named twice"
    if any(task.is_live and key[0] == start.task_id for key, task in ledger.tasks.items()):
        return "another start of this task is running"
    return ""


def _stop(ledger: Ledger, stop: m.Stop, event: Asked) -> tuple[Ledger, tuple[Action, ...]]:
    key = key_of(stop)
    known = ledger.tasks.get(key)
    if known is None:
        # A START that is late must not run what was stopped.
        ledger = _remember(ledger, key)
        return ledger, (Tell(state=state_of(key, "lost", event.at_s, "unknown on this node")),)
    if not known.is_live:
        return ledger, (Tell(state=known.state),)
    signal = Signal(key=key, cause=stop.cause, grace_s=stop.grace_s)
    # Signalled again: a later STOP may shorten the grace.
    if known.state.state == "stopping":
        return ledger, (signal, Tell(state=known.state))
    stopping = msgspec.structs.replace(known.state, state="stopping", at_s=event.at_s, cause=stop.cause)
    return _with(ledger, replace(known, state=stopping)), (signal, Tell(state=stopping))


def _extended(ledger: Ledger, extend: m.Extend) -> tuple[Action, ...]:
    """One that is unknown, or is over, has no limit any more; its state says so anyway."""
    key = key_of(extend)
    known = ledger.tasks.get(key)
    return (Lengthen(key=key, time_limit_s=extend.time_limit_s),) if known is not None and known.is_live else ()


def _forget(ledger: Ledger, forget: m.Forget) -> tuple[Ledger, tuple[Action, ...]]:
    key = key_of(forget)
    known = ledger.tasks.get(key)
    if known is None:
        return ledger, ()
    # It is not over here, whatever the manager has in its store: the manager hears its state.
    if known.is_live:
        return ledger, (Tell(state=known.state),)
    rest = {other: task for other, task in ledger.tasks.items() if other != key}
    return _remember(replace(ledger, tasks=MappingProxyType(rest)), key), (Remove(key=key),)


def _observed(ledger: Ledger, state: m.TaskState) -> tuple[Ledger, tuple[Action, ...]]:
    known = ledger.tasks.get(key_of(state))
    # An older state may be read after a newer one was known, as after a STOP: states only go forward.
    if known is None or not known.is_live or RANK[state.state] < RANK[known.state.state]:
        return ledger, ()
    # Supervisors of older versions do not write it, nor does the runner for a task that was lost.
    if state.submitted_s is None:
        state = msgspec.structs.replace(state, submitted_s=known.state.submitted_s)
    # A supervisor writes its state more often than the manager has to hear of it.
    is_ready_now = state.ready_at_s is not None and known.state.ready_at_s is None
    is_profiled_now = state.profile is not None and state.profile != known.state.profile
    is_news = state.state != known.state.state or is_ready_now or is_profiled_now
    return _with(ledger, replace(known, state=state)), (Tell(state=state),) if is_news else ()


def state_of(key: Key, state: m.State, at_s: float, cause: str) -> m.TaskState:
    """State of a task at one moment; of a long cause the beginning."""
    return m.TaskState(task_id=key[0], start=key[1], state=state, at_s=at_s, cause=cause[: m.CAUSE_CHARS_MAX])


def _answer(start: m.Start, state: m.State, at_s: float, cause: str) -> m.TaskState:
    return msgspec.structs.replace(state_of(key_of(start), state, at_s, cause), submitted_s=start.submitted_s)


def _are_one(start: m.Start, known: m.TaskState) -> bool:
    return None in (start.submitted_s, known.submitted_s) or start.submitted_s == known.submitted_s


def _with(ledger: Ledger, task: Task) -> Ledger:
    return replace(ledger, tasks=MappingProxyType({**ledger.tasks, key_of(task.state): task}))


def _remember(ledger: Ledger, key: Key) -> Ledger:
    # To the end, also if it is there already: the oldest go first.
    kept = tuple(other for other in ledger.forgotten if other != key)
    return replace(ledger, forgotten=(*kept, key)[-FORGOTTEN_MAX:])
