"""Shared aggregation by the log alone: who owns which chunks, whatever jobs, nodes and Aggregators do."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from farside.agent import messages as m
from farside.agent.aggregator.plan import job_key, plan_problem
from farside.scheduler.manager.aggregation import decide
from farside.scheduler.manager.aggregation.decide import admission, next_events
from farside.scheduler.manager.aggregation.orders import OrderRoom, full_words, order_of, plan_of, untold
from farside.scheduler.manager.aggregation.show import report
from farside.scheduler.manager.aggregation.state import (
    NOBODY,
    Aggregation,
    AggregationMeasured,
    AssignedRun,
    Cause,
    ChunksAssigned,
    ChunksMoved,
    EpochRun,
    JobChunks,
    ModelDeclared,
    Offer,
    PoolSized,
    Run,
    Step,
    marked,
    renumbered,
    stepped,
)
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.decider.adapter import node_of, outlook_of
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    DrainRequested,
    Event,
    NodeLost,
    ServiceChanged,
    TaskPhase,
    UndrainRequested,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState, member_nodes
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.sharing.aggregation.cost import Basis
from farside.scheduler.sharing.aggregation.tasks import TASKS_MAX, ChunkRun, tasks_of
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

KIB = 1 << 10
VGG = (ChunkRun(2, 64 * KIB), ChunkRun(40, 256 * KIB), ChunkRun(1, 30 * KIB), ChunkRun(9, 256 * KIB))


class Cluster(World):
    """Nodes with Aggregators, which copy and push as a test says."""

    def __init__(self, nodes: int = 3, *, gpus: int = 4, cores: int = 1) -> None:
        super().__init__(rules(), nodes=nodes, gpus=gpus)
        for node in range(nodes):
            self.offer(f"n{node}", cores)

    def offer(self, node: str, cores: int = 1) -> None:
        offer = {"cores": cores, "memory_bytes": 1 << 30, "unix": f"/{node}", "tcp": f"{node}:1", "machine": node}
        self.does(ServiceChanged(node=node, name="aggregator", raw=json.dumps(offer)))

    def train(self, gpus: int = 2, *, aggregators: int = 1, chunks: tuple[ChunkRun, ...] = VGG, **more: Any) -> str:
        """Submits a job, whose members run and declare their model where they may start."""
        job_id = self.submit(gpus, aggregation="shared", aggregators=aggregators, **more)
        if self.phase(job_id) is Phase.STARTING:
            self.runs(job_id)
            self.declare(job_id, chunks)
        return job_id

    def declare(self, job_id: str, chunks: tuple[ChunkRun, ...] = VGG, digest: str = "d") -> None:
        job = self.job(job_id)
        self.does(
            ModelDeclared(
                node=job.tasks[0].node, job_id=job_id, start=job.start, digest=digest, rule="mean",
                members=len(job.tasks), chunks=chunks,
            )
        )  # fmt: skip

    def measure(self, job_id: str, iterations: int, iteration_s: float, load: float = 0.3) -> None:
        """``load``: share of a core that its tasks take."""
        chunks = self.state.aggregation.jobs[job_id]
        byte_s = load * iteration_s / (chunks.size_bytes * chunks.members)
        self.does(
            AggregationMeasured(
                node=self.job(job_id).tasks[0].node, job_id=job_id, start=chunks.start, iterations=iterations,
                iteration_s=iteration_s, byte_s=byte_s,
            )
        )  # fmt: skip

    def move_on(self, job_id: str) -> None:
        """Aggregators do all moves of a job that are under way."""
        job = self.state.aggregation.jobs[job_id]
        moving = [run for run in job.runs if run.next_owner != NOBODY]
        for number in {run.next_owner for run in moving}:
            runs = tuple(EpochRun(r.first, r.count, r.next_epoch) for r in moving if r.next_owner == number)
            told: dict[str, Any] = {
                "node": self.state.aggregation.node_of(number),
                "job_id": job_id,
                "start": job.start,
            }
            self.does(ChunksMoved(**told, copied=runs))
            self.does(ChunksMoved(**told, pushed=runs))

    def at(self, job_id: str) -> set[str]:
        """The nodes whose Aggregators own its chunks, or are to."""
        state = self.state.aggregation
        return {state.node_of(run.target) for run in state.jobs[job_id].runs}

    def decided(self, kind: type) -> list[object]:
        return [entry.event for entry in self.log if isinstance(entry.event, kind)]

    def causes(self, job_id: str) -> list[Cause]:
        return [one.cause for one in self.decided(ChunksAssigned) if one.job_id == job_id]  # type: ignore[attr-defined]


def check(world: Cluster) -> None:
    """What holds of any log, and that whoever takes the lead now would decide the same."""
    assert list(violations(world.log)) == []
    again = LiveState()
    for entry in world.log:
        apply(again, entry)
    assert encode_state(again) == encode_state(world.state)
    image = decode_state(encode_state(again))
    assert image.aggregation == world.state.aggregation
    for state in (again, image, world.state):
        assert next_events(outlook_of(state, world.now_s)) == ()


# ---- a job's way


def test_a_job_begins_on_as_many_aggregators_of_its_own_as_it_asked_for() -> None:
    world = Cluster(3)

    job = world.train(aggregators=2)

    assert len(world.at(job)) == 2
    assert world.causes(job) == [Cause.PROFILING]
    state = world.state.aggregation
    held = {number: sum(r.count for r in state.jobs[job].runs if r.owner == number) for number in (0, 1)}
    assert min(held.values()) > 20  # of 52 chunks
    check(world)


def test_cores_of_the_pool_are_taken_from_the_nodes_cpus_and_given_back_after_a_period() -> None:
    world = Cluster(2, cores=4)
    job = world.train()
    (node,) = world.at(job)

    taken = {one.name: one.cpus for one in world.decider.domain.ledger.nodes}
    world.exits(job)
    world.pass_s(301.0)

    assert taken == {node: 12.0, **{name: 16.0 for name in ("n0", "n1") if name != node}}
    assert world.state.aggregation.pool == {}
    assert {one.cpus for one in world.decider.domain.ledger.nodes} == {16.0}
    check(world)


def test_a_measured_job_comes_to_one_that_has_room_and_its_own_aggregator_goes_back() -> None:
    world = Cluster(3)
    first, second = world.train(), world.train()
    apart = world.at(first) | world.at(second)

    world.measure(first, 20, 0.5)
    world.measure(second, 20, 0.5)
    begun = world.state.aggregation.jobs[second].is_moving
    world.move_on(second)
    world.pass_s(700.0)

    assert len(apart) == 2
    assert begun
    assert world.at(first) == world.at(second)
    assert len(world.state.aggregation.pool) == 1
    assert world.causes(second) == [Cause.PROFILING, Cause.PLACED, Cause.COMMITTED]
    check(world)


def test_near_goes_before_tight() -> None:
    world = Cluster(4, gpus=2)
    first, second, third = world.train(), world.train(), world.train()  # one node each
    for job, load in ((first, 0.2), (second, 0.6)):
        world.measure(job, 20, 0.5, load)
    assert world.at(second) == world.at(first)  # 0.2 + 0.6 fit into 0.9
    near = world.job(third).tasks[0].node
    fourth = world.state.aggregation.numbers.get(near)

    world.measure(third, 20, 0.5, 0.05)

    assert fourth is not None
    assert world.at(third) in ({near}, world.at(first))
    check(world)


def test_a_job_that_cannot_have_its_aggregators_waits_and_says_for_what() -> None:
    world = Cluster(2)
    first = world.train(aggregators=2)

    second = world.train()

    assert world.phase(second) is Phase.WAITING
    (line, *_) = world.decider.why(second, world.now_s, str)
    assert line == "waits for Aggregators: it asks for 1, and 0 of 2 that can be had are free"
    world.exits(first)
    assert world.phase(second) is Phase.STARTING
    check(world)


def test_a_job_is_reverted_when_another_loses_too_much_and_the_loss_accepted_where_nothing_helps() -> None:
    world = Cluster(2)
    first, second = world.train(), world.train(aggregators=1)
    world.measure(first, 20, 0.5)
    world.measure(second, 20, 0.5)
    world.move_on(second)
    shared = world.at(second)

    world.measure(first, 130, 0.6)  # 17 % lost

    assert world.causes(second)[-1] is Cause.REVERTED
    world.move_on(second)
    assert world.at(second) != shared
    world.measure(first, 260, 0.5)
    world.measure(second, 260, 0.6)  # alone now, and slow all the same
    assert world.causes(second)[-1] is Cause.ACCEPTED
    assert world.state.aggregation.jobs[second].accepted == pytest.approx(1 - 0.5 / 0.6)
    assert any("accepted" in line for line in world.decider.why(second, world.now_s, str))
    check(world)


def test_an_exit_lets_others_gather() -> None:
    world = Cluster(4)
    jobs = [world.train() for _ in range(3)]
    for job, load in zip(jobs, (0.6, 0.6, 0.2), strict=True):
        world.measure(job, 20, 0.5, load)
        world.move_on(job)
    assert len(set().union(*map(world.at, jobs))) == 2

    world.exits(jobs[0])
    left = jobs[1:]
    for job in left:
        world.move_on(job)

    assert len(set().union(*map(world.at, left))) == 1
    check(world)


@pytest.mark.parametrize("cores", [1, 4])  # of which a job gets one
def test_a_job_too_large_for_what_there_is_stays_where_it_was_measured_and_says_why(cores: int) -> None:
    world = Cluster(1, cores=cores)
    job = world.train()

    world.measure(job, 20, 0.5, 1.4)

    assert world.state.aggregation.jobs[job].is_placed
    assert any("stays where it was measured" in line for line in world.decider.why(job, world.now_s, str))
    check(world)


def test_a_job_goes_only_where_there_is_memory_for_it_and_otherwise_says_how_much_it_lacks() -> None:
    world = Cluster(2)
    for node, memory_bytes in (("n0", 8 << 20), ("n1", 300 << 20)):
        offer = {"cores": 1, "memory_bytes": memory_bytes, "tcp": "h:1"}
        world.does(ServiceChanged(node=node, name="aggregator", raw=json.dumps(offer)))

    small = world.train()  # 12 MiB
    large, huge = (world.train(chunks=(ChunkRun(count, 256 * KIB),)) for count in (400, 4000))

    assert (world.at(small), world.at(large), world.at(huge)) == ({"n1"}, {"n1"}, {""})
    assert any("no Aggregator has 1000 MiB of memory" in line for line in world.decider.why(huge, 0.0, str))
    check(world)


# ---- nodes and Aggregators that go


def test_chunks_of_a_node_that_drains_are_moved_first() -> None:
    world = Cluster(2, gpus=2)
    job = world.train()
    (node,) = world.at(job)

    world.does(DrainRequested(node=node, reason="new disks", by="root"))

    assert world.causes(job)[-1] is Cause.LEAVING
    assert all(world.state.aggregation.node_of(run.owner) == node for run in world.state.aggregation.jobs[job].runs)
    world.move_on(job)
    assert world.at(job) == {"n0", "n1"} - {node}
    assert node not in world.state.aggregation.pool
    check(world)


def test_jobs_that_leave_one_aggregator_go_to_as_few_as_they_fit() -> None:
    world = Cluster(4)
    jobs = [world.train() for _ in range(3)]
    for job in jobs:
        world.measure(job, 20, 0.5, 0.2)
        world.move_on(job)
    (node,) = set().union(*map(world.at, jobs))

    world.does(DrainRequested(node=node, reason="new disks", by="root"))
    for job in jobs:
        world.move_on(job)

    assert len(set().union(*map(world.at, jobs))) == 1
    assert node not in world.state.aggregation.pool
    check(world)


def test_a_lost_owner_is_replaced_under_a_new_epoch_and_a_lost_next_one_withdrawn() -> None:
    world = Cluster(3)
    first, second = world.train(), world.train()
    world.measure(first, 20, 0.5)
    world.measure(second, 20, 0.5)
    job = world.state.aggregation.jobs[second]
    owner, goal, epoch = job.runs[0].owner, job.runs[0].next_owner, job.runs[0].epoch

    world.does(NodeLost(node=world.state.aggregation.node_of(goal), reason="silent"))

    runs = world.state.aggregation.jobs[second].runs
    assert {(run.owner, run.next_owner) for run in runs} == {(owner, NOBODY)}
    assert all(run.epoch > epoch for run in runs)
    assert all(world.state.aggregation.node_of(run.owner) != "" for run in world.state.aggregation.jobs[first].runs)
    assert goal not in world.state.aggregation.jobs[first].owners
    check(world)


@pytest.mark.parametrize("end", ["broken_here", "broken_there"])
def test_an_end_of_a_move_that_came_anew_ends_it(end: str) -> None:
    world = Cluster(2)
    job = world.train()
    (node,) = world.at(job)
    world.does(DrainRequested(node=node, reason="", by="root"))
    run = world.state.aggregation.jobs[job].runs[0]

    told: dict[str, Any] = {"node": node, "job_id": job, "start": 1, end: (EpochRun(run.first, 5, run.epoch),)}
    world.does(ChunksMoved(**told))

    causes = world.causes(job)
    assert causes[2] is Cause.BROKEN
    first = world.state.aggregation.jobs[job].runs[0]
    if end == "broken_here":
        assert (first.owner, first.next_owner, first.count) == (run.next_owner, NOBODY, 5)
    else:  # its node is still to be left: it moves again, under new epochs
        assert (first.owner, first.next_owner) == (run.owner, run.next_owner)
        assert first.epoch > run.next_epoch
        assert causes[3] is Cause.LEAVING
    check(world)


def test_a_job_that_starts_again_with_the_same_model_finds_its_chunks_where_they_were() -> None:
    world = Cluster(2)
    job = world.train(retries=2)
    runs = world.state.aggregation.jobs[job].runs

    world.exits(job, code=1)
    world.runs(job)
    world.declare(job)

    assert world.job(job).start == 2
    assert world.state.aggregation.jobs[job].start == 2
    assert world.state.aggregation.jobs[job].runs == runs
    check(world)


def test_another_model_begins_anew() -> None:
    world = Cluster(2)
    job = world.train(retries=2)
    before = world.state.aggregation.jobs[job].runs[0].epoch
    world.exits(job, code=1)
    world.runs(job)

    world.declare(job, digest="other")

    assert world.causes(job) == [Cause.PROFILING, Cause.PROFILING]
    assert world.state.aggregation.jobs[job].runs[0].epoch > before
    check(world)


def test_a_job_without_processes_keeps_its_chunks_for_a_minute() -> None:
    world = Cluster(2, gpus=2)
    job = world.train(retries=1)
    for node in ("n0", "n1"):
        world.does(DrainRequested(node=node, reason="", by="root"))
    world.exits(job, code=1)

    world.pass_s(30.0)
    kept = world.state.aggregation.jobs[job].is_assigned
    world.pass_s(40.0)

    assert kept
    assert world.causes(job)[-1] is Cause.RELEASED
    assert world.state.aggregation.in_use() == frozenset()
    check(world)


def test_reports_that_come_late_or_make_no_sense_change_nothing() -> None:
    world = Cluster(2)
    job = world.train()
    before = encode_state(world.state)

    said: Event
    for said in (
        ChunksMoved(node="n0", job_id=job, start=1, copied=(EpochRun(0, 9999, 1), EpochRun(-5, 3, 1))),
        ChunksMoved(node="n0", job_id=job, start=7, pushed=(EpochRun(0, 1, 1),)),
        ChunksMoved(node="who", job_id="99", start=1),
        ModelDeclared(node="n0", job_id=job, start=1, digest="x", rule="sum", members=9, chunks=(ChunkRun(1, 1),)),
        ModelDeclared(node="n0", job_id="99", start=1, digest="x", rule="sum", members=9, chunks=(ChunkRun(1, 1),)),
        AggregationMeasured(node="n0", job_id=job, start=3, iterations=500, iteration_s=1.0),
    ):
        world.does(said)

    state = decode_state(before)
    assert state.aggregation == world.state.aggregation
    check(world)


# ---- any order of things


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_the_log_is_sound_and_every_leader_decides_the_same(seed: int) -> None:
    rng = random.Random(seed)
    world = Cluster(rng.randint(2, 5), gpus=rng.choice((2, 4)), cores=rng.choice((1, 2)))
    nodes = [f"n{at}" for at in range(len(world.state.nodes))]
    steps = (_trains, _measures, _moves, _breaks, _ends, _fails, _drains, _loses, _comes_back, _passes, _leads)

    for _ in range(40):
        rng.choice(steps)(world, rng, nodes)
        check(world)

    for job in list(world.state.aggregation.jobs.values()):
        up = [site for site in outlook_of(world.state, world.now_s).sites.values() if site.is_up and site.cores]
        if (
            any(site.is_taking for site in up)
            and world.phase(job.job_id) in (Phase.STARTING, Phase.RUNNING)
            and not job.is_moving
        ):
            named = {world.state.aggregation.node_of(number) for number in job.owners}
            assert not named or named & {site.node for site in up}


def _trains(world: Cluster, rng: random.Random, _: list[str]) -> None:
    count = rng.randint(1, 60)
    chunks = tuple(ChunkRun(rng.randint(1, count), rng.choice((64, 256)) * KIB) for _ in range(rng.randint(1, 6)))
    world.train(rng.randint(1, 3), aggregators=rng.randint(1, 2), chunks=chunks, retries=rng.randint(0, 1))


def _some(world: Cluster, rng: random.Random) -> str | None:
    running = [job for job in world.state.aggregation.jobs if world.phase(job) in (Phase.STARTING, Phase.RUNNING)]
    return rng.choice(running) if running else None


def _measures(world: Cluster, rng: random.Random, _: list[str]) -> None:
    job = _some(world, rng)
    if job is not None:
        done = world.state.aggregation.jobs[job].iterations
        world.measure(job, done + rng.randint(20, 150), rng.uniform(0.1, 1.0), rng.uniform(0.05, 1.2))


def _moves(world: Cluster, rng: random.Random, _: list[str]) -> None:
    for job in [job.job_id for job in world.state.aggregation.jobs.values() if job.is_moving]:
        world.move_on(job)


def _breaks(world: Cluster, rng: random.Random, _: list[str]) -> None:
    for job in list(world.state.aggregation.jobs.values()):
        for run in job.runs:
            if run.next_owner != NOBODY:
                node = world.state.aggregation.node_of(run.owner)
                end = rng.choice(("broken_here", "broken_there"))
                told: dict[str, Any] = {end: (EpochRun(run.first, rng.randint(1, run.count), run.epoch),)}
                world.does(ChunksMoved(node=node, job_id=job.job_id, start=job.start, **told))
                return


def _ends(world: Cluster, rng: random.Random, _: list[str]) -> None:
    job = _some(world, rng)
    if job is not None:
        world.exits(job)


def _fails(world: Cluster, rng: random.Random, _: list[str]) -> None:
    job = _some(world, rng)
    if job is not None:
        world.exits(job, code=1)
        if world.phase(job) is Phase.STARTING:
            world.runs(job)
            world.declare(job, digest=rng.choice(("d", "e")))


def _drains(world: Cluster, rng: random.Random, nodes: list[str]) -> None:
    node = rng.choice(nodes)
    if world.state.nodes[node].drain_reason:
        world.does(UndrainRequested(node=node, by="root"))
    else:
        world.does(DrainRequested(node=node, reason="x", by="root"))


def _loses(world: Cluster, rng: random.Random, nodes: list[str]) -> None:
    node = rng.choice(nodes)
    if rng.random() < 0.5:
        world.does(NodeLost(node=node, reason="silent"))
    else:
        world.offer(node, 0)


def _comes_back(world: Cluster, rng: random.Random, nodes: list[str]) -> None:
    node = rng.choice(nodes)
    if not world.state.nodes[node].is_up:
        world.join(node, gpus=4, boot_id=rng.choice(("boot-1", "boot-2")))
    world.offer(node, rng.choice((1, 2)))


def _passes(world: Cluster, rng: random.Random, _: list[str]) -> None:
    world.pass_s(rng.choice((1.0, 61.0, 301.0)))


def _leads(world: Cluster, rng: random.Random, _: list[str]) -> None:
    world.lead(decode_state(encode_state(world.state)) if rng.random() < 0.5 else None)


# ---- parts

run_lists = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 300)), min_size=1, max_size=200).map(
    lambda pairs: tuple(ChunkRun(count, size * KIB) for count, size in pairs)
)


@given(run_lists)
def test_tasks_are_all_chunks_once_few_and_none_too_large_to_balance(chunks: tuple[ChunkRun, ...]) -> None:
    tasks = tasks_of(chunks)

    ends = [0, *(task.first + task.count for task in tasks)]
    assert [task.first for task in tasks] == ends[:-1]
    assert ends[-1] == sum(run.count for run in chunks)
    total = sum(run.count * run.size_bytes for run in chunks)
    assert sum(task.size_bytes for task in tasks) == total
    assert len(tasks) <= TASKS_MAX + 16
    largest = max(run.size_bytes for run in chunks)
    assert max(task.size_bytes for task in tasks) <= total / 16 + largest + total * 2 / TASKS_MAX


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.sampled_from(list(Step)), st.integers(0, 3))))
def test_runs_are_what_a_list_of_chunks_would_be(steps: list[tuple[int, int, Step, int]]) -> None:
    runs: tuple[Run, ...] = (Run(first=0, count=31),)
    plain = [(NOBODY, 0, NOBODY, 0)] * 31
    for epoch, (first, count, step, owner) in enumerate(steps, 1):
        count = min(count, 31 - first)
        runs = stepped(runs, AssignedRun(first, count, step, owner), epoch)
        for at in range(first, first + count):
            old, old_epoch, _, next_epoch = plain[at]
            plain[at] = {
                Step.OWN: (owner, epoch, NOBODY, 0),
                Step.MOVE: (old, old_epoch, owner, epoch),
                Step.COMMIT: (owner, next_epoch, NOBODY, 0),
                Step.RELEASE: (NOBODY, 0, NOBODY, 0),
            }[step]
        runs = marked(runs, EpochRun(0, 31, epoch), next_owner=owner, is_copied=True)

    told = [(run.owner, run.epoch, run.next_owner, run.next_epoch) for run in runs for _ in range(run.count)]
    assert told == plain
    assert [run.first for run in runs[1:]] == [run.end for run in runs[:-1]]


def test_a_checker_of_logs_finds_what_may_not_be() -> None:
    world = Cluster(2)
    job = world.train()
    (node,) = world.at(job)
    other = next(name for name in ("n0", "n1") if name != node)
    sound = len(world.log)
    wrong: dict[str, Event] = {
        "does not have": ChunksAssigned(
            job_id=job, start=1, cause=Cause.PLACED, steps=(AssignedRun(0, 1, Step.OWN, 9),), reason=""
        ),
        "before all of it is there": ChunksAssigned(
            job_id=job, start=1, cause=Cause.COMMITTED, steps=(AssignedRun(0, 1, Step.COMMIT, 0),), reason=""
        ),
        "leaves the pool": PoolSized(nodes=(), reason=""),
    }

    for text, event in wrong.items():
        world.tell(event)
        found = list(violations(world.log))
        world.log.pop()
        assert any(text in line for line in found), (text, found)
    assert len(world.log) == sound
    assert other in world.state.nodes


def test_a_node_has_no_fewer_than_no_cpus() -> None:
    world = Cluster(1)

    assert node_of(world.state.nodes["n0"], aggregating=99).cpus == 0


def test_a_job_that_wants_no_aggregation_waits_for_none() -> None:
    world = Cluster(1)
    job = world.submit(1)

    assert admission(outlook_of(world.state, world.now_s), job) == ""
    assert TaskPhase.ASSIGNED


# ---- what nodes report, and are told

SECRET = b"s" * 32


def raw(said: object) -> Raw:
    return Raw(msgspec.json.encode(said))


class Told:
    """Lines to the agents of all nodes, which say and are told what real ones would."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.lines: dict[str, AgentLine] = {}
        self.seq = 0
        for node in list(world.state.nodes):
            hello = msgspec.structs.replace(FakeNode(node).hello(), can=("service:aggregator",))
            self.lines[node] = AgentLine(hello, "10.0.0.7", secret=SECRET)

    def plans(self, node: str) -> tuple[m.NumberedPlan, ...]:
        """What a node is told now; nothing where it knows that."""
        found = [
            msgspec.json.decode(one.raw, type=m.AggregatorOrder) for one in self.lines[node].plans(self.world.state)
        ]
        return found[-1].plans if found else ()

    def says(self, node: str, facts: m.AggregatorFacts, *told: m.Told) -> list[Event]:
        self.seq += 1
        report = m.Report(
            seq=self.seq, at_s=self.world.now_s, headroom_bytes=1 << 36, psi=m.Psi(), gpus=FakeNode(node).declared(),
            tasks=(), services={"aggregator": raw(facts)}, told=told,
        )  # fmt: skip
        events = self.lines[node].reported(self.world.state, report)
        for event in events:
            self.world.does(event)
        return events


