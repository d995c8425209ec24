"""Random days: the manager's decisions are those of the simulator, job by job, to the second.

The manager's decider is driven with a virtual clock, by nodes that obey at once; so what differs could only be a rule.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partition, Partitions
from farside.scheduler.admission.rules import Rules
from farside.scheduler.domain import Domain
from farside.scheduler.manager.compare_decisions import decided_again
from farside.scheduler.manager.compare_simulation import recording
from farside.scheduler.manager.compare_simulation import simulated as replayed
from farside.scheduler.manager.decider.adapter import job_of
from farside.scheduler.manager.model.event import JobPromoted, StopCause
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.order.catalog import TIMED, needs_of
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Node, Preempt, Start, VirtualCluster
from tests.live.world import World, rules

NODES, GPUS = 2, 4
BEGIN_S = 1000.0


@dataclass(frozen=True)
class Coming:
    """A job of a day: after so long, for so long, by whom."""

    after_s: float
    run_s: float
    gpus: int
    user: str
    name: str
    is_limited: bool
    partition: str = ""


@dataclass(frozen=True)
class Change:
    """What happens to the cluster after so long."""

    after_s: float
    kind: str


# Times are odd fractions, so that no two things happen at one instant, at which the two worlds may take another order.
_SECONDS = st.integers(1, 4000).map(lambda tenths: tenths / 10)
_COMING = st.builds(
    Coming,
    after_s=_SECONDS,
    run_s=_SECONDS,
    gpus=st.sampled_from((1, 1, 2, 4, 8)),
    user=st.sampled_from(("ann", "bob")),
    name=st.sampled_from(("train", "test", "sweep-1")),
    is_limited=st.booleans(),
)
_COMING_TO_ONE = st.builds(replace, _COMING, gpus=st.sampled_from((1, 1, 2, 4)), partition=st.sampled_from(("a", "b")))
PARTITIONED = st.lists(_COMING_TO_ONE, min_size=5, max_size=25)
DAYS = st.lists(_COMING, min_size=5, max_size=25)
_CHANGE = st.builds(
    Change,
    after_s=st.integers(1, 30_000).map(lambda tenths: tenths / 10),
    kind=st.sampled_from(("restart", "failover", "join")),
)
CHANGES = st.lists(_CHANGE, min_size=1, max_size=4)


def times_for(by: Rules) -> LearnedTimes | None:
    """What a new manager knows of run times under these rules: nothing yet, or nothing ever."""
    return LearnedTimes() if needs_of(by.order) in TIMED else None


def fitting_times(by: Rules) -> LearnedTimes | None:
    """Estimators as `times_for` makes them, whose models are fitted at the instant at which they are due."""
    return LearnedTimes(fits_at_once=True) if needs_of(by.order) in TIMED else None


class Day:
    """The manager's side: jobs come and processes end by a heap of times."""

    def __init__(
        self, policy: str, day: list[Coming], partitions: Partitions = NO_PARTITIONS,
        make_times: Callable[[Rules], LearnedTimes | None] = times_for, /, **more: str,
    ) -> None:  # fmt: skip
        by = rules(policy, **more)
        self.make_times = lambda: make_times(by)
        self.world = World(by, nodes=NODES, gpus=GPUS, make_times=self.make_times, partitions=partitions)
        self.day = day
        self.left_s: dict[str, float] = {}
        self.began_s: dict[str, float] = {}
        self.first_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}

    def run(self, changes: Sequence[Change] = ()) -> None:
        world = self.world
        coming = [(at_s, 1, index) for index, at_s in enumerate(arrivals(self.day))]
        changing = [(BEGIN_S + one.after_s + (at + 1) * 1.3e-3, at) for at, one in enumerate(changes)]
        heapq.heapify(changing)
        ends: list[tuple[float, int, str]] = []
        begun: dict[str, int] = {}
        while coming or ends:
            # Also when the policy wants to look: what it preempts then is gone at once.
            at_s = min(*(heap[0][0] for heap in (coming, ends, changing) if heap), world.decider.next_wake_s())
            world.pass_s(max(0.0, at_s - world.now_s))
            self.obey(ends, begun)
            if changing and changing[0][0] <= at_s:
                self.change(changes[heapq.heappop(changing)[1]].kind)
            elif ends and ends[0][0] <= at_s:
                _, start, job_id = heapq.heappop(ends)
                if begun.get(job_id) == start and world.job(job_id).phase is Phase.RUNNING:
                    self.end_s[job_id] = at_s
                    world.exits(job_id)
            elif coming and coming[0][0] <= at_s:
                _, _, index = heapq.heappop(coming)
                self.submit(self.day[index])
            self.obey(ends, begun)

    def change(self, kind: str) -> None:
        """Another scheduler process leads, from the log or from a snapshot of it, or a node joins."""
        world = self.world
        if kind == "restart":
            world.lead()
        elif kind == "failover":
            world.lead(decode_state(encode_state(world.state)))
        else:
            world.join(f"n{len(world.state.nodes)}", gpus=GPUS)

    def submit(self, one: Coming) -> None:
        limit_s = 2 * one.run_s if one.is_limited else 0.0
        job_id = self.world.submit(
            one.gpus, user=one.user, name=one.name, time_limit_s=limit_s, partition=one.partition
        )
        self.left_s[job_id] = one.run_s

    def obey(self, ends: list[tuple[float, int, str]], begun: dict[str, int]) -> None:
        """Nodes start and stop processes at once, until there is nothing more to do."""
        world = self.world
        while True:
            jobs = [world.job(job_id) for job_id in list(world.state.unfinished)]
            stopping = [job for job in jobs if job.phase is Phase.STOPPING]
            starting = [job for job in jobs if job.phase is Phase.STARTING]
            if not stopping and not starting:
                return
            for job in stopping:
                self.stop(job, begun)
            for job in starting:
                world.runs(job.job_id)
                self.first_s.setdefault(job.job_id, world.now_s)
                self.began_s[job.job_id], begun[job.job_id] = world.now_s, job.start
                heapq.heappush(ends, (world.now_s + self.left_s[job.job_id], job.start, job.job_id))

    def stop(self, job: LiveJob, begun: dict[str, int]) -> None:
        assert job.stop_cause is StopCause.PREEMPTED
        self.left_s[job.job_id] -= self.world.now_s - self.began_s[job.job_id]
        begun.pop(job.job_id, None)
        self.world.exits(job.job_id, 143, cause="preempted")


