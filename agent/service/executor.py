"""Node service `executor`: tasks of this node that train take turns by the executor that runs here.

The executor is a program of its own (`farside executor`), asked by its admin socket once a second: neither ends with
the other. It is told the group that its node is in whenever that changes, or another process answers. Which task a
worker belongs to is not taken from what it says: its process is a descendant of that task's supervisor.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from farside import admin
from farside.agent import messages as m
from farside.agent.service.service import NodeService
from farside.errors import FarsideError
from farside.log import get_log

ASK_LIMIT_S = 1.0
PERIOD_S = 1.0
VARIABLE = "FARSIDE_EXECUTOR"
"""The variable by which `farside.training` finds an executor."""
SPILL_OFFER, SPILL_OFFER_BYTES = "FARSIDE_SPILL_OFFER", "FARSIDE_SPILL_OFFER_BYTES"
"""Those by which it finds a folder for input that does not fit in memory, and how much memory it has."""
PARENTS_MAX = 64
"""Processes between a task's supervisor and a worker that are looked at."""

_log = get_log("agent.executor")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.ExecutorOrder)
_NONE = m.ExecutorFacts()
TaskName = tuple[str, int, int]
"""Job, rank, and which start of the job."""


class ExecutorService(NodeService):
    """The service ``executor``.

    Args:
        socket: Of workers; None: tasks here take no turns.
        admin_socket: Of the same executor; None: nothing is told of it.
        spill_dir: A folder for input of co-located jobs that does not fit in their memory; None: there is none.
        supervisors: The process of each task's supervisor, by task.
        proc: The folder /proc.
    """

    name = m.EXECUTOR
    version = 2

    def __init__(
        self,
        socket: Path | None,
        admin_socket: Path | None,
        *,
        spill_dir: Path | None = None,
        supervisors: Callable[[], Mapping[TaskName, int]],
        proc: Path = Path("/proc"),
    ) -> None:
        self._socket, self._admin, self._spill_dir = socket, admin_socket, spill_dir
        self._supervisors, self._proc = supervisors, proc
        self._facts = _NONE
        self._problem = ""
        self._order: m.ExecutorOrder | None = None  # None: no manager has said anything
        self._carried: tuple[m.ExecutorOrder, int] | None = None  # the order that it has, and which process it was
        self._wake = asyncio.Event()

    def facts(self) -> bytes:
        """Its `ExecutorFacts`."""
        return _ENCODER.encode(self._facts)

    def obey(self, order: msgspec.Raw) -> None:
        """The group that this node is in, an `ExecutorOrder`."""
        self._order = _ORDER.decode(order)
        self._wake.set()

    def metrics(self) -> Mapping[str, float]:
        """Whether an executor answers, and how many workers take turns."""
        facts = self._facts
        figures = {"takers": len(facts.takers), "others": facts.others, "group": facts.group}
        return {"is_there": float(facts.is_there), **figures}

    def drained(self) -> bool:
        """Always: nothing of others is kept here."""
        return True

    def variables(self, start: m.Start) -> Mapping[str, str]:
        """Where tasks ask for turns, and where input may go; a job that names a place itself, or none, is let alone.

        So is one of several tasks, unless its nodes are a group: their executors would not know of its other workers.
        """
        spec, found = start.spec, self._spill_variables(start.spec)
        is_alone = spec.world_size > 1 and not spec.takes_turns
        if self._socket is None or is_alone or VARIABLE in spec.env or not self._socket.exists():
            return found
        return {**found, VARIABLE: os.fspath(self._socket)}

    def _spill_variables(self, spec: m.TaskSpec) -> dict[str, str]:
        if self._spill_dir is None or not spec.may_spill or SPILL_OFFER in spec.env:
            return {}
        return {SPILL_OFFER: os.fspath(self._spill_dir), SPILL_OFFER_BYTES: str(spec.memory_bytes)}

    async def run(self) -> None:
        """Asks the executor once a second, until it is cancelled."""
        while True:
            self._wake.clear()
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """Reads the executor's status once, and passes on the node's group where it does not have that."""
        if self._admin is None or not self._admin.exists():
            self._lose("")
            return
        try:
            told = await admin.ask(self._admin, "status", timeout_s=ASK_LIMIT_S)
            if await self._is_told(self._admin, int(told["pid"]), bool(told.get("listen"))):
                told = await admin.ask(self._admin, "status", timeout_s=ASK_LIMIT_S)
            self._facts = self._facts_of(told)
            self._problem = ""
        except FarsideError as error:
            self._lose(str(error))
        except (AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            self._lose(f"this is no executor's status: {error!r:.200}")

    async def _is_told(self, socket: Path, pid: int, can_group: bool) -> bool:
        """Passes the node's group on to the executor, if that has another one."""
        order = self._order
        if order is None or not can_group or self._carried == (order, pid):
            return False
        await admin.ask(socket, "group", timeout_s=ASK_LIMIT_S, group=msgspec.to_builtins(order.group))
        self._carried = (order, pid)
        return True

    def _lose(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.warning("the executor does not answer", why=problem)
        self._facts, self._problem = _NONE, problem

    def _facts_of(self, told: Mapping[str, Any]) -> m.ExecutorFacts:
        by_pid = {pid: task for task, pid in self._supervisors().items()}
        workers = list(told["jobs"].values())
        tasks = [(self._task_of(int(one["pid"]), by_pid), one) for one in workers]
        takers = tuple(taker_of(task, one) for task, one in tasks if task is not None)[: m.TURN_TAKERS_MAX]
        facts = m.ExecutorFacts(
            is_there=True,
            listen=str(told.get("listen", "")),
            group=int(told.get("group", 0)),
            takers=takers,
            others=len(workers) - len(takers),
            spills=self._spill_dir is not None and bool(told.get("spills")),
        )
        return _fitting(facts)

    def _task_of(self, pid: int, by_pid: Mapping[int, TaskName]) -> TaskName | None:
        """The task that a process belongs to, by its parents; None: it is of no task here, or gone."""
        for _ in range(PARENTS_MAX):
            if pid in by_pid:
                return by_pid[pid]
            if pid <= 1:
                return None
            pid = self._parent_of(pid)
        return None

    def _parent_of(self, pid: int) -> int:
        try:
            # The second field is the program's name in brackets, which may have any character in it.
            return int((self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return 0


def _fitting(facts: m.ExecutorFacts) -> m.ExecutorFacts:
    """What a service may say: where that is too much, its last tasks say nothing of processors, then of their input."""
    takers = list(facts.takers)
    for what, at in itertools.product(("processor", "spill"), reversed(range(len(takers)))):
        if len(_ENCODER.encode(facts)) <= m.SERVICE_BYTES_MAX:
            break
        takers[at] = replace(takers[at], **{what: None})
        facts = replace(facts, takers=tuple(takers))
    return facts


def taker_of(task: TaskName, told: Mapping[str, Any]) -> m.TurnTaker:
    """Report of a task to the manager, by its executor's status.

    Raises:
        KeyError, TypeError, ValueError, msgspec.ValidationError: That is no executor's status.
    """
    job, rank, start = task
    steps = told["step_s"]
    known = "COMP" in steps and "PUSH" in steps
    return m.TurnTaker(
        job=job,
        start=start,
        rank=rank,
        comp_s=float(steps["COMP"]) if known else 0.0,
        net_s=float(steps.get("PULL", 0.0) + steps["PUSH"]) if known else 0.0,
        iteration_s=float(told["iteration_s"]),
        turns=int(told["turns"]),
        let_through=int(told["let_through"]),
        overdue=int(told["overdue"]),
        # One of the version before says nothing of it.
        spill=msgspec.convert(told.get("spill"), m.SpilledInput | None),
        processor=msgspec.convert(told.get("processor"), m.ProcessorUse | None),
    )