def facts(**more: Any) -> m.AggregatorFacts:
    offer = m.AggregatorOffer(cores=1, memory_bytes=1 << 30, unix="/n", tcp="0.0.0.0:77", machine="m")
    return m.AggregatorFacts(offer=offer, has_relay=True, **more)


def test_a_model_is_declared_once_whoever_tells_it() -> None:
    world = Cluster(2, gpus=1)
    job = world.submit(2, aggregation="shared")
    world.runs(job)
    told = Told(world)
    model = m.DeclaredModel(digest="d", rule="mean", members=2, chunks=((4, 256 * KIB),))
    said = m.Told(service="aggregator", job=job, start=1, raw=raw(model))

    first = told.says("n0", facts(), said)
    second = told.says("n1", facts(), said)
    stranger = told.says("n0", facts(), m.Told(service="aggregator", job="99", start=1, raw=raw(model)))

    assert sum(isinstance(one, ModelDeclared) for one in first) == 1
    assert [one for one in (*second, *stranger) if isinstance(one, ModelDeclared)] == []
    check(world)


def test_members_and_aggregators_are_told_the_same_plan_and_others_nothing() -> None:
    world = Cluster(3, gpus=1)
    job = world.train(2)
    told = Told(world)
    owner = next(iter(world.at(job)))
    world.offer(owner)

    plans = {node: told.plans(node) for node in ("n0", "n1", "n2")}

    concerned = {owner, *(task.node for task in world.job(job).tasks)}
    assert {node for node, found in plans.items() if found} == concerned
    (plan,) = {one.plan for found in plans.values() for one in found}
    assert (plan.job, plan.start, plan.members, plan.digest) == (job, 1, 2, "d")
    assert plan_problem(plan, world.state.aggregation.jobs[job].count) == ""
    assert plan.key == job_key(SECRET, job, 1)
    assert [one.number for one in plans[owner]] == [0]
    assert all(told.plans(node) == () for node in plans)  # it is not told twice
    world.exits(job)
    order = list(told.lines[owner].plans(world.state))
    assert msgspec.json.decode(order[0].raw, type=m.AggregatorOrder).plans == ()


