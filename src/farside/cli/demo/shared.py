"""The demo's aggregation scene: two PyTorch jobs share one Aggregator, which is then left, and another one killed.

A manager and three agents, each with an Aggregator beside it. Two jobs of two ranks train, one with the server's
optimizer, one with its own; the manager places both on one Aggregator. Its node is drained, so their tensors move while
they train, and the Aggregator that they moved to is killed. Both have to end with the very parameters that one process
has that sums the same gradients.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from farside.cli.demo.show import Show
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.errors import PeerError, Unavailable
from farside.sandbox import control, settings
from farside.sandbox.session import open_sandbox
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.store.event_store import EventStore

NODES, RANKS = 3, 2
SANDBOX = ("--cluster", f"{NODES}x4", "--aggregators", f"{NODES}", "--donors", "1", "--size", "64MiB")
MODELS = ("images", "sentences")
STEPS, PACE_S = 400, 0.05
PROGRAM = "farside.cli.demo.shared_job"
LOOK_EVERY_S = 0.2
T = TypeVar("T")

LIMIT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How a job ended.

    Attributes:
        model: Which of `MODELS`.
        state: As `farside queue` has it.
        is_equal: Every bit of every rank's parameters is that of one process.
    """

    model: str
    state: str
    is_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedScene:
    """What happened, and what the log's checker says of it; empty: the log is sound."""

    jobs: tuple[Trained, ...]
    moved_from: str
    moved_to: str
    violations: tuple[str, ...]
    page: tuple[str, ...]


def need_torch() -> None:
    """Raises Unavailable: PyTorch is not there; one line."""
    if find_spec("torch") is None:
        raise Unavailable("this scene trains with PyTorch, which is not installed", hint="make demo SCENE=aggregation")


def play(show: Show, folder: Path) -> SharedScene:
    """Plays it in a sandbox of its own.

    Raises:
        FarsideError: The sandbox did not start, or what has to happen did not in time.
    """
    need_torch()
    out = folder / "out"
    out.mkdir()
    show.begin(f"a manager and {NODES} agents start, each with an Aggregator")
    with open_sandbox(SANDBOX, state=folder / "cluster") as sandbox:
        stage = _Stage(sandbox.state, out)
        stage.until(stage.offers, f"{NODES} Aggregators to be offered")
        show.end("one core each")
        show.begin(f"two jobs of {RANKS} ranks train")
        stage.submit()
        stage.until(lambda: all(stage.steps(model) for model in MODELS), "both jobs to train")
        show.end("images by the server's SGD, sentences by Adam of its own")
        show.begin("their tensors are placed, after 20 measured iterations")
        # What was seen is kept: a moment later their chunks may move again.
        first = stage.until(
            lambda: seen[0] if len(seen := stage.shared()) == 1 else "", "both jobs to share one Aggregator"
        )
        page = stage.page()
        show.end(f"both on the Aggregator of {first}")
        show.begin(f"{first} is drained, so they move while they train")
        stage.drain(first)
        nodes = stage.until(lambda: [] if first in (seen := stage.shared()) else [*seen], f"both jobs to leave {first}")
        second = nodes[0]
        show.end(f"all chunks are on {' and '.join(nodes)} now")
        show.begin(f"kill -9 of the Aggregator on {second}")
        before = {model: stage.steps(model) for model in MODELS}
        control.kill_aggregator(sandbox.state, _aggregator_of(second))
        control.start_aggregator(sandbox.state, _aggregator_of(second))
        stage.until(lambda: all(stage.steps(model) > before[model] + 1 for model in MODELS), "both jobs to go on")
        show.end("both go on")
        show.begin("both jobs end, and train once more in one process")
        states = stage.until_ended()
        jobs = tuple(Trained(model=model, state=states[model], is_equal=_is_equal(out, model)) for model in MODELS)
        show.end("every bit is equal" if all(job.is_equal for job in jobs) else "not equal")
        store = load_config(ManagerConfig, (sandbox_config(sandbox.state),)).store_url
        with closing(EventStore(store)) as log:
            found = tuple(violations(list(log.read_all()), is_complete=True))
        return SharedScene(jobs=jobs, moved_from=first, moved_to=second, violations=found, page=page)


