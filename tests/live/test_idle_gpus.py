"""Jobs whose GPUs are idle: who is warned, who is ended when, and what is never taken for idleness."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from farside.agent import messages as m
from farside.agent.sense.load_history import GAP_S, LoadHistory
from farside.config import ManagerConfig
from farside.config.check import manager_problems
from farside.config.manager import PartitionRow, QosRow
from farside.scheduler.admission.idle_gpus import IdleRule, IdleRules
from farside.scheduler.configured_rules import idle_rules_of, partitions_of
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    IdleWarningLifted,
    JobIdleWarned,
    JobStopping,
    StopCause,
    TaskIdle,
    TaskPhase,
)
from farside.scheduler.manager.model.presence import LEASE_GRACE_S
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.load_news import NodeClock
from farside.scheduler.manager.view.view import show_job_in_full
from tests.live.facts import joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

RULE = IdleRule(below_pct=5, after_s=60.0, grace_s=30.0, ends=True)
RULES = IdleRules(by_partition={"": RULE})
LEASE: Mapping[str, Any] = {
    "user": "ann", "deployment": "chat", "argv": ("farside", "serve", "worker", "--key-file", "k", "--capacity", "90")
}  # fmt: skip
STEP_S = 5.0


class Cluster(World):
    """A world whose agents sample their GPUs and report the load; a test sets ``busy`` and ``ahead_s``.

    Attributes:
        busy: Percent by node and GPU; a GPU that is not here is idle.
        ahead_s: By node, how much its clock is before the manager's.
        seen: By node, its samples: when, and how busy its busiest GPU was.
        fronts: By user and deployment when its front told of itself last, and of all leases there.
        unnamed: Jobs that no front calls its lease.
    """

    def __init__(self, idle: IdleRules = RULES, *, nodes: int = 1, tells: bool = True, uuid: bool = True) -> None:
        super().__init__(rules(), nodes=0, idle=idle)
        self.busy: dict[tuple[str, int], float] = {}
        self.ahead_s: dict[str, float] = {}
        self.seen: dict[str, list[tuple[float, float]]] = {}
        self.histories: dict[str, LoadHistory] = {}
        self.lines: dict[str, AgentLine] = {}
        self.tells = tells
        self.fronts: dict[tuple[str, str], float] = {}
        self.unnamed: set[str] = set()
        for at in range(nodes):
            name = f"n{at}"
            gpus = tuple(
                m.Gpu(index=gpu, model="H200", healthy=True, uuid=f"GPU-{name}-{gpu}" if uuid else None)
                for gpu in range(4)
            )
            memory = {"memory_bytes": 1 << 36, "headroom_bytes": 1 << 36}
            self.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus, tells_load=tells, **memory))
            self.seen[name], self.histories[name] = [], LoadHistory()

    def running(self, gpus: int = 1, **more: object) -> str:
        job = self.submit(gpus, **more)  # type: ignore[arg-type]
        self.runs(job)
        return job

    def sample(self, node: str) -> None:
        held = {
            (f"{job_id}.{rank}", start): task.gpus
            for job_id, start, rank in self.state.nodes[node].tasks
            if (task := self.state.task((job_id, start, rank))) is not None and task.phase is TaskPhase.RUNNING
        }
        busy = {gpu: self.busy.get((node, gpu), 0.0) for gpu in range(4)}
        if self.tells:
            self.histories[node].sample(held, busy, self.now_s)
        self.seen[node].append((self.now_s, max(busy.values())))

    def report(self, node: str) -> None:
        if node not in self.lines:
            hello = structs.replace(FakeNode(node).hello(), at_s=self.now_s + self.ahead_s.get(node, 0.0))
            self.lines[node] = AgentLine(hello, "h", idle=self.idle, now_s=self.now_s, served_s=self.served_s)
        said = m.Report(
            seq=1, at_s=self.now_s + self.ahead_s.get(node, 0.0), headroom_bytes=1 << 36, psi=m.Psi(), tasks=(),
            gpus=self.state.nodes[node].gpus, loads=self.histories[node].loads(self.now_s),
        )  # fmt: skip
        for event in self.lines[node].reported(self.state, said, self.now_s):
            self.tell(event)
        self.settle()

    def served_s(self, user: str, deployment: str, job_id: str) -> float:
        return -math.inf if job_id in self.unnamed else self.fronts.get((user, deployment), -math.inf)

    def serve_s(self, seconds: float, user: str = "ann", deployment: str = "chat") -> None:
        """Time passes in which the front of a deployment tells of itself, and nobody uses a GPU."""
        for _ in range(round(seconds / STEP_S)):
            self.fronts[user, deployment] = self.now_s + STEP_S
            self.idle_s(STEP_S)

    def idle_s(self, seconds: float, *, away: Sequence[str] = (), cut: Sequence[str] = ()) -> None:
        """Time passes. Agents that are ``away`` do nothing, those that are ``cut`` off sample and reach nobody."""
        for _ in range(round(seconds / STEP_S)):
            self.pass_s(STEP_S)
            for node in self.histories:
                if node not in away:
                    self.sample(node)
                    if node not in cut:
                        self.report(node)

    def restart(self) -> None:
        """Another manager goes on from the log."""
        self.lines.clear()
        self.lead()

    def events(self, *kinds: type) -> list[object]:
        return [entry.event for entry in self.log if isinstance(entry.event, kinds)]

    def sound(self) -> bool:
        return not [*violations(self.log)]


def test_a_job_that_leaves_its_gpus_idle_is_warned_and_then_ended() -> None:
    cluster = Cluster()
    job = cluster.running(2)
    cluster.idle_s(60)
    before = cluster.job(job).idle

    cluster.idle_s(10)
    warned = cluster.job(job).idle
    cluster.idle_s(20)
    phase = cluster.phase(job)
    cluster.idle_s(10)

    assert before is None
    assert warned is not None
    assert warned.ends_s == warned.warned_s + RULE.grace_s
    assert (phase, cluster.job(job).stop_cause) == (Phase.RUNNING, StopCause.IDLE_GPUS)
    cluster.exits(job, 143)
    assert cluster.phase(job) is Phase.CANCELLED
    assert cluster.job(job).reason == "all of its 2 GPUs were less than 5 % busy for 1.5 min; it was warned 30 s before"
    assert cluster.sound()


def test_what_it_is_told_is_in_show_explain_and_history() -> None:
    cluster = Cluster()
    job = cluster.running()
    calm = cluster.decider.why(job, cluster.now_s, str)
    cluster.idle_s(70)

    shown = show_job_in_full(cluster.job(job), cluster.now_s).idle_gpus
    lines = cluster.decider.why(job, cluster.now_s, str)
    (told,) = cluster.events(JobIdleWarned)

    assert calm[1] == (
        "it is warned if all its GPUs are less than 5 % busy for 1 min, and is ended 30 s later if they stay so"
    )
    assert shown is not None
    when = f"less than 5 % busy since {shown.since_s}; it ends at {shown.ends_s} if they stay so"
    assert lines[1] == f"warned at {shown.warned_s}: its GPU was {when}"
    assert isinstance(told, JobIdleWarned)
    assert told.reason == "its GPU was less than 5 % busy for 1 min; it is ended in 30 s if they stay so"


def test_one_busy_gpu_is_enough_and_so_is_one_sample() -> None:
    cluster = Cluster(nodes=2)
    job = cluster.running(8)
    cluster.busy["n1", 3] = 5.0
    cluster.idle_s(300)
    cluster.busy.clear()

    cluster.idle_s(50)
    cluster.busy["n0", 0] = 80.0
    cluster.idle_s(5)
    cluster.busy.clear()
    cluster.idle_s(50)

    assert cluster.job(job).idle is None
    assert not cluster.events(JobIdleWarned)


def test_a_load_that_is_just_below_the_limit_is_idle() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.busy["n0", 0] = 4.9

    cluster.idle_s(70)

    assert cluster.job(job).idle is not None


def test_a_job_that_uses_its_gpus_in_time_is_no_longer_warned_and_counted_anew() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(80)
    was = cluster.job(job).idle
    cluster.busy["n0", 0] = 40.0

    cluster.idle_s(5)
    lifted = cluster.job(job).idle
    cluster.busy.clear()
    cluster.idle_s(55)

    assert was is not None
    assert (lifted, cluster.job(job).idle, cluster.phase(job)) == (None, None, Phase.RUNNING)
    cluster.idle_s(10)
    assert cluster.job(job).idle is not None
    assert len(cluster.events(IdleWarningLifted)) == 1
    assert cluster.sound()


def test_a_job_that_uses_its_gpus_costs_no_entry_and_one_that_does_not_a_few() -> None:
    cluster = Cluster(nodes=2)
    job = cluster.running(8)
    cluster.busy["n0", 0] = cluster.busy["n1", 0] = 30.0
    cluster.idle_s(300)
    none = cluster.events(TaskIdle)
    cluster.busy.clear()

    cluster.idle_s(200)

    assert none == []
    assert cluster.phase(job) is Phase.STOPPING
    assert len(cluster.events(TaskIdle)) <= 3 * 2


@pytest.mark.parametrize("how", ["snapshot", "log"])
def test_a_restart_of_the_manager_moves_neither_warning_nor_end(how: str) -> None:
    def ended_s(restarts_at: Sequence[int]) -> tuple[float, float | None]:
        cluster = Cluster(nodes=2)
        job = cluster.running(8)
        for step in range(40):
            if step in restarts_at:
                cluster.lines.clear()
                cluster.lead(decode_state(encode_state(cluster.state)) if how == "snapshot" else None)
            cluster.idle_s(5)
            if cluster.phase(job) is Phase.STOPPING:
                assert cluster.sound()
                idle = cluster.job(job).idle
                return cluster.now_s, None if idle is None else idle.ends_s
        raise AssertionError("it never ended")

    assert ended_s(()) == ended_s((5, 12, 13, 15, 18))


def test_an_agent_that_was_away_has_seen_nothing_and_the_count_begins_anew() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle

    cluster.idle_s(300, away=["n0"])
    meanwhile = cluster.phase(job), cluster.job(job).idle
    cluster.idle_s(5)

    assert was is not None
    assert meanwhile == (Phase.RUNNING, was)
    assert (cluster.phase(job), cluster.job(job).idle) == (Phase.RUNNING, None)
    cluster.idle_s(50)
    assert cluster.job(job).idle is None


def test_what_a_cut_off_agent_saw_it_tells_later_and_nothing_happens_before() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    cluster.idle_s(100, cut=["n0"])
    before = cluster.phase(job)

    cluster.idle_s(5)

    assert (before, cluster.phase(job)) == (Phase.RUNNING, Phase.STOPPING)
    assert cluster.sound()


def test_a_job_that_was_used_while_its_agent_was_cut_off_is_spared() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle
    cluster.busy["n0", 0] = 90.0
    cluster.idle_s(5, cut=["n0"])
    cluster.busy.clear()
    cluster.idle_s(65, cut=["n0"])

    cluster.idle_s(5)

    again = cluster.job(job).idle
    assert was is not None
    assert again is not None
    assert (again.warned_s, cluster.phase(job)) == (cluster.now_s, Phase.RUNNING)
    assert len(cluster.events(IdleWarningLifted)) == 1


def test_the_check_of_the_log_finds_who_was_ended_without_a_warning_or_too_early() -> None:
    cluster = Cluster()
    cluster.running()
    cluster.idle_s(100)
    sound = [*violations(cluster.log)]

    def told(**more: float | None) -> list[str]:
        changed = [
            structs.replace(one, event=structs.replace(one.event, **more))
            if isinstance(one.event, JobIdleWarned)
            else one
            for one in cluster.log
        ]
        return [line.partition(": ")[2] for line in violations(changed)]

    assert sound == []
    assert told(ends_s=None) == ["job 1 is ended for idle GPUs, and was not warned"]
    assert told(ends_s=cluster.now_s + 7) == ["job 1 is ended for idle GPUs 12 s before the time it was told"]


def test_a_node_whose_clock_is_wrong_ends_its_jobs_when_others_do() -> None:
    for ahead_s in (0.0, 4000.0, -900.0):
        cluster = Cluster(nodes=2)
        cluster.ahead_s["n1"] = ahead_s
        job = cluster.running(8)
        cluster.idle_s(60)
        assert cluster.job(job).idle is None
        cluster.idle_s(30)
        assert cluster.job(job).idle is not None
        assert cluster.phase(job) is Phase.RUNNING
        cluster.idle_s(5)
        assert cluster.phase(job) is Phase.STOPPING


def test_a_report_that_comes_again_after_a_reconnection_says_nothing_of_now() -> None:
    clock = NodeClock(5000.0, 100.0)

    assert clock.at_s(4998.0, 100.0) is None
    assert clock.at_s(4999.0, 100.0) is None
    assert clock.at_s(5010.0, 110.0) == 110.0
    assert NodeClock(None, 100.0).at_s(5.0, 100.0) is None


def test_what_a_node_says_is_never_later_than_it_comes_wherever_its_clock_is_put() -> None:
    clock = NodeClock(5000.0, 100.0)

    assert clock.at_s(5010.0, 110.0) == 110.0
    assert clock.at_s(5020.0, 150.0) == 120.0  # it was on its way for half a minute, or its clock went back by that
    assert clock.at_s(5060.0, 151.0) == 151.0  # its clock was put forward
    assert clock.at_s(5065.0, 156.5) == 156.0
    assert clock.at_s(5000.0, 161.0) == 161.0  # and certainly back
    assert clock.at_s(5005.0, 166.0) == 166.0


@pytest.mark.parametrize("back_s", [3.0, 4.0, 7.0, 40.0, 3600.0])
@pytest.mark.parametrize("cut", [False, True])
def test_a_clock_that_goes_back_hides_no_use_of_gpus(back_s: float, cut: bool) -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle
    cluster.ahead_s["n0"] = -back_s
    cluster.busy["n0", 0] = 90.0
    cluster.idle_s(5, cut=["n0"] if cut else ())
    cluster.busy.clear()

    cluster.idle_s(45)

    assert was is not None
    assert (cluster.phase(job), cluster.job(job).idle) == (Phase.RUNNING, None)
    assert len(cluster.events(IdleWarningLifted)) == 1


def test_a_clock_that_goes_back_while_its_agent_is_cut_off_hides_no_use_of_gpus() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle
    cluster.ahead_s["n0"] = -40.0
    cluster.idle_s(20, cut=["n0"])
    cluster.busy["n0", 0] = 90.0
    cluster.idle_s(5, cut=["n0"])
    cluster.busy.clear()
    cluster.idle_s(35, cut=["n0"])

    cluster.idle_s(5)  # by the node's clock less time has gone by than was cut off: it was not seen to go back

    assert was is not None
    assert (cluster.phase(job), cluster.job(job).idle) == (Phase.RUNNING, None)
    assert len(cluster.events(IdleWarningLifted)) == 1


@pytest.mark.parametrize("ahead_s", [-3.0, -40.0, -3600.0, 3600.0])
def test_a_clock_that_is_put_elsewhere_spares_no_job_that_leaves_its_gpus_idle(ahead_s: float) -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    cluster.ahead_s["n0"] = ahead_s

    cluster.idle_s(40)

    assert cluster.phase(job) is Phase.STOPPING
    assert cluster.sound()


def test_only_a_job_that_runs_is_judged() -> None:
    cluster = Cluster()
    waits = cluster.submit(4)  # its processes start, and none is there
    cluster.idle_s(100)
    assert cluster.job(waits).idle is None
    cluster.runs(waits)
    cluster.idle_s(50)
    (task,) = cluster.job(waits).tasks
    cluster.task(task, TaskPhase.RUNNING, is_ready=True)  # now it has loaded its checkpoint
    cluster.idle_s(55)
    assert cluster.job(waits).idle is None
    cluster.idle_s(10)
    assert cluster.job(waits).idle is not None

    stopping = JobStopping(job_id=waits, start=1, cause=StopCause.PREEMPTED, reason="others")
    cluster.does(stopping)
    cluster.idle_s(300)
    assert cluster.phase(waits) is Phase.STOPPING
    cluster.exits(waits, 1)
    assert cluster.job(waits).idle is None


def test_who_says_that_it_is_ready_after_the_warning_is_not_spared_by_that() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle
    (task,) = cluster.job(job).tasks
    cluster.task(task, TaskPhase.RUNNING, is_ready=True)

    cluster.idle_s(5)
    warned = cluster.job(job).idle
    cluster.idle_s(20)

    assert was is not None
    assert warned == was
    assert (cluster.phase(job), cluster.events(IdleWarningLifted)) == (Phase.STOPPING, [])
    assert cluster.sound()


def test_a_lease_is_exempt_while_its_front_tells_of_itself_and_says_so() -> None:
    cluster = Cluster()
    job = cluster.running(**LEASE)

    cluster.serve_s(600)

    assert (cluster.job(job).idle, cluster.phase(job), cluster.events(TaskIdle)) == (None, Phase.RUNNING, [])
    said = "its GPU may be idle while the front of deployment chat calls it its lease, and 5 min longer"
    assert said in cluster.decider.why(job, cluster.now_s, str)


@pytest.mark.parametrize("front", [None, ("bob", "chat"), ("ann", "other")])
def test_a_job_that_only_names_a_deployment_is_judged_as_any_other(front: tuple[str, str] | None) -> None:
    """One word in a job file took its GPUs from the rule."""
    cluster = Cluster()
    job = cluster.running(**LEASE)

    for _ in range(24):
        if front is not None:
            cluster.fronts[front] = cluster.now_s
        cluster.idle_s(5)

    assert (cluster.phase(job), cluster.job(job).stop_cause) == (Phase.STOPPING, StopCause.IDLE_GPUS)
    assert cluster.sound()


@pytest.mark.parametrize(("more", "is_named"), [({"argv": ("python", "train.py")}, True), ({}, False)])
def test_a_job_is_no_lease_of_a_front_without_a_workers_command_or_that_names_it_nowhere(
    more: Mapping[str, Any], is_named: bool
) -> None:
    """A training job named a deployment that its own user reported, and kept its idle GPU."""
    cluster = Cluster()
    job = cluster.running(**{**LEASE, **more})
    cluster.unnamed = set() if is_named else {job}

    cluster.serve_s(120)

    assert (cluster.phase(job), cluster.job(job).stop_cause) == (Phase.STOPPING, StopCause.IDLE_GPUS)
    assert cluster.sound()


def test_a_front_that_is_down_for_a_moment_costs_its_leases_nothing() -> None:
    cluster = Cluster()
    job = cluster.running(**LEASE)

    for _ in range(3):
        cluster.serve_s(10)
        cluster.idle_s(LEASE_GRACE_S - STEP_S)

    assert (cluster.job(job).idle, cluster.events(TaskIdle)) == (None, [])


def test_a_lease_without_its_front_is_judged_from_its_last_word_and_spared_once_that_is_back() -> None:
    cluster = Cluster(replace(RULES, by_partition={"": replace(RULE, after_s=LEASE_GRACE_S + 60.0)}))
    job = cluster.running(**LEASE)
    cluster.serve_s(600)
    left_s = cluster.now_s
    cluster.idle_s(LEASE_GRACE_S + 55)
    before = cluster.job(job).idle

    cluster.idle_s(10)
    warned = cluster.job(job).idle
    cluster.serve_s(10)

    assert before is None
    assert warned is not None
    assert (warned.since_s, cluster.job(job).idle, cluster.phase(job)) == (left_s, None, Phase.RUNNING)
    assert cluster.sound()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"uuid": False}, "GPUs of n0 are declared, and no driver tells their load"),
        ({"tells": False}, "the agent of n0 tells no load; it is of a version before"),
    ],
)
def test_gpus_whose_load_nobody_tells_are_never_judged(more: Mapping[str, bool], line: str) -> None:
    cluster = Cluster(tells=False, uuid=more.get("uuid", True))
    job = cluster.running()

    cluster.idle_s(300)

    assert (cluster.job(job).idle, cluster.phase(job)) == (None, Phase.RUNNING)
    assert f"nobody judges whether its GPUs are idle: {line}" in cluster.decider.why(job, cluster.now_s, str)


def test_a_rule_that_only_warns_ends_nothing() -> None:
    cluster = Cluster(IdleRules(by_partition={"": replace(RULE, ends=False)}))
    job = cluster.running()

    cluster.idle_s(600)

    idle = cluster.job(job).idle
    assert idle is not None
    assert (idle.ends_s, cluster.phase(job)) == (None, Phase.RUNNING)
    assert len(cluster.events(JobIdleWarned)) == 1


@pytest.mark.parametrize("after", [IdleRules(), IdleRules(by_partition={"": replace(RULE, below_pct=1)})])
def test_another_rule_takes_back_what_was_said_by_the_one_before(after: IdleRules) -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.busy["n0", 0] = 2.0
    cluster.idle_s(75)
    was = cluster.job(job).idle

    cluster.idle = after
    cluster.restart()
    cluster.idle_s(200)

    assert was is not None
    assert (cluster.job(job).idle, cluster.phase(job)) == (None, Phase.RUNNING)


def test_a_promise_stands_when_times_are_changed() -> None:
    cluster = Cluster()
    job = cluster.running()
    cluster.idle_s(75)
    was = cluster.job(job).idle

    cluster.idle = IdleRules(by_partition={"": replace(RULE, grace_s=5.0, after_s=10.0)})
    cluster.restart()
    cluster.idle_s(15)

    assert was is not None
    assert (cluster.job(job).idle, cluster.phase(job)) == (was, Phase.RUNNING)


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.0, 0.0, 0.0, 4.0, 5.0, 90.0]), min_size=2, max_size=2),
            st.sampled_from(["", "", "", "", "", "away", "cut", "restart"]),
            st.integers(0, 1),
        ),
        min_size=12, max_size=40,
    ),
    st.sampled_from([0.0, 300.0, -7.0]),
)  # fmt: skip
def test_nobody_is_warned_or_ended_but_for_idle_time_that_was_seen(
    steps: list[tuple[list[float], str, int]], ahead_s: float
) -> None:
    rule = replace(RULE, after_s=20.0, grace_s=15.0)
    cluster = Cluster(IdleRules(by_partition={"": rule}), nodes=2)
    cluster.ahead_s["n1"] = ahead_s
    job = cluster.running(8)
    for loads, what, which in steps:
        cluster.busy = {("n0", 0): loads[0], ("n1", 2): loads[1]}
        if what == "restart":
            cluster.restart()
        cluster.idle_s(
            STEP_S * (3 if what in ("away", "cut") else 1),
            away=[f"n{which}"] if what == "away" else (), cut=[f"n{which}"] if what == "cut" else (),
        )  # fmt: skip
        if cluster.phase(job) is not Phase.RUNNING:
            break

    stands: JobIdleWarned | None = None
    for entry in cluster.log:
        event = entry.event
        if isinstance(event, JobIdleWarned):
            stands = event
            assert event.until_s - event.since_s >= rule.after_s
            assert event.until_s <= entry.at_s
            assert_seen_idle(cluster, event.since_s, event.until_s)
        elif isinstance(event, IdleWarningLifted):
            stands = None
        elif isinstance(event, JobStopping):
            assert stands is not None
            assert stands.ends_s is not None
            assert stands.ends_s <= entry.at_s
            assert_seen_idle(cluster, stands.since_s, stands.ends_s)
    assert cluster.sound()


def assert_seen_idle(cluster: Cluster, since_s: float, until_s: float) -> None:
    """Each node sampled its GPUs all that time, and found none busy."""
    for samples in cluster.seen.values():
        there = [(at_s, pct) for at_s, pct in samples if since_s < at_s <= until_s]
        assert all(pct < RULE.below_pct for _, pct in there)
        times_s = [since_s, *(at_s for at_s, _ in there), until_s]
        assert max(later - earlier for earlier, later in pairwise(times_s)) <= GAP_S


# ---- settings


def config(partition: PartitionRow, *qos: QosRow) -> ManagerConfig:
    return ManagerConfig(node="m", partition=(partition,), qos=qos)


def test_a_qos_goes_before_the_partition_and_may_leave_it_to_that() -> None:
    told = config(
        PartitionRow(name="p", nodes="*", idle_gpus="end", idle_gpus_below_pct=10, idle_gpus_after_s=600),
        QosRow(name="interactive", idle_gpus="off"),
        QosRow(name="night", idle_gpus="warn", idle_gpus_after_s=60),
        QosRow(name="normal", priority=1),
    )  # fmt: skip
    found = idle_rules_of(told)

    assert not [*manager_problems(told)]
    by_partition = IdleRule(below_pct=10, after_s=600, grace_s=1800, ends=True)
    assert [found.of(partition="p", qos=qos) for qos in ("", "normal", "interactive", "night")] == [
        by_partition, by_partition, None, IdleRule(below_pct=5, after_s=60, grace_s=1800, ends=False),
    ]  # fmt: skip
    assert found.of(partition="", qos="") == by_partition  # a job from before there were partitions
    assert found.of(partition="gone", qos="") is None


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert not idle_rules_of(config(PartitionRow(name="p", nodes="*"), QosRow(name="q")))
    assert not idle_rules_of(ManagerConfig(node="m"))


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (
            config(PartitionRow(name="p", nodes="*", idle_gpus_after_s=60)),
            ("partition", "table 1: idle_gpus_after_s does nothing with idle_gpus = 'off'; "),
        ),
        (
            config(PartitionRow(name="p", nodes="*", idle_gpus="warn", idle_gpus_grace_s=60)),
            ("partition", "table 1: idle_gpus_grace_s does nothing with idle_gpus = 'warn'; "),
        ),
        (
            config(PartitionRow(name="p", nodes="*"), QosRow(name="q", idle_gpus_below_pct=7)),
            ("qos", "table 1: idle_gpus_below_pct does nothing with idle_gpus = 'partition'; "),
        ),
    ],
)  # fmt: skip
def test_a_setting_that_would_do_nothing_is_refused(told: ManagerConfig, problem: tuple[str, str]) -> None:
    ((name, text),) = manager_problems(told)

    assert (name, text) == (problem[0], f"{problem[1]}set that to 'end', or leave this out")


def test_a_job_is_judged_by_the_rule_of_its_own_partition() -> None:
    told = ManagerConfig(
        node="m",
        partition=(
            PartitionRow(name="a", nodes="n0", idle_gpus="end", idle_gpus_after_s=20),
            PartitionRow(name="b", nodes="n1"),
        ),
    )
    cluster = Cluster(idle_rules_of(told), nodes=2)
    cluster.partitions = partitions_of(told)
    cluster.lead()
    first, second = cluster.running(4, partition="a"), cluster.running(4, partition="b")

    cluster.idle_s(60)

    assert cluster.job(first).idle is not None
    assert cluster.job(second).idle is None
