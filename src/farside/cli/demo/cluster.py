"""The demo's cluster scene: the same jobs under FIFO and LAS, on a real manager and in the simulator.

A manager and four agents with eight declared GPUs each, every job a process a node that really starts, is preempted,
keeps its place and resumes. What is printed as real is read from the manager's log; the simulator gets the same log.
"""

import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from farside.cli.demo import cluster_jobs
from farside.cli.demo.show import Show
from farside.cli.simulate.replay import replay
from farside.client.manager_client import ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.errors import PeerError
from farside.sandbox import control, settings
from farside.sandbox.session import open_sandbox
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.compare_simulation import Fidelity
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import Entry
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.sim.trace.job import TraceJob
from farside.units import format_count

SANDBOX = (
    *("--cluster", f"{cluster_jobs.NODES}x{cluster_jobs.GPUS_PER_NODE}"),
    *("--donors", "1", "--size", "64MiB"),
)
# The paper's threshold is 3,200 GPU seconds for jobs of two minutes to two hours; these are shorter by as much.
POLICIES: Mapping[str, str] = {"fifo": "", "las": "limits_gpu_s=16"}
MIN_RUN_S = 1.0
LOOK_EVERY_S = 0.2
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The jobs under one policy."""

    policy: str
    fidelity: Fidelity
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All rounds, and what the log's checker says of all of them together; empty: the log is sound."""

    rounds: tuple[Round, ...]
    violations: tuple[str, ...]


def play(show: Show, folder: Path, jobs: Sequence[TraceJob]) -> Scene:
    """Plays the jobs under each policy in a sandbox of its own.

    Raises:
        FarsideError: The sandbox did not start, or jobs do not end in time.
    """
    show.begin("a manager and four agents start")
    with open_sandbox(SANDBOX, state=folder / "cluster") as sandbox:
        places = folder / "places"
        rounds: list[Round] = []
        _until_ready(sandbox.state)
        show.end(f"{cluster_jobs.NODES} nodes with {cluster_jobs.GPUS_PER_NODE} GPUs each")
        for policy, policy_settings in POLICIES.items():
            places.mkdir(exist_ok=True)
            show.begin(f"{format_count(len(jobs), 'job')} under {policy}")
            _restart(sandbox.state, policy, policy_settings)
            rounds.append(_round(sandbox.state, policy, jobs, places))
            found = rounds[-1].fidelity
            times = format_count(found.preemptions, "preemption")
            show.end(f"mean JCT {found.mean_jct_s:.1f} s with {times}; simulated {found.predicted_mean_s:.1f} s")
        return Scene(rounds=tuple(rounds), violations=tuple(violations(_entries(sandbox.state), is_complete=True)))


def _round(state: Path, policy: str, jobs: Sequence[TraceJob], places: Path) -> Round:
    with ManagerClient(find_manager(state=state)) as client:
        ids = _submit(client, jobs, places)
        states: dict[str, str] = {}

        def are_over() -> bool:
            states.update((job["id"], job["state"]) for job in client.get("jobs", all="true")["jobs"])
            return all(states[job_id] in ("done", "failed", "cancelled", "timed_out") for job_id in ids)

        _until(are_over, f"the jobs under {policy} to end")
    # By the log and the settings of this moment, before the next policy is written there.
    _, fidelity = replay(load_config(ManagerConfig, (sandbox_config(state),)), ids)
    done = sum(states[job_id] == "done" for job_id in ids)
    return Round(policy=policy, fidelity=fidelity, done=done)


def _submit(client: ManagerClient, jobs: Sequence[TraceJob], places: Path) -> list[str]:
    """Submits each job at its time."""
    ids: list[str] = []
    begun_s = time.monotonic()
    for one in jobs:
        # From the first submission on, so that what the requests take does not add up.
        time.sleep(max(0.0, begun_s + one.job.submit_s - time.monotonic()))
        body = {
            "argv": ["/bin/sh", "-c", cluster_jobs.SCRIPT, "job", str(round(1000 * one.duration_s))],
            "gpus": one.job.gpus,
            "name": one.job.job_id,
            "env": {"PLACE": os.fspath(places)},
            "cwd": "/",
            "output": "/dev/null",
            "preemptible": True,
            "grace_s": 10,
        }
        ids += client.post("jobs", body=body)["ids"]
    return ids


def _restart(state: Path, policy: str, policy_settings: str) -> None:
    """Gives the manager another policy: it reads its settings when it starts, and all it knows is in its log."""
    # Killed, not stopped: the log alone must be enough to go on.
    control.kill_manager(state)
    config = sandbox_config(state)
    told: dict[str, settings.Value] = tomllib.loads(config.read_text())
    told |= {"policy": policy, "policy_settings": policy_settings, "min_run_s": MIN_RUN_S}
    config.write_text(settings.toml_text(told))
    control.start_manager(state)
    _until_ready(state)


def _until_ready(state: Path) -> None:
    def is_ready() -> bool:
        try:
            with ManagerClient(find_manager(state=state)) as client:
                nodes = client.get("nodes")["nodes"]
                return client.get("health")["generation"] > 0 and len(nodes) == cluster_jobs.NODES
        except PeerError:
            return False

    def are_connected() -> bool:
        cluster = control.record(state).cluster
        assert cluster is not None
        return all(control.ask(Path(agent.admin_socket), "status")["connected"] for agent in cluster.agents)

    _until(is_ready, "the manager to answer")
    _until(are_connected, "the agents to connect")


def _until(look: Callable[[], bool], what: str) -> None:
    wait_until(look, what, limit_s=LIMIT_S * settings.PATIENCE, every_s=LOOK_EVERY_S)


def _entries(state: Path) -> list[Entry]:
    with closing(EventStore(load_config(ManagerConfig, (sandbox_config(state),)).store_url)) as store:
        return list(store.read_all())
