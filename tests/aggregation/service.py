"""`farside aggregator` as a process, and members with arrays of numbers that train by it."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from farside import admin
from farside.agent.aggregator.layout import Tensor
from farside.errors import PeerError
from farside.kmod_shim.engine.aggregation import Hyper
from farside.training.member import MemberSession, PlanSource
from farside.training.static_plan import StaticPlan
from tests.aggregation.rig import Reference, gradient_of, start_of
from tests.support.waiting import until

KEY = "5a" * 32
# Two chunks and a half of one tensor, and two small ones that are joined.
TENSORS = (
    Tensor("embedding.weight", 160_000, "f32"), Tensor("norm.weight", 300, "f32"), Tensor("norm.bias", 300, "f32"),
)  # fmt: skip
HYPER = Hyper(lr=0.1, momentum=0.9)
DEADLINE_S = 60.0


def write_key(folder: Path) -> Path:
    """The key file of a test's folder."""
    path = folder / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


class Service:
    """One `farside aggregator`. Its server is another process, whose id its status tells."""

    def __init__(
        self, folder: Path, name: str = "a", *, tcp_port: int = 0, static: bool = True, **settings: str
    ) -> None:
        self.folder = folder
        self.socket = folder / f"{name}.admin"
        self.unix = f"unix:{folder}/{name}.sock"
        self.tcp = f"tcp:127.0.0.1:{tcp_port}"
        listen = [self.unix, *([self.tcp] if tcp_port else [])]
        given = {"node": name, "admin_socket": str(self.socket), "memory_bytes": "256MiB", **settings}
        if static:
            given["key_file"] = str(write_key(folder))
        lines = [f"listen = {listen!r}", *(f"{key} = {value!r}" for key, value in given.items())]
        self._config = folder / f"{name}.toml"
        self._config.write_text("\n".join(lines) + "\n")
        self.log = folder / f"{name}.log"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "farside", "aggregator", "--config", str(self._config)]
        with self.log.open("ab") as log:
            return subprocess.Popen(argv, stderr=log)

    def status(self) -> dict[str, Any]:
        """What it says of itself; empty while nobody answers."""
        try:
            told: dict[str, Any] = admin.call(self.socket, "status", timeout_s=5)
        except PeerError:
            return {}
        return told

    def wait_ready(self) -> dict[str, Any]:
        """Its status, once there is one."""
        return until(self.status, what="an Aggregator's status")

    @property
    def server_pid(self) -> int:
        """The process that serves now."""
        return int(self.wait_ready()["pid"])

    def kill_server(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends its server a signal; the process id that it had."""
        pid = self.server_pid
        os.kill(pid, number)
        return pid

    def kill(self) -> None:
        """Kills the parent, and with it the server."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Starts it after `kill`."""
        self.process = self._start()

    def stop(self) -> int:
        """Ends it with care; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=DEADLINE_S)


@contextlib.contextmanager
def service(folder: Path, name: str = "a", **settings: Any) -> Iterator[Service]:
    """A running one."""
    made = Service(folder, name, **settings)
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def source(
    folder: Path, services: Sequence[str], rank: int, *, members: int = 2, job: str = "j", **more: Any
) -> PlanSource:
    """A static plan with the key of this folder."""
    return StaticPlan(services, folder / "key", job=job, rank=rank, members=members, **more)


class Training:
    """Members of one job in this process, whose every result is compared with one process's."""

    def __init__(
        self, sources: Sequence[PlanSource], rule: str, tensors: Sequence[Tensor] = TENSORS, *, hold: bool = False
    ) -> None:
        self._hold = hold
        self.sessions = [MemberSession(one, rule=rule, tensors=tensors, hold=hold) for one in sources]
        self.job = self.sessions[0].job
        self.chunks = len(self.job.chunks)
        self.reference = Reference(self.job, HYPER)
        self.iteration = 0
        self._firsts: list[int] = []

    def connect(self) -> None:
        """All of them, in the order of ranks."""
        for session in self.sessions:
            session.connect(partial(put_start, session) if session.has_optimizer else None)
            if session.has_optimizer:
                session.member.hyper(0, 1, HYPER)
        for session in self.sessions:
            assert session.iteration == 0

    def push(self) -> None:
        """The next iteration's gradients."""
        self.iteration += 1
        for rank, session in enumerate(self.sessions):
            push(session, rank, self.iteration)

    def push_some(self, rng: random.Random) -> None:
        """Some of the next iteration's chunks of some members; `push_rest` has the others."""
        self.iteration += 1
        self._firsts = [rng.randrange(self.chunks + 1) for _session in self.sessions]
        for rank, session in enumerate(self.sessions):
            fill(session, rank, self.iteration)
            if self._firsts[rank] < self.chunks:
                session.push(self._firsts[rank], self.chunks - self._firsts[rank], self.iteration)

    def push_rest(self) -> None:
        """What `push_some` has left."""
        for first, session in zip(self._firsts, self.sessions, strict=True):
            if first:
                session.push(0, first, self.iteration)

    def check(self) -> None:
        """Waits for the results of this iteration; they are those of one process."""
        expected = self.reference.step(self.iteration)
        for session in self.sessions:
            if self._hold:
                session.member.ask(0, self.chunks, self.iteration)
            session.wait(0, self.chunks, self.iteration, DEADLINE_S)
            assert [bytes(session.member.result(index)) for index in range(self.chunks)] == expected

    def step(self, count: int = 1) -> None:
        """Whole iterations."""
        for _step in range(count):
            self.push()
            self.check()

    def close(self) -> None:
        """Ends all members."""
        for session in self.sessions:
            session.close()


def put_start(session: MemberSession) -> None:
    """Parameters at the start, where results go."""
    for index in range(len(session.job.chunks)):
        session.member.result(index)[:] = start_of(session.job, index).tobytes()


def fill(session: MemberSession, rank: int, iteration: int) -> None:
    """Puts one member's gradients into its region."""
    for index in range(len(session.job.chunks)):
        session.member.gradient(index, iteration)[:] = gradient_of(session.job, rank, index, iteration).tobytes()


def push(session: MemberSession, rank: int, iteration: int) -> None:
    """One member's gradients."""
    fill(session, rank, iteration)
    session.push(0, len(session.job.chunks), iteration)


@contextlib.contextmanager
def training(
    sources: Sequence[PlanSource], rule: str, tensors: Sequence[Tensor] = TENSORS, *, hold: bool = False
) -> Iterator[Training]:
    """A job that is connected; with ``hold`` its members ask for results, as programs on NumPy do."""
    made = Training(sources, rule, tensors, hold=hold)
    try:
        made.connect()
        yield made
    finally:
        made.close()
