"""The processes of one system, which stay for the whole run and idle while another system is measured.

Each order has a deadline: a system that does not answer in time is ended, and what it cannot do is told in a line.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.aggregation.models import chunks_of, ddp_buckets
from benchmarks.aggregation.plan import Workload
from benchmarks.load import BenchmarkError, process_cpu_s

ORDER_S = 90.0
ROOT = Path(__file__).parents[2]
MEMBERS = 2


class Talker:
    """A process that takes an order a line, and answers each with a line."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self._log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, env=env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        self._rest = b""

    def order(self, **order: Any) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchmarkError(self._why("has ended")) from None

    def answer(self, limit_s: float = ORDER_S) -> dict[str, Any]:
        """What it says to the order.

        Raises:
            BenchmarkError: It has ended, does not answer in time, or says what went wrong.
        """
        assert self.process.stdout
        deadline_s = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                raise BenchmarkError(self._why(f"has not answered for {limit_s:.0f} s"))
            came = os.read(self.process.stdout.fileno(), 1 << 16)
            if not came:
                raise BenchmarkError(self._why("has ended"))
            self._rest += came
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchmarkError(answer["error"])
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        self.order(**order)
        return self.answer()

    def _why(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{self._log.stem} {what}: {lines[-1][-200:] if lines else 'it wrote nothing'}"

    def end(self) -> None:
        """Ends it and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Group(Protocol):
    """One system."""

    @property
    def members(self) -> Sequence[Talker]:
        """In rank order."""
        ...

    @property
    def processes(self) -> Sequence[subprocess.Popen[bytes]]:
        """All of them: their CPU time is what the system costs."""
        ...

    def prepare(self, workload: Workload, kind: str) -> None:
        """Members allocate, connect, and check one exchange."""
        ...

    def release(self) -> None:
        """Members give all that back."""
        ...

    def close(self) -> None:
        """Ends all processes."""
        ...


def cpu_s(group: Group) -> float:
    """CPU seconds that its processes have used."""
    return sum(process_cpu_s(process.pid) for process in group.processes)


def ask_all(members: Sequence[Talker], **order: Any) -> list[dict[str, Any]]:
    """The same order to all, and their answers."""
    for member in members:
        member.order(**order)
    return [member.answer() for member in members]


class Farside:
    """Ours: Aggregators, mostly one, and two members. Several jobs may have members of their own at the same ones."""

    def __init__(self, python: str, folder: Path, aggregators: int = 1) -> None:
        self._python, self._folder = python, folder
        self.sockets = [str(folder / f"aggregator-{number}.sock") for number in range(aggregators)]
        module = "benchmarks.aggregation.aggregator"
        self.aggregators = [
            Talker([python, "-m", module, path], folder / f"aggregator-{number}.log")
            for number, path in enumerate(self.sockets)
        ]
        ports = [str(one.answer()["port"]) for one in self.aggregators]
        self._doors = [word for door in zip(self.sockets, ports, strict=True) for word in door]
        self.members = self.start_members("member")
        self._job = 0

    @property
    def aggregator(self) -> Talker:
        """The first one, which has all chunks in the beginning."""
        return self.aggregators[0]

    def start_members(self, name: str) -> list[Talker]:
        """Two members more, ready."""
        made = [
            Talker(
                [self._python, "-m", "benchmarks.aggregation.member", str(rank), str(MEMBERS), *self._doors],
                self._folder / f"{name}-{rank}.log",
            )
            for rank in range(MEMBERS)
        ]
        for one in made:
            one.answer()
        return made

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [one.process for one in (*self.aggregators, *self.members)]

    def add(self, workload: Workload, kind: str, members: Sequence[Talker], *, rule: str = "SUM", **more: Any) -> int:
        """A job of these members, connected; its number."""
        self._job += 1
        pieces = chunks_of(workload.counts)
        chunks = [sum(piece[2] for piece in one) for one in pieces]
        for me, one in enumerate(self.aggregators):
            one.ask(do="add", job=self._job, members=MEMBERS, chunks=chunks, rule=rule)
            self.plan(self._job, me, len(chunks), owner=0, epoch=1)
        ask_all(
            members, do="prepare", job=self._job, kind=kind, pieces=pieces, counts=workload.counts, rule=rule, **more
        )
        return self._job

    def plan(self, job: int, me: int, count: int, **place: Any) -> None:
        """Tells an Aggregator who owns a job's chunks."""
        self.aggregators[me].ask(do="plan", job=job, count=count, place={"me": me, **place})

    def drop(self, job: int) -> None:
        """Aggregators forget the job."""
        for one in self.aggregators:
            one.ask(do="drop", job=job)

    def prepare(self, workload: Workload, kind: str) -> None:
        self.add(workload, kind, self.members)

    def release(self) -> None:
        ask_all(self.members, do="release")
        self.drop(self._job)

    def close(self) -> None:
        for one in (*self.members, *self.aggregators):
            one.end()


class Gloo:
    """torch.distributed over gloo, two ranks."""

    def __init__(self, python: str, folder: Path) -> None:
        module = "benchmarks.aggregation.gloo_member"
        self.members = [
            Talker(
                [python, "-m", module, str(rank), str(MEMBERS), str(folder / "gloo.store")],
                folder / f"gloo-{rank}.log",
                {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(MEMBERS)
        ]
        for one in self.members:
            one.answer()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [one.process for one in self.members]

    def prepare(self, workload: Workload, kind: str) -> None:
        ask_all(self.members, do="prepare", counts=workload.counts, buckets=ddp_buckets(workload.counts))

    def release(self) -> None:
        ask_all(self.members, do="release")

    def close(self) -> None:
        for one in self.members:
            one.end()


class PsLite:
    """ps-lite as MXNet 1.9.1 has it: scheduler, server, two workers."""

    def __init__(self, python: str, folder: Path, port: int) -> None:
        common = {
            "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": str(MEMBERS), "DMLC_INTERFACE": "lo", "DMLC_NODE_HOST": "127.0.0.1",
            "OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1",
        }  # fmt: skip
        command = [python, str(Path(__file__).parent / "pslite_member.py")]
        self._first_keys: dict[str, int] = {}
        self._next_key = 0
        self._services = [
            Talker(command, folder / f"ps-lite-{role}.log", {**common, "DMLC_ROLE": role})
            for role in ("scheduler", "server")
        ]
        self.members = [
            Talker(command, folder / f"ps-lite-worker-{at}.log", {**common, "DMLC_ROLE": "worker"})
            for at in range(MEMBERS)
        ]
        for one in self.members:
            one.answer()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [one.process for one in (*self._services, *self.members)]

    def prepare(self, workload: Workload, kind: str) -> None:
        # A server never forgets a key, so a workload has the same ones each time.
        if workload.name not in self._first_keys:
            self._first_keys[workload.name] = self._next_key
            self._next_key += len(workload.counts)
        ask_all(self.members, do="prepare", counts=workload.counts, first_key=self._first_keys[workload.name])

    def release(self) -> None:
        ask_all(self.members, do="release")

    def close(self) -> None:
        for one in (*self.members, *self._services):
            one.end()
