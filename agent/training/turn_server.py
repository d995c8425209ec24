"""A node's turns over sockets: workers ask and are granted, by the queue of `node_queue.py`.

Who a worker is the kernel says: a job's name counts for its user alone, and its turn ends with its process, by a
descriptor of that process, since a child that inherited the connection keeps it open.
"""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from farside.agent.training import alpha, node_queue
from farside.agent.training.messages import (
    BEAT_S,
    SPILLING_VERSION,
    VERSION,
    WORKER_BYTES_MAX,
    Beat,
    Granted,
    HasDone,
    Here,
    Keeps,
    Refused,
    Uses,
    Wants,
    Yields,
    from_worker,
    packet_of,
    use_of,
)
from farside.agent.training.node_queue import (
    Bypassed,
    Deadline,
    Died,
    Done,
    Grant,
    HangUp,
    Hello,
    Idled,
    Measured,
    NodeQueue,
    Overdue,
    Passed,
    PullDue,
    Pushed,
    Served,
    StartOver,
    Want,
    Yield,
)
from farside.agent.training.subtask import Apart, Progress, ToNode
from farside.agent.training.turn_record import Clocks, TurnRecord
from farside.errors import RemoteProtocolError
from farside.group_time import GroupTime
from farside.kmod_shim.process_time import processor_time_ns, processors_of
from farside.listen import peer_process
from farside.log import Rarely, get_log

_log = get_log("executor")

CONNECTIONS_MAX = 64
USER_MAX = 16
"""Connections of one user."""
STRANGER_LIMIT_S = 2.0
"""For a connection's first word."""
START_LIMIT_S = 10.0
"""For all workers of a job that begins."""
BURST_MAX = 10_000
"""Messages of one worker between two beats; one that waits for its turns can't send so many."""
IDLE_FROM_S, IDLE_SHARE = 0.25, 0.01
"""A turn of so long in which its process had less of a processor than this share of the time was held without work."""
SILENT_S, SILENT_ITERATIONS, SILENT_MOST_S = 60.0, 5, 600.0
"""How long others wait for what a job says of its input: so long, or as many of its iterations, or the longest time."""
WARNED_EVERY_S = 60.0
"""A user's workers that are refused make one line in this time, which counts those before it."""


class Group(Protocol):
    """The synchroniser, here or on another node."""

    def progress(self, said: Progress) -> None:
        """A worker of this node has done a subtask."""

    def here(self, job: str, workers: int) -> None:
        """This node has a worker of a job."""

    def gone(self, job: str) -> None:
        """This node's worker of a job is gone."""


class _Line:
    """One worker's connection."""

    def __init__(self, sock: socket.socket, uid: int, pid: int) -> None:
        self.sock, self.uid, self.pid = sock, uid, pid
        self.pidfd = -1
        self.job = ""
        self.workers = 0
        self.burst = 0
        self.used_s = 0.0
        """When it said last what its input took, by the loop's clock."""
        self.held: tuple[int, int] | None = None
        """When its turn began, and the processor time of its process then, both in nanoseconds; None: it has none."""


