"""Nodes of the demo's co-location scene: each a processor of this machine, a link, an Aggregator and an executor.

The link is the loopback of a network namespace, on which tc's token bucket sets the rate: what a node's workers push
and pull meets there, as on a machine's one link.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from farside import admin
from farside.agent.messages import LIBRARY_THREADS
from farside.cli.demo.serving_rig import free_ports
from farside.errors import PeerError, Unavailable
from farside.sandbox.waiting import wait_until
from farside.training.app.program import Options
from farside.training.loop.ended import Paused
from farside.training.loop.job import CHECKPOINT_DIR
from farside.training.loop.turns import EXECUTOR
from farside.training.static_plan import JOB, KEY_FILE, SERVICE

LINK_BYTES_PER_S = 16_000_000
PORT = 7683  # of the Aggregator, in a namespace of its own
START_S, STOP_S = 120.0, 60.0
# The bucket holds so much: less would drop what the kernel hands over at once.
_TC = f"qdisc replace dev lo root tbf rate {8 * LINK_BYTES_PER_S}bit burst 64kb latency 50ms"
_LINK_PROGRAMS = ("unshare", "nsenter", "ip", "tc")
# Whatever happens to the demo, none of its processes outlives it.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")


class Link:
    """A network namespace with a slow loopback; ends with `close`."""

    def __init__(self) -> None:
        """Makes it.

        Raises:
            Unavailable: why this machine can't, in one line.
        """
        if os.geteuid() != 0:
            raise Unavailable("a link of a set rate needs root")
        missing = [name for name in _LINK_PROGRAMS if shutil.which(name) is None]
        if missing:
            raise Unavailable(
                f"a link of a set rate needs {', '.join(missing)}", hint="apt install iproute2 util-linux"
            )
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        try:
            self._holder.stdin.write(b"\n")
            self._holder.stdin.flush()
            if not self._holder.stdout.read(1):  # it answers once it has its namespace
                raise Unavailable(f"no network namespace can be made: {_last_line(self._holder.stderr.read())}")
            for words in ("ip link set lo mtu 16384 up", f"tc {_TC}"):
                told = subprocess.run([*self.inside(), *words.split()], capture_output=True, check=False)
                if told.returncode:
                    raise Unavailable(f"the link's rate can't be set: {_last_line(told.stderr)}")
        except OSError as error:
            self.close()
            raise Unavailable(f"no network namespace can be made: {error.strerror}") from error
        except Unavailable:
            self.close()
            raise

    def inside(self) -> tuple[str, ...]:
        """Words that begin a command in the namespace."""
        return ("nsenter", f"--target={self._holder.pid}", "--net", "--")

    def close(self) -> None:
        """Ends it, once no process is in it."""
        self._holder.kill()
        self._holder.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """When a worker began to train, and when it had its model; nanoseconds of CLOCK_MONOTONIC.

    ``objective``: of the model, in hexadecimal. ``model``: a digest of it, so that two can be compared bit for bit.
    """

    begun_ns: int
    ended_ns: int
    objective: str
    model: str

    @property
    def took_s(self) -> float:
        """Seconds between."""
        return (self.ended_ns - self.begun_ns) / 1e9


class Worker:
    """A job's process on a node. ``start`` names this start of the job: its turns have that name."""

    def __init__(self, start: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.start = start
        self._process, self._log = process, log
        self._begun_s = time.monotonic()
        self._is_stopped = False
        self.start_s = 0.0

    @property
    def fd(self) -> int:
        """Readable when it says something, or has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def wait_ready(self) -> None:
        """Returns when it has its input; ``start_s`` is how long that took.

        Raises:
            Unavailable: it did not start.
        """
        assert self._process.stdout is not None
        if not select.select([self.fd], [], [], START_S)[0] or self._process.stdout.readline() != "ready\n":
            raise Unavailable(f"a job did not start: {_last_line(self._log.read_bytes())}")
        self.start_s = time.monotonic() - self._begun_s

    def go(self) -> None:
        """Lets it train."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self, limit_s: float) -> Ran | None:
        """What came of it; None: it was stopped, with a checkpoint.

        Raises:
            Unavailable: it failed, or did not end in time.
        """
        try:
            out, _ = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"job {self.start} has not ended after {limit_s:g} s") from error
        code = self._process.returncode
        if code == 0:
            return Ran(**json.loads(out.splitlines()[-1]))
        # Before it trains nobody is there to hear the signal, and nothing is lost.
        if self._is_stopped and code in (Paused.exit_code, -15):
            return None
        raise Unavailable(f"job {self.start} ended with status {code}: {_last_line(self._log.read_bytes())}")

    def stop(self) -> Ran | None:
        """Stops it, with a checkpoint; its times if it had ended already."""
        self._is_stopped = True
        self._process.terminate()
        return self.wait(STOP_S)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()


