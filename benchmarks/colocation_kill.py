"""``python -m benchmarks.colocation_kill``: a worker, the executor, the agent and the manager are killed; who waits.

A manager groups two co-located jobs on one node, where they take turns. Each victim is killed at many moments, drawn by
a seed; an executor after it has served for over a second, since one that dies sooner again and again is replaced later
each time. Measured: how long the other jobs stood still, how long until what was killed is back, and whether both
models are in the end those of jobs that nobody killed. The manager's log has to be sound, and a job is started again
only where its own worker was killed.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.machine import this_command, this_commit, this_machine
from farside import admin
from farside.agent.training.executor import SHORT_LIFE_S
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.errors import FarsideError, PeerError
from farside.sandbox import control
from farside.sandbox.session import open_sandbox
from farside.sandbox.settings import JOB_VARIABLES
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore
from farside.training.loop.job import CHECKPOINT_S
from farside.training.static_plan import KEY_FILE, SERVICE

RESULTS = Path(__file__).parent / "results" / "colocation_kill.json"
JOB = Path(__file__).parent / "colocation_kill_job.py"
SANDBOX = ("--cluster", "1x1", "--executors", "1", "--donors", "1", "--size", "64MiB")
JOBS = ("one", "other")
VICTIMS = ("worker", "executor", "agent", "manager")
LIMIT_S = 60.0
STILL_MAX_S, WORKER_TURN_S, EXECUTOR_TURN_S = 1.0, 0.5, 2.0
SETTLED = 5
"""Iterations of each job between two kills."""


@dataclass(slots=True, kw_only=True)
class Killed:
    """What came of all kills of one kind of process; seconds.

    Attributes:
        still_s: The longest pause of a job whose process was not killed.
        turn_s: After a worker's death until another job got its next turn; after an executor's until turns were given.
        back_s: Until the killed job trained on, or the process answered again.
    """

    still_s: list[float] = field(default_factory=list)
    turn_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)


def main() -> int:
    """Measures, and writes it; 1 if a model differs, or what the manager did is not sound."""
    words = argparse.ArgumentParser(description="Processes of jobs that take turns are killed.")
    words.add_argument("--moments", type=int, default=20, help="How often each is killed")
    words.add_argument("--victims", default=",".join(VICTIMS), help="Which, with commas")
    words.add_argument("--seed", type=int, default=1, help="Seed of the moments")
    words.add_argument("--output", type=Path, default=RESULTS, help="File for the figures, JSON")
    asked = words.parse_args()
    victims = [name for name in asked.victims.split(",") if name]
    if unknown := [name for name in victims if name not in VICTIMS]:
        words.error(f"--victims: no {unknown[0]}; there are {', '.join(VICTIMS)}")
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="farside-kill-") as folder, ExitStack() as stack:
        stage = Stage(Path(folder), stack, random.Random(asked.seed))
        found = {victim: stage.kill(victim, asked.moments) for victim in victims}
        equal = stage.ended_equal()
        faults = stage.faults(asked.moments if "worker" in victims else 0)
    head = {"command": this_command("benchmarks.colocation_kill"), "machine": msgspec.to_builtins(machine)}
    record = {
        **head, "commit": this_commit(), "moments": asked.moments, "are_models_equal": equal, "faults": faults,
        "load_after": round(os.getloadavg()[0], 2),
        "seconds": {victim: {name: getattr(one, name) for name in ("still_s", "turn_s", "back_s")}
                    for victim, one in found.items()},
        "tables": [_table(found)],
    }  # fmt: skip
    asked.output.write_text(json.dumps(record, indent=1) + "\n")
    for row in (record["tables"][0]["header"], *record["tables"][0]["rows"]):
        print(" | ".join(row))
    for line in ("models are equal" if equal else "models DIFFER", *faults):
        print(line)
    return 0 if equal and not faults else 1


class Stage:
    """A sandbox with a manager and an agent, an Aggregator, an executor, and both jobs as they run."""

    def __init__(self, folder: Path, stack: ExitStack, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(os.urandom(32).hex())
        (folder / "aggregator.toml").write_text(
            f'node = "bench"\nlisten = ["unix:{folder}/m.sock"]\nkey_file = "{key}"\n'
            f'admin_socket = "{folder}/a.admin"\nkeep_s = 1\n'
        )
        self._serve(stack, "aggregator", "--config", folder / "aggregator.toml")
        _until(partial(_status, folder / "a.admin"), "the Aggregator to answer")
        self._state = stack.enter_context(open_sandbox(SANDBOX, state=folder / "cluster")).state
        cluster = control.record(self._state).cluster
        assert cluster is not None, "it was started with one"
        self._executor = Path(cluster.executors[0].admin_socket)
        _until(self._has_executor, "the manager to know the node's executor")
        self._ids = {name: self._submit(name) for name in JOBS}
        self.group = _until(self._grouped, "both jobs to be measured, in one group")
        self._settle()

    def _serve(self, stack: ExitStack, *words: object) -> None:
        argv = [sys.executable, "-m", "farside", *map(str, words)]
        with (self._folder / f"{words[0]}.err").open("wb") as log:
            process = subprocess.Popen(argv, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _has_executor(self) -> bool:
        return any(node["services"].get("executor") for node in self._asked("nodes")["nodes"])

    def _grouped(self) -> Mapping[str, Any] | None:
        """The group of both jobs as the manager planned it, once both are measured."""
        plans = [group["plan"] for group in self._asked("groups")["groups"] if group["plan"]]
        wanted = sorted(self._ids.values())
        return next((one for one in plans if sorted(one["jobs"]) == wanted and one["predicted_s"] is not None), None)

    def _asked(self, *path: str) -> Any:
        with ManagerClient(find_manager(state=self._state)) as client:
            return client.get(*path)

    def _submit(self, name: str) -> str:
        folder = self._folder
        variables = {
            **JOB_VARIABLES, SERVICE: f"unix:{folder}/m.sock", KEY_FILE: f"{folder}/key", CHECKPOINT_S: "0.3",
        }  # fmt: skip
        body = {
            "argv": [sys.executable, "-m", "farside", "train", os.fspath(JOB), os.fspath(folder), name],
            "name": name, "colocate": True, "env": variables, "cwd": os.fspath(folder), "retries": 1000,
            "output": os.fspath(folder / f"{name}.out"), "checkpoint_dir": os.fspath(folder / f"{name}.kept"),
        }  # fmt: skip
        with ManagerClient(find_manager(state=self._state)) as client:
            (job_id,) = client.post("jobs", body=body)["ids"]
        return str(job_id)

    # --- one kill after the other

    def kill(self, victim: str, moments: int) -> Killed:
        """Kills it at so many moments."""
        found = Killed()
        ways: Mapping[str, Callable[[Killed], None]] = {
            "worker": self._kill_worker, "executor": self._kill_executor, "agent": self._kill_agent,
            "manager": self._kill_manager,
        }  # fmt: skip
        for number in range(moments):
            self._settle()
            time.sleep(self._rng.uniform(0.0, 0.5))
            ways[victim](found)
            print(f"{victim} {number + 1} of {moments}", file=sys.stderr, flush=True)
        return found

    def _kill_worker(self, found: Killed) -> None:
        status = _until(self._both_take_turns, "both jobs to take turns")
        _, worker = self._rng.choice(sorted(status["jobs"].items()))
        before = {name: len(self._times(name)) for name in JOBS}
        killed_ns = time.monotonic_ns()
        os.kill(int(worker["pid"]), signal.SIGKILL)
        # Who was killed shows by standing still longer: the other one goes on within moments.
        _until(lambda: any(len(self._times(name)) > before[name] + 1 for name in JOBS), "the other job to go on")
        _until(lambda: all(len(self._times(name)) > before[name] + SETTLED for name in JOBS), "both jobs to go on")
        pauses = {name: self._pause_s(name, killed_ns) for name in JOBS}
        other = min(pauses, key=lambda name: pauses[name])
        found.still_s.append(pauses[other])
        found.turn_s.append(self._next_s(other, killed_ns))
        found.back_s.append(max(self._next_s(name, killed_ns) for name in JOBS))

    def _kill_executor(self, found: Killed) -> None:
        pid = int(_until(self._both_take_turns, "both jobs to take turns")["pid"])
        time.sleep(SHORT_LIFE_S)
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        status = _until(lambda: self._both_take_turns(apart_from=pid), "turns to be given again")
        found.turn_s.append((time.monotonic_ns() - killed_ns) / 1e9)
        assert status["pid"] != pid
        self._all_went_on(found, killed_ns)

    def _kill_agent(self, found: Killed) -> None:
        pid = control.record(self._state).agent("n1").pid
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        _until(lambda: control.record(self._state).agent("n1").pid != pid, "the sandbox to notice")
        control.start_agent(self._state, "n1")
        found.back_s.append((time.monotonic_ns() - killed_ns) / 1e9)
        self._all_went_on(found, killed_ns)

    def _kill_manager(self, found: Killed) -> None:
        killed_ns = time.monotonic_ns()
        control.kill_manager(self._state)
        control.start_manager(self._state)
        found.back_s.append((time.monotonic_ns() - killed_ns) / 1e9)
        self._all_went_on(found, killed_ns)

    def _all_went_on(self, found: Killed, killed_ns: int) -> None:
        self._settle()
        found.still_s.append(max(self._pause_s(name, killed_ns) for name in JOBS))

    # --- what jobs have noted

    def _times(self, name: str) -> list[int]:
        """When its iterations began, nanoseconds of CLOCK_MONOTONIC."""
        try:
            lines = (self._folder / f"{name}.log").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [int(line.split()[1]) for line in lines if line.count(" ") == 1]

    def _settle(self) -> None:
        """Returns when both have gone on for a few iterations."""
        before = {name: len(self._times(name)) for name in JOBS}
        _until(lambda: all(len(self._times(name)) > before[name] + SETTLED for name in JOBS), "both jobs to train")

    def _pause_s(self, name: str, since_ns: int) -> float:
        """The longest time between two iterations of which the later began after a moment."""
        pairs = itertools.pairwise(self._times(name))
        return max(((later - before) / 1e9 for before, later in pairs if later > since_ns), default=0.0)

    def _next_s(self, name: str, since_ns: int) -> float:
        return (next(at for at in self._times(name) if at > since_ns) - since_ns) / 1e9

    def _both_take_turns(self, *, apart_from: int = 0) -> Mapping[str, Any] | None:
        status = _status(self._executor)
        if not status or status["pid"] == apart_from or len(status["jobs"]) < len(JOBS):
            return None
        return status if all(one["turns"] > 0 for one in status["jobs"].values()) else None

    # --- the end

    def ended_equal(self) -> bool:
        """Ends both jobs, and trains them once more by themselves for as many iterations."""
        (self._folder / "stop").touch()
        models = [self._folder / f"{name}.model" for name in JOBS]
        _until(lambda: all(path.exists() for path in models), "both jobs to end")
        return all(self._is_equal(name, path.read_bytes()) for name, path in zip(JOBS, models, strict=True))

    def faults(self, worker_kills: int) -> tuple[str, ...]:
        """What is wrong in the manager's log, and starts of jobs that no kill of a worker explains."""
        _until(
            lambda: all(self._asked("jobs", one)["state"] == "done" for one in self._ids.values()), "both jobs' ends"
        )
        starts = sum(self._asked("jobs", one)["starts"] for one in self._ids.values()) - len(JOBS)
        said = [f"jobs were started again {starts} times, for {worker_kills} kills"] if starts != worker_kills else []
        store = load_config(ManagerConfig, (sandbox_config(self._state),)).store_url
        with closing(EventStore(store)) as log:
            return (*said, *violations(list(log.read_all()), is_complete=True))

    def _is_equal(self, name: str, model: bytes) -> bool:
        folder = self._folder / f"alone-{name}"
        folder.mkdir()
        argv = [sys.executable, "-m", "farside", "train", os.fspath(JOB), os.fspath(folder), name]
        subprocess.run([*argv, model.split(b" ", 1)[0].decode()], check=True, env=JOB_VARIABLES)
        return (folder / f"{name}.model").read_bytes() == model


