"""``python -m benchmarks.manager_load``: the manager under 2,000 agents and 10,000 queued jobs, on this machine.

Starts `farside manager` with an empty store, simulated agents (`manager_agents.py`, processes of their own) that report
every 5 s, fills all GPUs, queues the jobs, and then asks the API at a steady rate, one request at a time from each of a
few clients, while jobs end and others start. Prints latencies as the clients see them, what the brain says of its
cycles, and how much of a core each process took meanwhile: agents and clients would be elsewhere, and here they take
their part of the machine from the manager. How late a client that slept was woken says how much of a latency is that.
"""

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path

from benchmarks.load import process_cpu_s
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.manager_agents import Fleet, name_of
from benchmarks.render import table
from benchmarks.result import Machine
from farside import admin
from farside.client.manager_client import ManagerAddress, ManagerClient, UnixConnection
from farside.errors import FarsideError
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.processes import PIDS

START_LIMIT_S = 120.0
CLIENTS = 4
GPUS = 8  # of a node
BUSY_SHARE = 0.99  # jobs end all the time
# What waits: GPUs of a job, and the share of jobs that ask for so many.
QUEUED = ((1, 0.6), (2, 0.2), (4, 0.1), (8, 0.1))
# What clients ask, and how often of a hundred times: people look at their job and at the queue, scripts submit.
ASKED: Mapping[str, int] = {"show": 50, "explain": 10, "queue": 10, "nodes": 5, "submit": 15, "cancel": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds of one kind of request, seen by the client over the unix socket."""

    requests: int
    median_ms: float
    p99_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the clients found: milliseconds by kind of request, and how late each sleep of theirs ended."""

    answers: Sequence[tuple[str, float]]
    wakes_ms: Sequence[float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit code."""
    options = _parse(arguments)
    try:
        found = _measure(options)
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manager_load", description=__doc__)
    parser.add_argument("--agents", type=int, default=2000, help="of eight GPUs each; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=10_000, help="that wait; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring; default: %(default)s")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, all clients; default: %(default)s")
    parser.add_argument("--run", type=float, default=200.0, help="mean seconds that a job runs; default: %(default)s")
    parser.add_argument("--policy", default="las", help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", help="write the figures there, as JSON")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace) -> Mapping[str, object]:
    with ExitStack() as stack:
        machine = this_machine()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farside-load-")))
        address, fleet = stack.enter_context(running_manager(folder, options.agents, policy=options.policy))
        agents = stack.enter_context(running_agents(fleet, options))
        client = stack.enter_context(ManagerClient(address))
        queue = fill(client, options)
        parts = json.loads((folder / "m" / PIDS).read_text())["pids"]
        cores = _Cores({"api": parts["api"], "brain": parts["brain"], "agents": agents, "clients": os.getpid()})
        asked = ask(folder / "manager.sock", queue, options)
        return _told(options, machine, asked, cores.taken(), admin.call(folder / "m" / ASK, "status"))


class _Cores:
    """How much of a core each process takes, from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._begun = self._spent()

    def _spent(self) -> Mapping[str, float]:
        return {name: process_cpu_s(pid) for name, pid in self._pids.items()} | {"": time.monotonic()}

    def taken(self) -> Mapping[str, float]:
        """By name."""
        now = self._spent()
        seconds = now[""] - self._begun[""]
        return {name: (now[name] - self._begun[name]) / seconds for name in self._pids}


@contextmanager
def running_manager(
    folder: Path, agents: int, *, first: str = "", limit_s: float = START_LIMIT_S, **more: object
) -> Iterator[tuple[ManagerAddress, Fleet]]:
    """A manager with tokens for so many agents: where it answers, and what agents are told.

    Args:
        folder: An empty one.
        agents: How many.
        first: Python that its process runs before all else, to change its rules.
        limit_s: By when it has to answer.
        more: Settings.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    tokens = folder / "tokens.toml"
    agents_tokens = folder / "agents.json"
    made = {name_of(at): add_token(tokens, name_of(at), Role.NODE) for at in range(agents)}
    agents_tokens.write_text(json.dumps(made))
    told: Mapping[str, object] = {
        "listen": json.dumps([f"unix:{folder}/manager.sock", f"tcp:127.0.0.1:{port}"]),
        "store_url": f"sqlite:///{folder}/manager.db",
        "state_dir": folder / "m",
        "tokens_file": tokens,
        "node_timeout_s": 60,
        "run_as": "starter",  # else root, as whom it may be run, submits nothing
        "log_level": "warning",
        **more,
    }
    settings = [part for name, value in told.items() for part in ("--set", f"{name}={value}")]
    program = ("-c", f"{first}\nfrom farside.cli import main\nmain()") if first else ("-m", "farside")
    command = [sys.executable, *program, "manager", "-c", "/dev/null", *settings]
    address = ManagerAddress(endpoint=f"unix:{folder}/manager.sock")
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: _generation(address) > 0, "the manager to be ready", limit_s=limit_s)
        yield address, Fleet(url=f"ws://127.0.0.1:{port}", tokens=str(agents_tokens), first=0, nodes=0, gpus=GPUS)
    finally:
        process.terminate()
        process.wait(60)


def _generation(address: ManagerAddress) -> int:
    try:
        with ManagerClient(address) as client:
            return int(client.get("health")["generation"])
    except (FarsideError, OSError):
        return 0


@contextmanager
def running_agents(fleet: Fleet, options: argparse.Namespace) -> Iterator[int]:
    """Agents, ``options.agents`` of them, whose jobs run ``options.run`` seconds in the mean; their process's id."""
    command = [sys.executable, "-m", "benchmarks.manager_agents"]
    one = {**asdict(fleet), "nodes": options.agents, "mean_run_s": options.run}
    process = subprocess.Popen([*command, json.dumps(one)])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def fill(client: ManagerClient, options: argparse.Namespace) -> list[str]:
    """Waits for all agents; then a job for each node, that all GPUs are held, and the queue behind them: its ids."""

    def submit(gpus: int, count: int) -> list[str]:
        ids: list[str] = []
        while len(ids) < count:
            body = {"argv": ["true"], "gpus": gpus, "count": min(1000, count - len(ids))}
            ids += client.post("jobs", body=body)["ids"]
        return ids

    def is_full() -> bool:
        nodes = client.get("nodes")["nodes"]
        return bool(sum(node["state"] == "busy" for node in nodes) >= BUSY_SHARE * len(nodes))

    wait_until(lambda: len(client.get("nodes")["nodes"]) == options.agents, "all agents to join", limit_s=START_LIMIT_S)
    print(f"{options.agents} agents joined", flush=True)
    submit(GPUS, options.agents)
    queue = [job for gpus, share in QUEUED for job in submit(gpus, round(options.jobs * share))]
    wait_until(is_full, "all nodes to be busy", limit_s=START_LIMIT_S)
    print("all nodes are busy", flush=True)
    return queue


def ask(path: Path, queue: Sequence[str], options: argparse.Namespace) -> Asked:
    """Clients that each ask on for ``options.seconds``, at a steady rate, however long an answer takes."""
    end_s = time.monotonic() + options.seconds
    with ThreadPoolExecutor(CLIENTS) as pool:
        every = [pool.submit(_client, path, queue, seed, options.rate / CLIENTS, end_s) for seed in range(CLIENTS)]
        found = [client.result() for client in every]
    return Asked(
        answers=[one for asked in found for one in asked.answers], wakes_ms=[ms for one in found for ms in one.wakes_ms]
    )


def _client(path: Path, queue: Sequence[str], seed: int, rate: float, end_s: float) -> Asked:
    chance, own = random.Random(seed), list[str]()
    found: list[tuple[str, float]] = []
    wakes_ms: list[float] = []
    with closing(UnixConnection(str(path))) as connection:
        due_s = time.monotonic()
        while due_s < end_s:
            if (ahead_s := due_s - time.monotonic()) > 0:
                time.sleep(ahead_s)
                wakes_ms.append((time.monotonic() - due_s) * 1e3)
            due_s += chance.expovariate(rate)
            (kind,) = chance.choices(list(ASKED), list(ASKED.values()))
            begun_s = time.perf_counter()
            _request(connection, kind, own, chance.choice(queue))
            found.append((kind, (time.perf_counter() - begun_s) * 1e3))
    return Asked(answers=found, wakes_ms=wakes_ms)


def _request(connection: http.client.HTTPConnection, kind: str, own: list[str], job: str) -> None:
    """Asks, and reads the whole answer; what a client makes of it is its own time."""
    if kind == "submit" or (kind == "cancel" and not own):
        body = json.dumps({"argv": ["true"], "gpus": 1})
        own += json.loads(_answer(connection, "POST", "jobs", body))["ids"]
    elif kind == "cancel":
        _answer(connection, "POST", f"jobs/{own.pop()}/cancel")
    else:
        paths = {"queue": "jobs", "nodes": "nodes", "show": f"jobs/{job}", "explain": f"jobs/{job}/explain"}
        _answer(connection, "GET", paths[kind])


def _answer(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> bytes:
    connection.request(method, f"/v1/{path}", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    is_over = response.status == HTTPStatus.CONFLICT and path.endswith("/cancel")  # the job was faster than we
    if response.status >= 400 and not is_over:
        raise FarsideError(f"{method} {path}: {response.status} {text[:200].decode()}")
    return text


def latency_of(times_ms: Sequence[float]) -> Latency:
    """Latencies of the requests of one kind, by how long each took."""
    ordered = sorted(times_ms)
    return Latency(
        requests=len(ordered),
        median_ms=ordered[len(ordered) // 2],
        p99_ms=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        most_ms=ordered[-1],
    )


def _told(
    options: argparse.Namespace, machine: Machine, asked: Asked, cores: Mapping[str, float], brain: Mapping[str, object]
) -> Mapping[str, object]:
    latencies = {kind: latency_of([ms for other, ms in asked.answers if other == kind]) for kind in ASKED}
    latencies |= {"all": latency_of([ms for _, ms in asked.answers])}
    wakes = latency_of(asked.wakes_ms)
    rows = [
        (kind, f"{one.requests}", f"{one.median_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.most_ms:.1f}")
        for kind, one in latencies.items()
    ]
    print(table(("request", "number", "median ms", "p99 ms", "longest ms"), rows))
    print(f"a client that slept was woken late by {wakes.median_ms:.1f} ms, at p99 by {wakes.p99_ms:.1f} ms")
    print("cores taken: " + ", ".join(f"{name} {share:.2f}" for name, share in cores.items()))
    print(f"brain: {brain}")
    return {
        "agents": options.agents,
        "jobs": options.jobs,
        "policy": options.policy,
        "command": this_command("benchmarks.manager_load"),
        "commit": this_commit(),
        "machine": asdict(machine),
        "latencies": {kind: asdict(one) for kind, one in latencies.items()},
        "late_wakes": asdict(wakes),
        "cores_taken": cores,
        "brain": brain,
    }


if __name__ == "__main__":
    sys.exit(main())