def arrivals(day: list[Coming]) -> list[float]:
    """When each comes: every job at a fraction of its own."""
    now_s, found = BEGIN_S, []
    for at, one in enumerate(day):
        now_s += one.after_s
        found.append(now_s + at * 1e-3 + 7e-5)
    return found


def simulated(
    policy: str, day: list[Coming], world: World, make_times: Callable[[], LearnedTimes | None], **more: str
) -> tuple[dict[str, float], dict[str, float]]:
    """By job its first start and its end. A start that is taken back in its instant is none: no node hears of it."""
    first_s: dict[int, float] = {}

    def note(now_s: float, _: Domain, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, Start):
                first_s.setdefault(action.row, now_s)
            elif isinstance(action, Preempt) and first_s.get(action.row) == now_s:
                del first_s[action.row]

    jobs = [
        TraceJob(job=replace(job_of(world.job(str(at + 1))), submit_s=at_s), duration_s=one.run_s)
        for at, (at_s, one) in enumerate(zip(arrivals(day), day, strict=True))
    ]
    nodes = tuple(Node(name=f"n{at}", gpus=GPUS, cpus=16, memory_bytes=float(1 << 36)) for at in range(NODES))
    owners = world.partitions.owners
    vcs = dict.fromkeys(owners.get(node.name, "") for node in nodes)
    cluster = Cluster(
        virtual_clusters=tuple(
            VirtualCluster(
                name=name,
                nodes=tuple(node for node in nodes if owners.get(node.name, "") == name),
                lend_grace_s=world.partitions.lend_grace_s(name),
            )
            for name in vcs
        )
    )
    by = rules(policy, **more)
    simulation = Simulation(
        cluster, by, jobs, estimator=make_times(), is_in_whole_seconds=False,
        is_lending=world.partitions.is_lending,
    )  # fmt: skip
    simulation.observers.append(note)
    names, runs = [one.job.job_id for one in jobs], simulation.run()
    return (
        {name: first_s[row] for row, name in enumerate(names)},
        {name: run.end_s for name, run in zip(names, runs, strict=True)},
    )


def check(
    policy: str, day: list[Coming], partitions: Partitions = NO_PARTITIONS,
    make_times: Callable[[Rules], LearnedTimes | None] = times_for, /, **more: str,
) -> Day:  # fmt: skip
    live = Day(policy, day, partitions, make_times, **more)
    live.run()
    started_s, ended_s = simulated(policy, day, live.world, live.make_times, **more)
    assert live.first_s == pytest.approx(started_s, abs=1e-5)
    assert live.end_s == pytest.approx(ended_s, abs=1e-5)
    # And so it is from the log alone.
    by = live.world.rules
    found = replayed(recording(live.world.log, partitions=partitions), by, live.make_times)
    assert [one.predicted_s for one in found.jobs] == pytest.approx([one.jct_s for one in found.jobs], abs=1e-3)
    again = decided_again(live.world.log, by, live.make_times, partitions=partitions, quiet_s=0.0)
    assert again.decisions >= len(day)
    assert (again.different, again.elsewhere) == (0, 0)
    return live