def test_an_order_that_is_full_leaves_the_newest_jobs_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster(3, gpus=6)
    jobs = [world.train() for _ in range(2)]
    told = Told(world)
    plans = {plan.plan.job: plan for node in world.state.nodes for plan in told.plans(node)}
    state = world.state.aggregation
    sizes = {job: len(msgspec.json.encode(plans[job])) for job in jobs}
    assert all(sizes[job] <= state.jobs[job].plan_bytes for job in jobs)

    monkeypatch.setattr(m, "ORDER_BYTES_MAX", state.jobs[jobs[0]].plan_bytes)
    (node,) = {task.node for job in jobs for task in world.job(job).tasks}
    order = order_of(state, node, member_nodes(world.state), {}, SECRET)

    assert [one.plan.job for one in order.plans] == jobs[:1]
    assert untold(state, member_nodes(world.state)) == {jobs[1]: node}
    assert any(f"the order of {node} is full" in line for line in world.decider.why(jobs[1], world.now_s, str))
    assert untold(state, {}) == {}


def test_a_job_whose_plan_a_node_could_not_be_told_waits_before_it_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Cluster(3, gpus=6)
    first = world.train()
    monkeypatch.setattr(m, "ORDER_BYTES_MAX", 4 * world.state.aggregation.plan_bytes(first) - 2)

    second = world.submit(2, aggregation="shared")
    other = world.submit(2)

    assert (world.phase(second), world.phase(other)) == (Phase.ALLOCATED, Phase.STARTING)
    (node,) = {task.node for task in world.job(first).tasks}
    why = world.decider.why(second, world.now_s, str)
    assert why[0].endswith(full_words(node))
    assert list(world.decider.take_waits()) == [second]
    assert world.decider.take_waits() == {}
    world.exits(first)
    assert world.phase(second) is Phase.STARTING
    check(world)