class _Stage:
    """The running sandbox."""

    def __init__(self, state: Path, out: Path) -> None:
        self._state, self._out = state, out
        self._ids: dict[str, str] = {}

    def submit(self) -> None:
        """Both jobs."""
        with self._client() as client:
            for model in MODELS:
                body = {
                    "argv": [
                        *(sys.executable, "-m", PROGRAM, model, "--steps", f"{STEPS}", "--pace", f"{PACE_S}"),
                        *("--out", os.fspath(self._out)),
                    ],
                    "name": model,
                    "gpus": RANKS,
                    "ranks": "gpu",
                    "aggregation": "shared",
                    "cwd": os.fspath(self._out),
                    "output": os.fspath(self._out / f"{model}.%r.log"),
                    "env": settings.JOB_VARIABLES,
                }
                (self._ids[model],) = client.post("jobs", body=body)["ids"]

    def offers(self) -> bool:
        """Whether all nodes offer their Aggregators."""
        return len(self._report()["aggregators"]) == NODES

    def shared(self) -> Sequence[str]:
        """The nodes whose Aggregators have the jobs' chunks; none while chunks move, or are placed for a while only."""
        jobs = {job["job"]: job for job in self._report()["jobs"]}
        held = [jobs.get(job_id) for job_id in self._ids.values()]
        if any(job is None or job["state"] != "placed" or job["moving_chunks"] for job in held):
            return ()
        return tuple(sorted({node for job in held if job is not None for node in job["nodes"]}))

    def steps(self, model: str) -> int:
        """Iterations that its first rank has done."""
        try:
            return int((self._out / f"{model}.0.step").read_text() or 0)
        except FileNotFoundError:
            return 0

    def drain(self, node: str) -> None:
        """Drains a node, as `farside drain` does."""
        with self._client() as client:
            client.post("nodes", node, "drain", body={"reason": "the demo moves its Aggregator's jobs"})

    def page(self) -> tuple[str, ...]:
        """What the live page shows of aggregation: the names of nodes and jobs in its section."""
        with self._client() as client:
            shown = client.get("overview")["aggregation"]
        return tuple(sorted({row["node"] for row in shown["aggregators"]} | {row["job"] for row in shown["jobs"]}))

    def until_ended(self) -> Mapping[str, str]:
        """The state of each job, once all have ended."""
        states: dict[str, str] = {}

        def are_over() -> bool:
            with self._client() as client:
                found = {job["id"]: job["state"] for job in client.get("jobs", all="true")["jobs"]}
            states.update((model, found[job_id]) for model, job_id in self._ids.items())
            return all(state in ("done", "failed", "cancelled", "timed_out") for state in states.values())

        self.until(are_over, "both jobs to end")
        return states

    def until(self, look: Callable[[], T], what: str) -> T:
        """What `look` says, once it is true."""
        found: list[T] = []

        def safely() -> bool:
            try:
                found[:] = [look()]
            except PeerError:  # the manager is busy, or starts
                return False
            return bool(found[0])

        wait_until(safely, what, limit_s=LIMIT_S * settings.PATIENCE, every_s=LOOK_EVERY_S)
        return found[0]

    def _report(self) -> Any:
        with self._client() as client:
            return client.get("aggregation")

    def _client(self) -> ManagerClient:
        return ManagerClient(find_manager(state=self._state))


def _aggregator_of(node: str) -> str:
    return f"a{node.removeprefix('n')}"


def _is_equal(out: Path, model: str) -> bool:
    """Whether all ranks ended with what one process has."""
    argv = [sys.executable, "-m", PROGRAM, model, "--steps", f"{STEPS}", "--out", os.fspath(out)]
    subprocess.run([*argv, "--alone", f"{RANKS}"], check=True, timeout=LIMIT_S, env=settings.JOB_VARIABLES)
    try:
        found = {(out / f"{model}.{name}").read_text() for name in ("alone", *map(str, range(RANKS)))}
    except FileNotFoundError:
        return False
    return len(found) == 1
