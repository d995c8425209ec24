"""The second half of the demo's co-location scene: a manager groups two jobs, which outlive a kill -9 of each kind.

A sandbox has a manager, and a node that is set aside for co-located jobs. An NMF and an MLR are submitted with
``colocate``; their sums go to an Aggregator behind a slow link, so that each computes while the other communicates. The
manager measures both and puts them into one group. One job's worker is killed, then the executor that gives turns.
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from farside import admin
from farside.cli.demo.colocated import SPREAD_MAX, models_equal, steps_s
from farside.cli.demo.colocated_node import Link, address_of, serve_sums
from farside.cli.demo.show import Show
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.errors import PeerError, Unavailable
from farside.group_time import Bound
from farside.sandbox import control, settings
from farside.sandbox.session import open_sandbox
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore

SANDBOX = ("--cluster", "1x1", "--executors", "1", "--donors", "1", "--size", "64MiB")
ITERATIONS = 90
# By job, rows and options of its program: each computes about 0.2 s and communicates about 0.12 s an iteration.
JOBS: Mapping[str, tuple[int, Sequence[str]]] = {
    "nmf": (6000, ("--columns", "1875", "--rank", "64")),
    "mlr": (5300, ("--columns", "3000", "--classes", "40", "--penalty", "0.1")),
}
# Without a slow link only short computing leaves the other job something to fill.
UNLINKED_SHARE = 4
OVER = ("done", "failed", "cancelled", "timed_out")
LIMIT_S = 120.0
_COUNTED = 36
"""Turns that each job has in the group before its times are read: twelve iterations."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedJob:
    """One job: how it ended, how often it was started, whether its model is the one that it has alone."""

    name: str
    state: str
    starts: int
    is_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedScene:
    """What happened.

    Attributes:
        unjudged: Why times say nothing here; empty where they do.
        spread: Of computing in the group, as a share of an iteration; the larger of both jobs'.
        node: On which they were grouped.
        bound: What bounds an iteration of both, as the manager said.
        predicted_s: An iteration of both, as the manager decided by it.
        measured_s: The same as `farside groups` had it then.
        still_s: The longest pause of the other job after its neighbour's worker was killed.
        turns_s: After the executor's death, until both jobs had turns again.
        violations: What the log's checker finds.
    """

    unjudged: str
    spread: float
    node: str
    bound: Bound
    predicted_s: float
    measured_s: float
    still_s: float
    turns_s: float
    jobs: tuple[ManagedJob, ...]
    violations: tuple[str, ...]


def play(show: Show, folder: Path) -> ManagedScene:
    """Plays it.

    Raises:
        FarsideError: The sandbox did not start, or what has to happen did not in time.
    """
    folder.mkdir()
    with ExitStack() as stack:
        unjudged, inside, share = "", tuple[str, ...](), 1
        try:
            inside = stack.enter_context(closing(Link())).inside()
        except Unavailable as error:
            unjudged, share = str(error), UNLINKED_SHARE
        show.begin("both jobs of the second half run alone")
        _alone(folder, share)
        show.end(f"{share * ITERATIONS} iterations each")
        show.begin("a manager and a node that is set aside for co-located jobs start")
        address = address_of(inside)
        serve_sums(stack, folder / "sums", address, inside)
        service = ("--service", f"tcp:{address}", "--key-file", f"{folder}/sums/key")
        sandbox = stack.enter_context(open_sandbox(SANDBOX, state=folder / "cluster"))
        stage = _Stage(sandbox.state, folder, share, inside, service)
        show.end("with its executor; an Aggregator is behind " + ("no link" if unjudged else "a link of 16 MB/s"))
        found = stage.play(show, unjudged)
        store = load_config(ManagerConfig, (sandbox_config(sandbox.state),)).store_url
        with closing(EventStore(store)) as log:
            wrong = tuple(violations(list(log.read_all()), is_complete=True))
    if not found["unjudged"] and found["spread"] > SPREAD_MAX:
        noise = f"{100 * found['spread']:.0f} % of an iteration"
        found["unjudged"] = f"computing varied by {noise}: this machine is too busy to measure on"
    return ManagedScene(violations=wrong, **found)


def _train(name: str, out: Path, share: int, *more: str) -> list[str]:
    """Its command, with a share of its rows for as many times as many iterations."""
    rows, its = JOBS[name]
    size = ("--iterations", f"{share * ITERATIONS}", "--rows", f"{rows // share}", "--blocks", "8")
    what = ("train", name, "--data", "synthetic", "--out", os.fspath(out))
    return [sys.executable, "-m", "farside", *what, *size, *its, *more]