class Node(AbstractContextManager["Node"]):
    """One processor, one link, and what serves jobs there; ends with the body of its `with`."""

    def __init__(self, name: str, folder: Path, *, processor: int, link: Link | None) -> None:
        """``link``: None, and nothing slows the node's network."""
        self.name = name
        self._folder, self._processor, self._link = folder / name, processor, link
        self._address = address_of(self._inside())
        self._stack = ExitStack()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        folder = self._folder
        with self._stack as stack:
            serve_sums(stack, folder, self._address, self._inside())
            words = ("executor", "--socket", f"{folder}/x.sock", "--admin-socket", f"{folder}/x.admin")
            _serve(stack, folder, self._inside(), words, folder / "x.admin")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            worker.kill()
        self._stack.close()

    def _inside(self) -> Sequence[str]:
        return self._link.inside() if self._link is not None else ()

    def start(self, start: str, options: Options, checkpoints: Path) -> Worker:
        """Starts a job's worker, which waits for `Worker.go` when it is ready.

        Args:
            start: Another name each time.
            options: Of its program.
            checkpoints: Its folder for them; it goes on from what is there.
        """
        variables: Mapping[str, str] = {
            **os.environ, **dict.fromkeys(LIBRARY_THREADS, "1"), SERVICE: f"tcp:{self._address}", JOB: start,
            KEY_FILE: f"{self._folder}/key", "RANK": "0", "WORLD_SIZE": "1", EXECUTOR: f"{self._folder}/x.sock",
            CHECKPOINT_DIR: str(checkpoints),
        }  # fmt: skip
        where = [*self._inside(), "taskset", "--cpu-list", str(self._processor), *_DIES_WITH_US]
        what = ["-m", "farside.cli.demo.colocated_job", msgspec.json.encode(options).decode()]
        log = self._folder / f"{start}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*where, sys.executable, *what],
                env=variables,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        worker = Worker(start, process, log)
        self._workers.append(worker)
        return worker

    def trace(self) -> list[list[Any]]:
        """Turns that are over: start, position, phase; when asked, granted and done; whether with a lease."""
        rows: list[list[Any]] = []
        while more := admin.call(self._folder / "x.admin", "trace", first=len(rows))["rows"]:
            rows += [[row[0].partition(":")[2], *row[1:]] for row in more]
        return rows


def address_of(inside: Sequence[str]) -> str:
    """Where an Aggregator listens that is started by these words: any port of a namespace is free."""
    return f"127.0.0.1:{PORT if inside else free_ports(1)[0]}"


def serve_sums(stack: ExitStack, folder: Path, address: str, inside: Sequence[str]) -> None:
    """Starts an Aggregator, which ends with the stack; its key is FOLDER/key.

    Args:
        stack: Of what ends with it.
        folder: Its own; it is made.
        address: HOST:PORT that it listens on.
        inside: Words that begin a command in its network.

    Raises:
        PeerError: It did not start in time.
    """
    folder.mkdir()
    key, config = folder / "key", folder / "aggregator.toml"
    key.touch(mode=0o600)
    key.write_text(os.urandom(32).hex())
    config.write_text(
        f'node = "{folder.name}"\nlisten = ["tcp:{address}"]\nkey_file = "{key}"\n'
        f'admin_socket = "{folder}/a.admin"\nkeep_s = 1\n'
    )
    _serve(stack, folder, inside, ("aggregator", "--config", str(config)), folder / "a.admin")


def _serve(stack: ExitStack, folder: Path, inside: Sequence[str], words: Sequence[str], admin_socket: Path) -> None:
    argv = [*inside, *_DIES_WITH_US, sys.executable, "-m", "farside", *words]
    with (folder / "serves.log").open("ab") as log:
        process = subprocess.Popen(argv, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    wait_until(partial(_answers, admin_socket), f"{folder.name} to serve", limit_s=START_S)


def _answers(path: Path) -> bool:
    try:
        return bool(admin.call(path, "status", timeout_s=5))
    except PeerError:
        return False


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing was said"