def test_a_job_is_not_placed_by_a_plan_that_its_nodes_could_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster(4, gpus=6)
    first, second = world.train(), world.train()
    state = world.state.aggregation
    (node,) = {task.node for job in (first, second) for task in world.job(job).tasks}
    monkeypatch.setattr(m, "ORDER_BYTES_MAX", 2 * (state.plan_bytes(first) + state.plan_bytes(second)))
    world.measure(first, 20, 0.5, 0.6)

    world.measure(second, 20, 0.5, 0.5)  # a part of it would fit beside the first one

    assert len(world.at(second)) == 1
    assert full_words(node) in state.jobs[second].problem
    check(world)


def test_room_in_orders_is_that_of_plans_and_of_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster(3, gpus=6)
    first = world.train()
    (node,) = {task.node for task in world.job(first).tasks}
    state = world.state.aggregation
    state.want("wide", 2)
    state.want("narrow", 1)
    room = OrderRoom(state, member_nodes(world.state))
    both = state.plan_bytes(first) + state.plan_bytes("narrow")

    monkeypatch.setattr(m, "ORDER_BYTES_MAX", 2 * both)
    assert state.plan_bytes("wide") > state.plan_bytes("narrow")
    assert (room.lacking("narrow", {node}), room.lacking("wide", {node})) == ("", node)
    room.take("narrow", {node})
    state.want("next", 1)
    assert (room.lacking("narrow", {node}), room.lacking("next", {node})) == ("", node)
    monkeypatch.undo()
    assert room.lacking("next", {node}) == ""
    monkeypatch.setattr(m, "PLANS_MAX", 2)
    assert (room.lacking("next", {node}), room.lacking("next", {"elsewhere"})) == (node, "")