def _alone(folder: Path, share: int) -> None:
    words = {name: _train(name, folder / f"{name}-alone.npz", share) for name in JOBS}
    running = {
        name: subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=settings.JOB_VARIABLES)
        for name, argv in words.items()
    }
    try:
        for name, process in running.items():
            if process.wait(timeout=LIMIT_S):
                raise Unavailable(f"{name} alone ended with status {process.returncode}")
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"a job alone has not ended after {LIMIT_S:g} s") from error
    finally:
        for process in running.values():
            process.kill()
            process.wait()


class _Stage:
    """The sandbox while both jobs run."""

    def __init__(self, state: Path, folder: Path, share: int, inside: Sequence[str], service: Sequence[str]) -> None:
        self._state, self._folder, self._share, self._inside, self._service = state, folder, share, inside, service
        cluster = control.record(state).cluster
        assert cluster is not None, "it was started with one"
        self._executor = Path(cluster.executors[0].admin_socket)
        self._ids = dict[str, str]()

    def play(self, show: Show, unjudged: str) -> dict[str, Any]:
        """All that happens, as fields of the scene."""
        first, other = JOBS
        show.begin("two jobs are submitted, one once the other is measured")
        self._until(self._is_ready, "the node's executor to be known")
        self._submit(first)
        self._until(lambda: self._plan(first), f"{first} to be measured")
        self._submit(other)
        group = self._until(lambda: self._plan(first, other), "both to be in one group")
        show.end(f"both on {group['node']}: an iteration of both is to take {group['plan']['predicted_s']:.3f} s")
        since = self._turns()
        show.begin("their iterations are measured")
        self._until(lambda: self._have_turns(since, _COUNTED), "both jobs to go on")
        group = self._until(lambda: self._plan(first, other, is_measured=True), "the group to be measured")
        spread = max(self._spread(name) for name in JOBS)
        show.end(f"{group['measured_s']:.3f} s")
        show.begin(f"kill -9 of the worker of {first}")
        still_s = self._kill_worker(first, other)
        show.end(f"{other} never stood still for more than {still_s:.2f} s, and {first} trains again")
        show.begin("kill -9 of the executor that gives turns")
        turns_s = self._kill_executor()
        show.end(f"turns again after {turns_s:.2f} s")
        show.begin("both jobs end, and their models are compared with those of the jobs alone")
        jobs = tuple(self._ended(name) for name in JOBS)
        show.end("every bit is equal" if all(job.is_equal for job in jobs) else "not equal")
        return {
            "unjudged": unjudged, "spread": spread, "node": group["node"], "bound": group["plan"]["bound"],
            "predicted_s": group["plan"]["predicted_s"], "measured_s": group["measured_s"],
            "still_s": still_s, "turns_s": turns_s, "jobs": jobs,
        }  # fmt: skip

    def _submit(self, name: str) -> None:
        home = self._folder / name
        home.mkdir()
        argv = _train(name, home / "model.npz", self._share, *self._service, "--checkpoint-s", "2")
        body = {
            "argv": [*self._inside, *argv], "name": name, "colocate": True,
            "checkpoint_dir": os.fspath(home), "cwd": os.fspath(home), "output": os.fspath(home / "output"),
            "env": settings.JOB_VARIABLES,
        }  # fmt: skip
        with self._client() as client:
            (self._ids[name],) = client.post("jobs", body=body)["ids"]

    def _is_ready(self) -> bool:
        with self._client() as client:
            return any(node["services"].get("executor") for node in client.get("nodes")["nodes"])

    def _plan(self, *names: str, is_measured: bool = False) -> Mapping[str, Any] | None:
        """The group that has just these jobs, once all of them are measured; null before."""
        with self._client() as client:
            groups = client.get("groups")["groups"]
        wanted = sorted(self._ids[name] for name in names)
        found: Iterator[Mapping[str, Any]] = (
            one for one in groups if one["plan"] and sorted(one["plan"]["jobs"]) == wanted
        )
        group = next(found, None)
        if group is None or group["plan"]["predicted_s"] is None or (is_measured and group["measured_s"] is None):
            return None
        return group

    # --- turns, as the executor has them

    def _workers(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """By job, the name of its turns and what the executor says of its worker."""
        told = admin.call(self._executor, "status", timeout_s=5)["jobs"]
        found = {_job_of(one["pid"]): (turns, one) for turns, one in told.items()}
        return {name: found[job_id] for name, job_id in self._ids.items() if job_id in found}

    def _turns(self) -> dict[str, tuple[str, int]]:
        return {name: (turns, int(one["turns"])) for name, (turns, one) in self._workers().items()}

    def _have_turns(self, since: Mapping[str, tuple[str, int]], count: int) -> bool:
        """Whether each job has had ``count`` turns more, in its present start."""
        now = self._turns()
        before = dict(since.values())
        return len(now) == len(JOBS) and all(many - before.get(turns, 0) >= count for turns, many in now.values())

    def _trace(self, name: str) -> list[list[Any]]:
        turns, _ = self._workers()[name]
        rows: list[list[Any]] = []
        first = 0
        while more := admin.call(self._executor, "trace", first=first)["rows"]:
            first += len(more)
            rows += [row for row in more if row[0] == turns]
        return rows

    def _spread(self, name: str) -> float:
        """The spread of computing in this group, as a share of an iteration without waiting."""
        rows = self._trace(name)[-_COUNTED:]
        turns = rows[-1][0]
        comp, net = steps_s(rows, turns, ("COMP",)), steps_s(rows, turns, ("PULL", "PUSH"))
        return statistics.stdev(comp) / (statistics.mean(comp) + statistics.mean(net))

    # --- kills

    def _kill_worker(self, victim: str, other: str) -> float:
        """Kills it; the longest pause of the other one until both train again."""
        since = self._turns()
        killed_ns = time.monotonic_ns()
        os.kill(int(self._workers()[victim][1]["pid"]), signal.SIGKILL)
        gone = {name: had for name, had in since.items() if name != victim}
        self._until(lambda: self._starts(victim) > 1 and self._have_turns(gone, 9), f"{victim} to train again")
        return max(pauses_s(self._trace(other), killed_ns))

    def _kill_executor(self) -> float:
        """Kills it; seconds until another one has given turns to both."""
        killed_ns = time.monotonic_ns()
        pid = int(admin.call(self._executor, "status", timeout_s=5)["pid"])
        os.kill(pid, signal.SIGKILL)

        def is_another() -> bool:
            return bool(admin.call(self._executor, "status", timeout_s=5)["pid"] != pid) and self._have_turns({}, 1)

        self._until(is_another, "turns to be given again", every_s=0.02)
        return (time.monotonic_ns() - killed_ns) / 1e9

    def _starts(self, name: str) -> int:
        with self._client() as client:
            return int(client.get("jobs", self._ids[name])["starts"])

    # --- the end

    def _ended(self, name: str) -> ManagedJob:
        def job() -> Any:
            with self._client() as client:
                found = client.get("jobs", self._ids[name])
            return found if found["state"] in OVER else None

        found = self._until(job, f"{name} to end")
        files = (self._folder / f"{name}-alone.npz", self._folder / name / "model.npz")
        return ManagedJob(
            name=name, state=found["state"], starts=found["starts"],
            is_equal=found["state"] == "done" and models_equal(*files),
        )  # fmt: skip

    def _until(self, look: Callable[[], T | None], what: str, *, every_s: float = 0.2) -> T:
        """What `look` says, once it is true."""
        found: list[T] = []

        def safely() -> bool:
            try:
                told = look()
            except PeerError:  # it is busy, or starts
                return False
            found.extend([told] if told else [])
            return bool(found)

        wait_until(safely, what, limit_s=LIMIT_S * settings.PATIENCE, every_s=every_s)
        return found[0]

    def _client(self) -> ManagerClient:
        return ManagerClient(find_manager(state=self._state))


def pauses_s(rows: Sequence[Sequence[Any]], since_ns: int) -> list[float]:
    """Seconds from the end of each iteration to that of the next, of those that ended after a moment, by a trace."""
    ends = sorted(row[5] for row in rows if row[2] == "PUSH")
    return [(later - before) / 1e9 for before, later in itertools.pairwise(ends) if later > since_ns]


def _job_of(pid: int) -> str:
    """The manager's job that a process is of; empty: of none, or it is gone."""
    try:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    name = b"FARSIDE_JOB="
    return next((one.removeprefix(name).decode() for one in told if one.startswith(name)), "")
