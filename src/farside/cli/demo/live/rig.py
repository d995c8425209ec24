"""A sandbox that plays a day: a real manager, agents with declared GPUs, and jobs that sleep in place of their work."""

import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from farside.cli.demo.live.day import ALL, GPUS_PER_NODE, LiveDay
from farside.cli.demo.live.halfway import Act, Halfway, prepared
from farside.cli.demo.live.senders import GRACE_S, Senders
from farside.client.manager_client import ManagerAddress, ManagerClient, find_manager
from farside.client.state_folder import sandbox_config
from farside.config import ManagerConfig, load_config
from farside.errors import ConfigError
from farside.sandbox import settings
from farside.sandbox.session import open_sandbox
from farside.sandbox.waiting import wait_until
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.model.event import Entry
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.sim.trace.write import write_trace

PATIENCE_LOG_S = 14 * 86400.0  # QSSF's guard, divided as all times are
MIN_RUN_S = 1.0
LOOK_EVERY_S = 1.0
# After the last submission: the longest job, and the queue before it.
LIMIT_S = 400.0

Tell = Callable[[str], None]
"""Is called with how far the day is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the manager expected of a job when it came. ``error``: by what factor half of such estimates were off."""

    expected_s: float
    error: float | None
    from_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A day that was played.

    Attributes:
        config: Settings of the manager. Its files are gone with the sandbox, but for the past.
        entries: Its whole log.
        jobs: What each job was, by its id.
        states: What became of each.
        estimates: What was expected of each, where anything was.
        killed_s: When the scheduler process was killed, or the manager; infinite: neither was.
        late_s: The longest time from a job's own submit time until the manager had it.
        joined: The node that joined; empty: none did.
    """

    config: ManagerConfig
    entries: tuple[Entry, ...]
    jobs: Mapping[str, TraceJob]
    states: Mapping[str, str]
    estimates: Mapping[str, Estimate]
    killed_s: float
    late_s: float
    joined: str = ""

    @property
    def needs_s(self) -> Mapping[str, float]:
        """Run time of each job, by its id."""
        return {job_id: one.duration_s for job_id, one in self.jobs.items()}


def play_day(
    day: LiveDay,
    folder: Path,
    tell: Tell,
    *,
    policy: str = "qssf",
    lends: bool = False,
    halfway: Halfway = Halfway.NOTHING,
) -> Played:
    """Plays a day in a sandbox of its own.

    Args:
        day: Its jobs.
        folder: An empty one.
        tell: Hears how far it is.
        policy: Of the manager.
        lends: Partitions lend idle nodes.
        halfway: What happens halfway between the first submission and the last. Where a node joins, it is one of the
            partition that `joining_partition` names, which has one node fewer before.

    Raises:
        FarsideError: The sandbox did not start, jobs do not end in time, or no partition can do with one node fewer.
    """
    joins = joining_partition(day) if halfway is Halfway.JOIN else ""
    joined = f"n{sum(day.nodes.values())}" if joins else ""
    words = _sandbox_words(day, folder, policy=policy, lends=lends, joins=joins)
    (folder / "places").mkdir(parents=True)
    with open_sandbox(words, state=folder / "cluster") as sandbox, ExitStack() as stack:
        state = sandbox.state
        config = load_config(ManagerConfig, (sandbox_config(state),))
        client = stack.enter_context(ManagerClient(find_manager(state=state)))
        act = stack.enter_context(prepared(halfway, folder / "standby", state, joined))
        jobs, late_s, killed_s = _submit_all(day, config, state, folder / "places", tell, act)
        _until_over(client, tell)
        states = {job["id"]: job["state"] for job in client.get("jobs", all="true")["jobs"]}
        estimates = _estimates(client, jobs) if policy == "qssf" else {}
        with closing(EventStore(config.store_url)) as store:
            entries = tuple(store.read_all())
    return Played(
        config=config, entries=entries, jobs=jobs, states=states, estimates=estimates, killed_s=killed_s, late_s=late_s,
        joined=joined,
    )  # fmt: skip


def joining_partition(day: LiveDay) -> str:
    """The partition where a node that joins halfway finds jobs that wait.

    Of those whose largest job has room on one node fewer, as the manager would refuse it otherwise, it is the one whose
    jobs of the first half need the most GPU seconds of each node.

    Raises:
        ConfigError: There is none of them.
    """
    largest = {name: max((one.job.gpus for one in day.jobs if one.job.vc == name), default=1) for name in day.nodes}
    needed = {name: 0.0 for name, count in day.nodes.items() if (count - 1) * GPUS_PER_NODE >= largest[name]}
    if not needed:
        raise ConfigError(
            f"{day.source}: no virtual cluster can do with one node fewer", hint="give a log of a larger cluster"
        )
    for one in day.jobs:
        if one.job.vc in needed and one.job.submit_s < day.half_s:
            needed[one.job.vc] += one.duration_s * one.job.gpus / day.nodes[one.job.vc]
    return max(needed, key=needed.__getitem__)


def _sandbox_words(day: LiveDay, folder: Path, *, policy: str, lends: bool, joins: str) -> list[str]:
    told = {"policy": policy, "min_run_s": f"{MIN_RUN_S:g}", "token_submit": "true"}
    if policy == "qssf":
        told["policy_settings"] = f"patience_s={PATIENCE_LOG_S / day.factor:g}"
        if day.past:
            past = folder / "past.csv"
            folder.mkdir(parents=True, exist_ok=True)
            write_trace(Trace(jobs=day.past), past)
            told["policy_history"] = os.fspath(past)
    if tuple(day.nodes) != (ALL,):
        told["partition"] = _partitions(day, GRACE_S if lends else 0.0, joins)
    shape = f"{sum(day.nodes.values())}x{GPUS_PER_NODE}"
    words = ["--cluster", shape, "--donors", "1", "--size", "64MiB", *(("--later", "1") if joins else ())]
    return words + [word for name, value in told.items() for word in ("--set", f"manager.{name}={value}")]


def _partitions(day: LiveDay, lend_grace_s: float, joins: str) -> str:
    rows, first = [], 1
    # The last node is the one that joins.
    for name, count in sorted(day.nodes.items(), key=lambda one: one[0] == joins):
        nodes = ",".join(f"n{number}" for number in range(first, first + count))
        rows.append(f'{{name = "{name}", nodes = "{nodes}", lend_grace_s = {lend_grace_s:g}}}')
        first += count
    return f"[{', '.join(rows)}]"


def _tokens(day: LiveDay, config: ManagerConfig) -> Mapping[str, ManagerAddress]:
    """By user how to reach the manager as that user; empty for a log without users."""
    port = next(one.rpartition(":")[2] for one in config.listen if one.startswith("tcp:"))
    users = sorted({one.job.user for one in day.jobs} - {""})
    return {
        user: ManagerAddress(endpoint=f"http://127.0.0.1:{port}", token=add_token(config.tokens_file, user, Role.USER))
        for user in users
    }


def _submit_all(
    day: LiveDay, config: ManagerConfig, state: Path, places: Path, tell: Tell, act: Act
) -> tuple[dict[str, TraceJob], float, float]:
    """Submits each job at its time: what each was, by its id, the most that one came late, and the time of the kill."""
    near, tokens = find_manager(state=state), _tokens(day, config)
    killed_s, has_acted = math.inf, False
    sent: list[tuple[TraceJob, Future[tuple[str, float]]]] = []
    with Senders(places) as senders:
        # From the first submission on, so that what the requests take does not add up.
        begun_s = time.monotonic()
        for at, one in enumerate(day.jobs):
            if not has_acted and one.job.submit_s >= day.half_s:
                has_acted, acted = True, act([answer for _, answer in sent])
                killed_s = acted.killed_s
                if acted.endpoint:
                    tokens = {user: replace(known, endpoint=acted.endpoint) for user, known in tokens.items()}
            time.sleep(max(0.0, begun_s + one.job.submit_s - time.monotonic()))
            sent.append((one, senders.send(tokens.get(one.job.user, near), one)))
            tell(f"{at + 1} of {len(day.jobs)} jobs submitted")
        had = [(one, *answer.result()) for one, answer in sent]
    late_s = max(at_s - begun_s - one.job.submit_s for one, _, at_s in had)
    return {job_id: one for one, job_id, _ in had}, late_s, killed_s


def _until_over(client: ManagerClient, tell: Tell) -> None:
    def are_over() -> bool:
        left = len(client.get("jobs")["jobs"])
        tell(f"{left} jobs left")
        return not left

    wait_until(are_over, "the jobs of the day to end", limit_s=LIMIT_S * settings.PATIENCE, every_s=LOOK_EVERY_S)


def _estimates(client: ManagerClient, jobs: Mapping[str, TraceJob]) -> Mapping[str, Estimate]:
    found = {}
    for job_id in jobs:
        job = client.get("jobs", job_id)
        if job["expected_s"] is not None:
            found[job_id] = Estimate(
                expected_s=job["expected_s"], error=job["expected_error"], from_jobs=job["expected_from_jobs"] or 0
            )
    return found