class TurnServer:
    """The queue of this node, its workers' connections, and the record of their turns."""

    def __init__(self, listener: socket.socket, group: Callable[["TurnServer"], Group]) -> None:
        """Serves from now on, in the running loop; ``group`` makes the synchroniser's side for this node."""
        self.queue = NodeQueue()
        self.record = TurnRecord()
        self.spilling = alpha.Spilling()
        self.hung_up = 0
        self._refused = Rarely(WARNED_EVERY_S)  # by user
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._lines: set[_Line] = set()
        self._by_job: dict[str, _Line] = {}
        self._pending: deque[node_queue.Event] = deque()
        self._is_stepping = False
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._group = group(self)
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def take(self, event: node_queue.Event) -> None:
        """Something has happened; all that follows is done when this returns."""
        self._pending.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._pending:
                self.queue, told = node_queue.step(self.queue, self._pending.popleft())
                for output in told:
                    self._act(output)
        finally:
            self._is_stepping = False

    def told(self, message: ToNode) -> None:
        """The synchroniser has said something."""
        self.take(message)

    def join(self, group: Callable[["TurnServer"], Group]) -> None:
        """Goes over to another group, live: jobs go on without turns until that one is whole."""
        self.take(Apart(epoch=self.queue.epoch))
        self._group = group(self)
        for job, line in list(self._by_job.items()):
            self._group.here(job, line.workers)

    def pid_of(self, job: str) -> int:
        """The process of a job's worker, as the kernel says; 0: it is gone."""
        line = self._by_job.get(job)
        return 0 if line is None else line.pid

    def _clocks(self, job: str) -> Clocks:
        """What the processors have done until now."""
        spent_ns = {name: processor_time_ns(line.pid) for name, line in self._by_job.items()}
        return Clocks(
            spent_ns={name: ns for name, ns in spent_ns.items() if ns is not None},
            processors=processors_of(self.pid_of(job)) or 0,
        )

    async def beat(self) -> None:
        """Lets those that wait know that somebody is here; never returns."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.take(Passed(seconds=BEAT_S))
            self.leave_silent_out()
            for line in list(self._lines):
                line.burst = 0
                worker = self.queue.workers.get(line.job)
                # Others do not read, and it would be kept for them.
                if worker is not None and worker.place == "door":
                    self._send(line, packet_of(Beat()))

    def leave_silent_out(self) -> None:
        """Has nobody wait for jobs that have said nothing of their input for too long."""
        for job in list(self.spilling.jobs):
            counts = self.record.jobs.get(job)
            iterations_s = SILENT_ITERATIONS * counts.iteration_s if counts is not None else 0.0
            limit_s = min(SILENT_MOST_S, max(SILENT_S, iterations_s))
            if self._loop.time() - self._by_job[job].used_s > limit_s:
                _log.warning("a job says nothing of its input; others do not wait for it", job=job, limit_s=limit_s)
                self._take_use(alpha.step(self.spilling, alpha.Silent(job=job)))

    def close(self) -> None:
        """Ends all connections; workers go on without turns."""
        self._loop.remove_reader(self._listener.fileno())
        for line in list(self._lines):
            self._drop(line)

    # --- what follows from an event

    def _act(self, output: node_queue.Output) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(output, Progress):
            self._group.progress(output)
        elif isinstance(output, Grant):
            clocks, has_lease = self._clocks(output.job), output.lease is not None
            self.record.granted(output.job, output.position, now_ns, clocks, has_lease=has_lease)
            if output.lease is not None and output.lease_s is not None:
                before = self._deadlines.pop(output.job, None)
                if before is not None:
                    before.cancel()
                deadline = Deadline(job=output.job, lease=output.lease)
                self._deadlines[output.job] = self._loop.call_later(output.lease_s, self.take, deadline)
            line = self._by_job.get(output.job)
            if line is not None:
                line.held = (now_ns, clocks.spent_ns.get(output.job, 0)) if has_lease else None
                self._send(line, packet_of(Granted(output.position, output.lease_s)))
        elif isinstance(output, Served):
            steps = self.record.jobs[output.job].step_s if output.job in self.record.jobs else {}
            if "COMP" in steps and "PUSH" in steps:
                net_s = max(steps.get("PULL", 0.0), steps["PUSH"])
                self._pending.append(Measured(job=output.job, comp_s=steps["COMP"], net_s=net_s))
        elif isinstance(output, Pushed):
            due = PullDue(job=output.job, position=output.position)
            self._loop.call_later(node_queue.PULL_GRACE_S, self.take, due)
        elif isinstance(output, Overdue):
            self.record.overdue(output.job)
            self._turn_ended(self._by_job.get(output.job))
        elif isinstance(output, Bypassed):
            _log.warning("a user's jobs held turns without work; they go on without turns", user=output.owner)
        elif isinstance(output, HangUp):
            self._refuse(self._by_job.get(output.job), output.why)

    def _turn_ended(self, line: _Line | None) -> None:
        """Says to the queue when a turn was held without work; before what ended it is said."""
        if line is None or line.held is None:
            return
        (began_ns, spent_ns), line.held = line.held, None
        held_s = (time.monotonic_ns() - began_ns) / 1e9
        worked_s = ((processor_time_ns(line.pid) or 0) - spent_ns) / 1e9
        if held_s >= IDLE_FROM_S and worked_s < IDLE_SHARE * held_s:
            self.take(Idled(job=line.job, held_s=held_s))

    # --- connections

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        pid, uid = peer_process(sock)
        line = _Line(sock, uid, pid)
        self._lines.add(line)
        if len(self._lines) > CONNECTIONS_MAX or sum(one.uid == uid for one in self._lines) > USER_MAX:
            self._refuse(line, "too many workers are on this node")
            return
        try:
            line.pidfd = os.pidfd_open(pid)
        except OSError:
            self._refuse(line, "its process can't be seen from here")
            return
        self._loop.add_reader(line.pidfd, self._drop, line)
        self._loop.add_reader(sock.fileno(), self._read, line)
        self._loop.call_later(STRANGER_LIMIT_S, self._drop_stranger, line)

    def _drop_stranger(self, line: _Line) -> None:
        if line in self._lines and not line.job:
            self._drop(line)

    def _read(self, line: _Line) -> None:
        try:
            packet = line.sock.recv(WORKER_BYTES_MAX + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._drop(line)
            return
        line.burst += 1
        if line.burst > BURST_MAX:
            self._refuse(line, f"more than {BURST_MAX} messages in {BEAT_S} s")
            return
        try:
            self._take_message(line, packet)
        except RemoteProtocolError as error:
            self._refuse(line, str(error))

    def _take_message(self, line: _Line, packet: bytes) -> None:
        message, now_ns = from_worker(packet), time.monotonic_ns()
        if isinstance(message, Here):
            self._take_here(line, message)
            return
        if not line.job:
            raise RemoteProtocolError(f"{type(message).__name__} came before Here")
        if isinstance(message, Wants | HasDone | Yields):
            self._turn_ended(line)
        if isinstance(message, Wants):
            self.record.asked(line.job, message.position, now_ns, self._clocks(line.job))
            self.take(Want(job=line.job, position=message.position))
        elif isinstance(message, HasDone):
            self.record.done(line.job, message.position, now_ns, self._clocks(line.job))
            self.take(Done(job=line.job, position=message.position))
        elif isinstance(message, Yields):
            self.take(Yield(job=line.job, position=message.position))
        elif isinstance(message, Uses):
            use = use_of(line.job, message)
            line.used_s = self._loop.time()
            self._take_use(self._stepped(use))
            if self.spilling.knows(line.job):  # it reads what it is told, or it would be gone by now
                self.record.used(line.job, use)

    def _stepped(self, use: alpha.Use) -> alpha.Answer:
        """What follows from a worker's word.

        Raises:
            RemoteProtocolError: Nobody can reckon with it.
        """
        try:
            return alpha.step(self._beside(), use)
        except ArithmeticError as error:
            raise RemoteProtocolError(f"what it says of its input makes no sense: {error}") from error

    def _beside(self) -> alpha.Spilling:
        """What is known of memory, with the times that jobs take by now whose input stays there."""
        times = [
            (steps["COMP"], steps["PULL"] + steps["PUSH"])
            for job, counts in self.record.jobs.items()
            if job not in self.spilling.jobs and (steps := counts.step_s).keys() >= {"COMP", "PULL", "PUSH"}
        ]
        comp_s, net_s = (sum(one) for one in zip(*times, strict=True)) if times else (0.0, 0.0)
        time = GroupTime(comp_s=comp_s, comm_s=net_s, longest_s=max(map(sum, times), default=0.0))
        return replace(self.spilling, beside=time)

    def _take_use(self, answer: alpha.Answer) -> None:
        self.spilling, told = answer
        for job, keep in told.items():
            line = self._by_job.get(job)
            if line is not None:
                self._send(line, packet_of(Keeps(keep.spilled, keep.by_peer)))

    def _take_here(self, line: _Line, here: Here) -> None:
        if line.job:
            raise RemoteProtocolError("Here came twice")
        if not VERSION <= here.version <= SPILLING_VERSION:
            raise RemoteProtocolError(f"version {here.version} of the protocol; this is {SPILLING_VERSION}")
        if here.worker >= here.workers:
            raise RemoteProtocolError(f"worker {here.worker} of {here.workers}; they count from 0")
        job = f"{line.uid}:{here.job}"
        before = self._by_job.get(job)
        if before is not None:
            if before.pid != line.pid:
                raise RemoteProtocolError("this node has a worker of that job; one of each job takes turns")
            self._drop(before)  # it has connected anew
        line.job, line.workers = job, here.workers
        self._by_job[job] = line
        is_only = here.workers == 1
        self.take(
            Hello(job=job, worker=here.worker, position=here.position, is_first=here.is_first, is_only=is_only,
                  owner=str(line.uid))
        )  # fmt: skip
        self._group.here(job, here.workers)
        if here.is_first:
            self._loop.call_later(START_LIMIT_S, self._start_over, line)

    def _start_over(self, line: _Line) -> None:
        if self._by_job.get(line.job) is line:
            self.take(StartOver(job=line.job))

    def _send(self, line: _Line, packet: bytes) -> None:
        try:
            line.sock.send(packet)
        except OSError:  # it is gone, or does not read
            self._drop(line)

    def _refuse(self, line: _Line | None, why: str) -> None:
        if line is None or line not in self._lines:
            return
        self.hung_up += 1
        self._warn(line, why)
        try:
            line.sock.send(packet_of(Refused(why[:200])))
        except OSError:
            pass  # it will find the connection ended
        self._drop(line)

    def _warn(self, line: _Line, why: str) -> None:
        before = self._refused.may(line.uid)
        if before is not None:
            _log.warning(
                "a worker goes on without turns", user=line.uid, pid=line.pid, job=line.job, reason=why,
                refused_before=before,
            )  # fmt: skip

    def _drop(self, line: _Line) -> None:
        if line not in self._lines:
            return
        self._lines.discard(line)
        self._loop.remove_reader(line.sock.fileno())
        line.sock.close()
        if line.pidfd >= 0:
            self._loop.remove_reader(line.pidfd)
            os.close(line.pidfd)
        if line.job and self._by_job.get(line.job) is line:
            del self._by_job[line.job]
            self.record.left(line.job)
            deadline = self._deadlines.pop(line.job, None)
            if deadline is not None:
                deadline.cancel()
            self._turn_ended(line)
            self._take_use(alpha.step(self.spilling, alpha.Left(job=line.job)))
            self.take(Died(job=line.job))
            self._group.gone(line.job)