@settings(max_examples=20, deadline=None)
@given(day=DAYS)
def test_qssf_decides_as_in_the_simulator(day: list[Coming]) -> None:
    check("qssf", day, patience_s="2min")


@pytest.mark.parametrize("policy", ["fifo", "best-effort", "sf"])
@settings(max_examples=5, deadline=None)
@given(day=DAYS)
def test_policies_that_know_nothing_of_jobs_decide_as_in_the_simulator(policy: str, day: list[Coming]) -> None:
    check(policy, day)


@settings(max_examples=20, deadline=None)
@given(day=DAYS)
def test_gittins_decides_as_in_the_simulator(day: list[Coming]) -> None:
    check("gittins", day, first_fit_jobs="3", limits_gpu_s="100.0331,400.0717")


@settings(max_examples=10, deadline=None)
@given(day=DAYS)
def test_las_decides_as_in_the_simulator(day: list[Coming]) -> None:
    check("las", day, limits_gpu_s="100.0331,400.0717")


@pytest.mark.parametrize("policy", ["sjf", "srtf", "srsf"])
@settings(max_examples=10, deadline=None)
@given(day=DAYS)
def test_policies_by_run_times_decide_as_in_the_simulator(policy: str, day: list[Coming]) -> None:
    check(policy, day)


# A node each.
TWO = Partitions(by_name={name: Partition(name=name) for name in "ab"}, owners={"n0": "a", "n1": "b"})


@pytest.mark.parametrize(
    ("policy", "more"),
    [("fifo", {}), ("qssf", {"patience_s": "2min"}), ("las", {"limits_gpu_s": "100.0331,400.0717"})],
)
@settings(max_examples=7, deadline=None)
@given(day=PARTITIONED)
def test_partitions_decide_as_virtual_clusters_of_the_simulator(
    policy: str, more: dict[str, str], day: list[Coming]
) -> None:
    check(policy, day, TWO, **more)


def lending(*names: str) -> Partitions:
    by_name = {name: Partition(name=name, lend_grace_s=60 if name in names else 0) for name in "ab"}
    return Partitions(by_name=by_name, owners=TWO.owners)


@pytest.mark.parametrize(
    ("policy", "lenders", "more"),
    [
        ("fifo", "ab", {}),
        ("best-effort", "ab", {}),
        ("las", "ab", {"limits_gpu_s": "100.0331,400.0717"}),
        ("las", "a", {"limits_gpu_s": "100.0331,400.0717"}),
    ],
)
@settings(max_examples=10, deadline=None)
@given(day=PARTITIONED)
def test_partitions_that_lend_decide_as_virtual_clusters_that_lend(
    policy: str, lenders: str, more: dict[str, str], day: list[Coming]
) -> None:
    check(policy, day, lending(*lenders), **more)


LIMITS = {"limits_gpu_s": "100.0331,400.0717"}


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("fifo", {}),
        ("sjf", {}),
        ("srtf", {}),
        ("srsf", {}),
        ("las", LIMITS),
        ("gittins", {"first_fit_jobs": "3", **LIMITS}),
        ("qssf", {"patience_s": "2min"}),
    ],
)
@settings(max_examples=12, deadline=None)
@given(day=DAYS, changes=CHANGES)
def test_a_replay_finds_the_order_of_a_day_with_restarts_failovers_and_nodes_that_joined(
    policy: str, more: dict[str, str], day: list[Coming], changes: list[Change]
) -> None:
    live = Day(policy, day, NO_PARTITIONS, **more)
    live.run(changes)

    found = replayed(recording(live.world.log), live.world.rules, lambda: times_for(live.world.rules))

    assert found.order.swapped == 0
    assert [one.predicted_start_s for one in found.jobs] == pytest.approx([one.start_s for one in found.jobs], abs=1e-3)
    assert [one.predicted_s for one in found.jobs] == pytest.approx([one.jct_s for one in found.jobs], abs=1e-3)