def test_an_aggregator_gets_no_more_jobs_than_its_order_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster(3)
    first, second = world.train(), world.train()
    monkeypatch.setattr(decide, "ORDER_BYTES_MAX", 3 * world.state.aggregation.jobs[first].plan_bytes)

    for job in (first, second):
        world.measure(job, 20, 0.5, 0.2)
        world.move_on(job)

    # There would be time for both on one.
    assert world.at(first) != world.at(second)


@given(
    parts=st.lists(st.sampled_from(["stays", "moves", "is copied"]), min_size=1, max_size=40), owners=st.integers(1, 60)
)
def test_no_plan_is_longer_than_its_bound(parts: list[str], owners: int) -> None:
    runs = tuple(
        Run(
            first=65_000 + at, count=1, owner=at % owners, epoch=(1 << 62) + at,
            next_owner=NOBODY if part == "stays" else (at + 1) % owners, next_epoch=0 if part == "stays" else (1 << 62),
            is_copied=part == "is copied",
        )
        for at, part in enumerate(parts)
    )  # fmt: skip
    job = JobChunks(
        job_id="1234567_1234", start=1 << 30, servers=1, digest="d" * 64, rule="adamw", members=64, chunks=(), runs=runs
    )
    job = renumbered(job)
    offer = Offer(cores=1, unix="/" + "u" * 106, tcp="h" * 64 + ":65535", machine="m" * 36)
    state = Aggregation(offers={f"n{at}": offer for at in range(61)}, numbers={f"n{at}": at for at in range(61)})

    plan = plan_of(state, job, {}, SECRET)

    assert len(msgspec.json.encode(m.NumberedPlan(plan=plan, number=63, has_members=True))) <= job.plan_bytes