def _status(path: Path) -> Mapping[str, Any] | None:
    try:
        told: Mapping[str, Any] = admin.call(path, "status", timeout_s=5)
    except PeerError:
        return None
    return told


def _until(look: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise FarsideError(f"waited {LIMIT_S:g} s in vain for {what}")
        time.sleep(0.01)


def _table(found: Mapping[str, Killed]) -> dict[str, Any]:
    def middle(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f} s ({max(values):.2f} s)" if values else "-"

    def met(victim: str, killed: Killed) -> str:
        turn_most_s = {"worker": WORKER_TURN_S, "executor": EXECUTOR_TURN_S}.get(victim, 0.0)
        is_met = max(killed.still_s) <= STILL_MAX_S and max(killed.turn_s, default=0.0) <= turn_most_s
        return "yes" if is_met else "no"

    bars = {
        "worker": f"{STILL_MAX_S:g} s, turns {WORKER_TURN_S:g} s",
        "executor": f"{STILL_MAX_S:g} s, turns {EXECUTOR_TURN_S:g} s",
    }
    return {
        "header": ["killed", "times", "others stood still", "turns again", "back", "bars", "met"],
        "rows": [
            [
                victim, str(len(one.still_s)), middle(one.still_s), middle(one.turn_s), middle(one.back_s),
                bars.get(victim, f"{STILL_MAX_S:g} s"), met(victim, one),
            ]
            for victim, one in found.items()
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