@pytest.mark.parametrize(("policy", "more"), [("las", LIMITS), ("qssf", {"patience_s": "2min"})])
@settings(max_examples=8, deadline=None)
@given(day=PARTITIONED, changes=st.lists(_CHANGE.filter(lambda one: one.kind != "join"), min_size=1, max_size=3))
def test_a_replay_of_partitions_finds_their_orders_with_restarts_and_failovers(
    policy: str, more: dict[str, str], day: list[Coming], changes: list[Change]
) -> None:
    live = Day(policy, day, TWO, **more)
    live.run(changes)

    found = replayed(recording(live.world.log, partitions=TWO), live.world.rules, lambda: times_for(live.world.rules))

    assert found.order.swapped == 0
    assert [one.predicted_s for one in found.jobs] == pytest.approx([one.jct_s for one in found.jobs], abs=1e-3)


# ---- days that are long enough for what policies learn, and for jobs that starve

SEEDS = st.integers(0, 2**32 - 1)
USERS, NAMES = ("ann", "bob", "cleo", "dan"), ("train", "test", "sweep", "eval", "prepare")


def long_day(seed: int, jobs: int, *, partitions: Sequence[str] = ("",), gap_s: float = 75.0) -> list[Coming]:
    """A day of users whose names tell something of how long their jobs run, on a cluster that is nearly full."""
    rng = random.Random(seed)
    usual_s = {(user, name): rng.lognormvariate(4.5, 1.2) for user in USERS for name in NAMES}
    day = []
    for _ in range(jobs):
        user, name = rng.choice(USERS), rng.choice(NAMES)
        day.append(
            Coming(
                after_s=rng.uniform(0.1, 2 * gap_s),
                run_s=min(2000.0, usual_s[user, name] * rng.lognormvariate(0.0, 0.4)),
                gpus=rng.choice((1, 1, 2, 4)),
                user=user,
                name=name,
                is_limited=rng.random() < 0.3,
                partition=rng.choice(partitions),
            )
        )
    return day


@pytest.mark.parametrize(
    ("partitions", "names"),
    [
        pytest.param(NO_PARTITIONS, ("",), marks=pytest.mark.long, id="whole"),
        pytest.param(TWO, ("a", "b"), marks=pytest.mark.long, id="partitions"),
        pytest.param(lending("a", "b"), ("a", "b"), id="lending"),
    ],
)
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_qssf_with_its_guard_its_models_and_their_judge_decides_as_in_the_simulator(
    partitions: Partitions, names: Sequence[str], seed: int
) -> None:
    live = check("qssf", long_day(seed, 560, partitions=names), partitions, fitting_times, patience_s="5min")

    decider = live.world.decider
    assert decider.times is not None
    service, order = decider.times.service, decider.domain.rules.order
    assert isinstance(order, Qssf)
    assert order.cut.jobs > 50
    assert service._trees is not None
    assert service.judge.savings.keys() == {"model", "rolling", "gpus"}


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        # At 1, a job starves at the very instant at which the one that took its GPUs falls.
        ("las", {"promote_knob": "1"}),
        pytest.param("las", {"starve_limit_s": "100"}, marks=pytest.mark.long),
        pytest.param("gittins", {"promote_knob": "1", "first_fit_jobs": "3"}, marks=pytest.mark.long),
    ],
)
@example(seed=33)
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_jobs_that_starve_are_promoted_as_in_the_simulator(policy: str, more: dict[str, str], seed: int) -> None:
    """A job that had been preempted was never promoted by the manager."""
    live = check(policy, long_day(seed, 60, gap_s=25.0), **more, **LIMITS)

    assert any(isinstance(entry.event, JobPromoted) for entry in live.world.log)


def test_a_job_whose_patience_ends_while_no_scheduler_process_runs_is_promoted_by_the_next() -> None:
    world = World(rules("qssf", patience_s="100s"), nodes=1, gpus=1, make_times=LearnedTimes)
    world.runs(world.submit())
    patient = world.submit()
    world.pass_s(50.0)

    world.now_s += 100.0
    world.lead()
    world.pass_s(1.0)

    assert [entry.event.job_id for entry in world.log if isinstance(entry.event, JobPromoted)] == [patient]


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("qssf", {"patience_s": "2min"}),
        pytest.param("las", LIMITS, marks=pytest.mark.long),
        pytest.param("gittins", {"first_fit_jobs": "3", **LIMITS}, marks=pytest.mark.long),
        pytest.param("srtf", {}, marks=pytest.mark.long),
    ],
)
@settings(max_examples=4, deadline=None)
# Jobs behind one that had just lost its GPUs got lent nodes in one world alone: classes differ by time limits there.
@example(seed=8)
@example(seed=22)
@given(seed=SEEDS)
def test_long_days_of_partitions_that_lend_are_decided_as_in_the_simulator(
    policy: str, more: dict[str, str], seed: int
) -> None:
    check(policy, long_day(seed, 110, partitions=("a", "b")), lending("a", "b"), **more)