def test_no_key_is_in_the_log_and_an_address_on_all_interfaces_is_the_nodes() -> None:
    world = Cluster(2)
    told = Told(world)
    told.says("n0", facts())
    told.says("n1", facts())
    job = world.train(2)

    (one,) = [plan for node in ("n0", "n1") for plan in told.plans(node) if plan.number is not None]

    assert one.plan.aggregators[0].tcp == "127.0.0.1:77"
    assert one.plan.job == job
    assert not any(one.plan.key.hex() in repr(entry) or repr(one.plan.key) in repr(entry) for entry in world.log)


def test_moves_are_written_once_and_complete_the_move() -> None:
    world = Cluster(2, gpus=2)
    job = world.train()
    (node,) = world.at(job)
    told = Told(world)
    world.does(DrainRequested(node=node, reason="", by="root"))
    state = world.state.aggregation
    goal = state.node_of(state.jobs[job].runs[0].next_owner)
    runs = tuple((run.first, run.count, run.next_epoch) for run in state.jobs[job].runs)

    half = told.says(goal, facts(held=(m.AggregatedJob(job=job, start=1, copied=runs),)))
    again = told.says(goal, facts(held=(m.AggregatedJob(job=job, start=1, copied=runs),)))
    told.says(goal, facts(held=(m.AggregatedJob(job=job, start=1, copied=runs, pushed=runs),)))

    assert sum(isinstance(one, ChunksMoved) for one in half) == 1
    assert [one for one in again if isinstance(one, ChunksMoved)] == []
    assert world.causes(job)[-1] is Cause.COMMITTED
    assert world.at(job) == {goal}
    check(world)


def test_what_is_measured_is_written_when_it_is_new_or_a_decision_waits_for_it() -> None:
    world = Cluster(2, gpus=2)
    job = world.train()
    told = Told(world)
    (owner,) = world.at(job)
    member = world.job(job).tasks[0].node
    size = world.state.aggregation.jobs[job].size_bytes

    def reads(iterations: int, iteration_s: float) -> int:
        reading = m.MemberReading(job=job, start=1, iterations=iterations, iteration_s=iteration_s)
        events = told.says(member, facts(readings=(reading,)))
        return sum(isinstance(one, AggregationMeasured) for one in events)

    busy = m.AggregatedJob(job=job, start=1, busy_s=3.0, pushed_bytes=20 * 2 * size)
    events = told.says(owner, facts(held=(busy,)))
    assert [one.byte_s for one in events if isinstance(one, AggregationMeasured)] == [3.0 / (40 * size)]
    counts = [reads(5, 0.5), reads(20, 0.5), reads(40, 0.51), reads(60, 0.6)]
    assert counts == [0, 1, 0, 0]  # too few; enough; alike; too soon after the last
    assert world.state.aggregation.jobs[job].is_placed
    assert [reads(119, 0.5), reads(121, 0.5), reads(300, 0.5)] == [0, 1, 0]  # the end of the watch
    world.pass_s(61.0)
    assert reads(400, 0.6) == 1
    check(world)


def counted(world: Cluster, job: str, *, chunk_s: float, byte_s: float, iterations: int = 100) -> m.AggregatedJob:
    """Counters of an Aggregator that takes so long for each chunk and byte of a job."""
    chunks = world.state.aggregation.jobs[job]
    sizes = [run.size_bytes * chunks.members for run in chunks.chunks for _ in range(run.count)]
    times = [chunk_s + byte_s * size for size in sizes]
    return m.AggregatedJob(
        job=job, start=1, updates=iterations * len(sizes), busy_s=iterations * sum(times),
        pushed_bytes=iterations * sum(sizes), result_bytes=iterations * sum(sizes),
        size_squares=iterations * sum(float(size) ** 2 for size in sizes),
        size_times=iterations * sum(size * took_s for size, took_s in zip(sizes, times, strict=True)),
    )  # fmt: skip


def test_what_chunks_and_bytes_cost_is_written_shown_and_planned_by() -> None:
    world = Cluster(2, gpus=2)
    job = world.train()
    told = Told(world)
    (owner,) = world.at(job)

    def says(*, chunk_s: float, byte_s: float) -> list[AggregationMeasured]:
        events = told.says(owner, facts(held=(counted(world, job, chunk_s=chunk_s, byte_s=byte_s),)))
        return [one for one in events if isinstance(one, AggregationMeasured)]

    (first,) = says(chunk_s=1e-4, byte_s=2e-9)
    reading = m.MemberReading(job=job, start=1, iterations=20, iteration_s=0.5)
    told.says(world.job(job).tasks[0].node, facts(readings=(reading,)))
    world.pass_s(61.0)
    alike, other = says(chunk_s=1.02e-4, byte_s=2.04e-9), says(chunk_s=2e-3, byte_s=2e-9)

    assert first.basis is Basis.BOTH
    assert (first.chunk_s, first.byte_s) == pytest.approx((1e-4, 2e-9))
    assert (len(alike), len(other)) == (0, 1)
    shown = report(world.state.aggregation, {}, lambda _: True)
    (row,) = shown.jobs
    assert row.cost_note == ""
    assert (row.chunk_s, row.byte_s) == pytest.approx((2e-3, 2e-9))
    chunks = world.state.aggregation.jobs[job]
    pushed = chunks.size_bytes * chunks.members
    assert next(one.planned_pct for one in shown.aggregators if one.jobs) == pytest.approx(
        100 * (52 * 2e-3 + pushed * 2e-9) / 0.5, abs=0.1
    )
    check(world)


def test_an_entry_of_before_has_the_cost_of_a_byte_alone() -> None:
    said = b'{"node":"n0","job_id":"1","start":1,"byte_s":2e-9}'
    event = msgspec.json.decode(said, type=AggregationMeasured)
    world = Cluster(1)
    job = world.train()

    world.does(msgspec.structs.replace(event, job_id=job))

    (row,) = report(world.state.aggregation, {}, lambda _: True).jobs
    assert (row.chunk_s, row.byte_s) == (0.0, 2e-9)
    assert "by bytes alone" in row.cost_note
    check(world)


def test_a_task_is_told_which_member_it_is() -> None:
    world = Cluster(2, gpus=1)
    job = world.train(2)
    line = Told(world).lines["n1"]

    (start,) = [one for one in line.commands(world.state) if isinstance(one, m.Start)]

    ranks = {task.node: task.rank for task in world.job(job).tasks}
    assert start.spec.membership == m.Membership(rank=ranks["n1"], members=2)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"gpus": 1}, "of 2 to 64 processes with GPUs, and this job has 1"),
        ({"aggregators": 9}, "it asks for 9, and 2 nodes offer one"),
    ],
)
def test_a_job_that_can_never_aggregate_is_refused_in_one_line(more: dict[str, Any], text: str) -> None:
    world = Cluster(2)
    spec = msgspec.structs.replace(JobSpec(argv=("x",), gpus=2, aggregation="shared"), **more)

    (problem,) = cluster_problems(spec, world.state, user="ann")

    assert text in problem
    assert cluster_problems(JobSpec(argv=("x",), gpus=2, aggregation="shared"), world.state, user="ann") == []


def test_a_node_that_offers_more_than_it_has_gets_no_chunks_and_is_named() -> None:
    world = World(rules(), nodes=2)
    for node, offer in (("n0", {"cores": 64, "memory_bytes": 1 << 30}), ("n1", {"cores": 2, "memory_bytes": 1 << 37})):
        world.does(ServiceChanged(node=node, name="aggregator", raw=json.dumps(offer)))
    job = world.submit(2, aggregation="shared")

    rows = report(world.state.aggregation, {}, lambda _: True).aggregators
    (refused,) = cluster_problems(JobSpec(argv=("x",), gpus=2, aggregation="shared"), world.state, user="ann")

    assert [row.problem for row in rows] == [
        "its Aggregator says 64 cores, and the node has 16; lower `cores` there",
        "its Aggregator says 128 GiB of memory, and the node has 64 GiB; lower `memory_bytes` there",
    ]
    assert "no node offers an Aggregator; of n0 its Aggregator says 64 cores" in refused
    assert world.phase(job) is Phase.WAITING
    world.does(ServiceChanged(node="n0", name="aggregator", raw=json.dumps({"cores": 16, "memory_bytes": 1 << 30})))
    assert world.phase(job) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_without_an_aggregator_or_with_an_agent_of_before_such_a_job_is_refused() -> None:
    none = World(rules(), nodes=2)
    mixed = Cluster(2)
    mixed.join("n9")
    spec = JobSpec(argv=("x",), gpus=2, aggregation="shared")

    assert "no node offers an Aggregator" in cluster_problems(spec, none.state, user="ann")[0]
    assert "tasks on n9 do not reach it" in cluster_problems(spec, mixed.state, user="ann")[0]
