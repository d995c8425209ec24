"""Memory of other nodes that jobs are promised: never more than donors lend, whatever becomes of the donors."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from farside.agent import messages as m
from farside.scheduler.admission.partitions import Partition, Partitions
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.compare_simulation import recording
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    DrainRequested,
    Entry,
    JobAllocated,
    JobStarted,
    LendingOrdered,
    NodeAllocation,
    NodeChanged,
    NodeLost,
    SchedulerTookLead,
    TaskAllocation,
    UndrainRequested,
)
from farside.scheduler.manager.model.lending import promised_by_donor
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.donors import DonorRing
from tests.live.facts import gpus, joined
from tests.live.fake_agent import FakeNode
from tests.live.test_api import Api, api_test
from tests.live.world import World, rules

GIB = 1 << 30
SWAP = m.Swap(size_bytes=1024 * GIB)


def a_world(policy: str = "fifo", *, nodes: int = 1, **more: Any) -> World:
    """Nodes n0 and so on of four GPUs with 1 TiB of Farside swap, and no donor."""
    world = World(rules(policy), nodes=0, **more)
    for at in range(nodes):
        world.does(borrower(f"n{at}"))
    return world


def borrower(name: str, donor: m.Donor | None = None) -> Any:
    memory = {"memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB}
    return joined(name, name, cpus=16, gpus=gpus(4, "H200"), swap=SWAP, donor=donor, **memory)


def donor(name: str, lends_gib: int) -> m.Donor:
    return m.Donor(node=name, control=f"tcp:{name}:7677", capacity_bytes=lends_gib * GIB)


def lend(world: World, name: str, lends_gib: int, *, memory_gib: int = 256) -> None:
    """A node without GPUs whose donor lends so much; it joins, or says so."""
    node = world.state.nodes.get(name)
    if node is None or not node.is_up:
        memory = {"memory_bytes": memory_gib * GIB, "headroom_bytes": memory_gib * GIB}
        world.does(joined(name, name, donor=donor(name, lends_gib), **memory))
    else:
        facts = m.fields_of(m.ChangingFacts, node)
        world.does(NodeChanged(node=name, **{**facts, "donor": donor(name, lends_gib)}))


def submit(world: World, gpus: int = 1, *, swap_gib: int = 64, **more: Any) -> str:
    return world.submit(gpus, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=swap_gib * GIB / gpus, **more)


def phases(world: World, *jobs: str) -> list[Phase]:
    return [world.phase(job) for job in jobs]


def why(world: World, job: str) -> str:
    return world.decider.why(job, world.now_s, str)[0]


# ---- the queue


def test_in_a_cluster_without_a_donor_no_job_is_promised_memory_and_each_says_what_it_waits_for() -> None:
    world = a_world("las")
    first, second = submit(world), submit(world)

    assert phases(world, first, second) == [Phase.WAITING] * 2
    for job in (first, second):
        assert "no donor lends memory, and it needs 64 GiB of other nodes' memory" in why(world, job)


def test_of_two_jobs_one_starts_where_donors_lend_enough_for_one_and_the_other_when_that_has_ended() -> None:
    world = a_world()
    lend(world, "d", 100)
    first, second = submit(world), submit(world)
    world.runs(first)

    assert phases(world, first, second) == [Phase.RUNNING, Phase.WAITING]
    assert "of the 100 GiB that donors lend 64 GiB are promised to jobs" in why(world, second)
    world.exits(first)
    assert world.phase(second) is Phase.STARTING


def test_a_job_without_swap_does_not_wait_for_memory_of_others() -> None:
    world = a_world()

    assert world.phase(submit(world, swap_gib=0)) is Phase.STARTING


def test_a_job_waits_for_memory_that_comes_with_a_donor() -> None:
    world = a_world()
    job = submit(world)
    lend(world, "d1", 60)
    before = world.phase(job)
    lend(world, "d2", 4)

    assert (before, world.phase(job)) == (Phase.WAITING, Phase.STARTING)


def test_a_nodes_own_donor_backs_no_job_there() -> None:
    world = a_world(nodes=0)
    world.does(borrower("n0", donor("n0", 64)))
    job = submit(world)

    assert world.phase(job) is Phase.WAITING
    assert "at most 0 B are left that donors of other nodes lend" in why(world, job)
    lend(world, "d", 64)
    assert world.phase(job) is Phase.STARTING


@pytest.mark.parametrize("end", ["dies", "drains", "shrinks", "closes", "is bounded"])
def test_when_a_donor_goes_what_runs_runs_on_and_nothing_is_promised_until_it_fits(end: str) -> None:
    world = a_world()
    lend(world, "d", 128)
    first = submit(world)
    world.runs(first)
    match end:
        case "dies":
            world.does(NodeLost(node="d", reason="silent"))
        case "drains":
            world.does(DrainRequested(node="d", reason="", by="root"))
        case "shrinks":
            lend(world, "d", 100)
        case "is bounded":
            world.does(LendingOrdered(node="d", lend_bytes=100 * GIB, by="root"))
        case _:
            lend(world, "d", 0)  # what a donor says that lends no more
    second = submit(world)

    assert phases(world, first, second) == [Phase.RUNNING, Phase.WAITING]
    if end == "drains":
        world.does(UndrainRequested(node="d", by="root"))
    if end == "is bounded":
        world.does(LendingOrdered(node="d", lend_bytes=None, by="root"))
    lend(world, "d", 128)
    assert world.phase(second) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_a_donor_with_another_nodes_name_and_one_that_only_its_own_machine_reaches_lend_nothing() -> None:
    world = a_world()
    world.does(joined("d1", "d1", donor=structs.replace(donor("d1", 500), node="n0")))
    world.does(joined("d2", "d2", donor=structs.replace(donor("d2", 500), control="tcp:127.0.0.1:7677")))

    assert world.phase(submit(world)) is Phase.WAITING


def test_what_donors_lend_is_one_for_all_partitions_and_what_one_gives_back_another_may_have() -> None:
    parts = Partitions(by_name={"a": Partition(name="a"), "b": Partition(name="b")}, owners={"n0": "a"}, rest="b")
    world = a_world(nodes=2, partitions=parts)
    lend(world, "d", 64)
    first, second = submit(world, partition="a"), submit(world, partition="b")
    world.runs(first)
    before = phases(world, first, second)
    world.exits(first)

    assert before == [Phase.RUNNING, Phase.WAITING]
    assert world.phase(second) is Phase.STARTING


@pytest.mark.parametrize("first", ["taken", "promised"])
def test_what_a_job_of_one_partition_has_of_its_node_is_promised_to_none_of_another(first: str) -> None:
    parts = Partitions(by_name={"a": Partition(name="a"), "b": Partition(name="b")}, owners={"n0": "a"}, rest="b")
    world = a_world(nodes=0, partitions=parts)
    world.does(borrower("n0", donor("n0", 40)))
    world.does(borrower("n1"))

    def asks(what: str) -> str:
        if what == "taken":
            return world.submit(4, memory_bytes_per_gpu=13 * GIB, partition="a")  # of 64 GiB 12 are left to lend
        return submit(world, swap_gib=36, partition="b")

    before = asks(first)
    after = asks("promised" if first == "taken" else "taken")
    assert phases(world, before, after) == [Phase.STARTING, Phase.WAITING]
    world.runs(before)
    world.exits(before)
    assert world.phase(after) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_a_start_does_not_take_what_donors_lend_no_longer_beside_it() -> None:
    """It was placed when the donors lent enough; one of them shrinks while the job before it still leaves."""
    world = a_world("srtf", nodes=0)
    for event in (borrower("n0", donor("n0", 40)), borrower("n1")):
        world.does(event)
    lend(world, "d", 30)
    swapping = submit(world, 4, swap_gib=40, nodes=("n1",), time_limit_s=9000.0, preemptible=False)
    long = world.submit(4, nodes=("n0",), time_limit_s=9000.0)
    for job in (swapping, long):
        world.runs(job)
    short = world.submit(4, memory_bytes_per_gpu=13 * GIB, nodes=("n0",), time_limit_s=10.0)
    before = world.phase(short)  # of 70 GiB, it leaves 42
    lend(world, "d", 20)
    world.exits(long, 143, "preempted")

    assert before is Phase.ALLOCATED
    assert phases(world, swapping, short) == [Phase.RUNNING, Phase.WAITING]
    world.exits(swapping)
    world.exits(long, 143, "preempted")
    assert world.phase(short) is Phase.STARTING
    assert list(violations(world.log)) == []


def lending_node(memory_gib: int, name: str = "n0") -> Any:
    """A node as it joins, again or for the first time: its donor lends 40 GiB; 0 GiB of memory: nobody counts it."""
    memory_bytes = memory_gib * GIB
    return structs.replace(borrower(name, donor(name, 40)), memory_bytes=memory_bytes, headroom_bytes=memory_bytes)


@pytest.mark.parametrize("before_gib", [64, 0])
def test_a_node_that_rejoins_with_a_little_less_memory_is_given_no_job_that_would_not_start(before_gib: int) -> None:
    """Other nodes' jobs were promised all that its donor lends, and of 60 GiB 36 would be left to lend."""
    world = a_world(nodes=0)
    for event in (lending_node(before_gib), borrower("n1")):
        world.does(event)
    swapping = submit(world, swap_gib=40, nodes=("n1",))
    world.does(lending_node(60))
    job = world.submit(4, memory_bytes_per_gpu=6 * GIB, nodes=("n0",))
    before = phases(world, swapping, job)
    world.runs(swapping)
    world.exits(swapping)

    assert before == [Phase.STARTING, Phase.WAITING]
    assert world.phase(job) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_a_node_that_had_more_memory_when_its_jobs_were_placed_counts_with_what_it_has_when_they_have_ended() -> None:
    world = a_world(nodes=0)
    for event in (lending_node(64), borrower("n1")):
        world.does(event)
    large = world.submit(2, memory_bytes_per_gpu=24 * GIB, nodes=("n0",))  # of 64 GiB, it leaves 16
    world.runs(large)
    world.does(lending_node(44))
    world.exits(large)
    swapping = submit(world, swap_gib=36, nodes=("n1",))
    job = world.submit(2, memory_bytes_per_gpu=5 * GIB, nodes=("n0",))

    assert phases(world, swapping, job) == [Phase.STARTING, Phase.WAITING]
    assert list(violations(world.log)) == []


def test_who_preempts_starts_only_when_the_memory_that_it_was_promised_is_left() -> None:
    world = a_world("srtf", nodes=2)
    lend(world, "d", 64)
    long = submit(world, 4, time_limit_s=9000.0)
    world.runs(long)
    short = submit(world, 4, time_limit_s=10.0)

    assert phases(world, long, short) == [Phase.STOPPING, Phase.ALLOCATED]
    world.exits(long, 143, "preempted")
    assert phases(world, long, short) == [Phase.WAITING, Phase.STARTING]
    assert list(violations(world.log)) == []


def test_a_job_whose_memory_goes_before_it_starts_is_placed_anew() -> None:
    world = a_world("srtf")
    lend(world, "d", 64)
    long = submit(world, 4, swap_gib=0, time_limit_s=9000.0)
    world.runs(long)
    short = submit(world, 4, time_limit_s=10.0)
    before = world.phase(short)
    lend(world, "d", 32)
    world.exits(long, 143, "preempted")

    assert before is Phase.ALLOCATED
    assert world.phase(short) is Phase.WAITING
    assert world.phase(long) is Phase.WAITING or world.phase(long) is Phase.STARTING
    lend(world, "d", 64)
    world.runs(long)
    assert list(violations(world.log)) == []


def test_what_was_promised_outlives_a_change_of_leader() -> None:
    world = a_world()
    lend(world, "d", 100)
    first, second = submit(world), submit(world)
    world.runs(first)
    world.lead()

    assert phases(world, first, second) == [Phase.RUNNING, Phase.WAITING]


def test_each_donor_shows_its_part_of_what_is_promised() -> None:
    world = a_world()
    lend(world, "d1", 96)
    lend(world, "d2", 32)
    world.runs(submit(world))

    assert promised_by_donor(world.state) == {"d1": 48 * GIB, "d2": 16 * GIB}


def test_what_is_promised_is_in_the_metrics_also_when_no_donor_lends_it_any_more(tmp_path: Path) -> None:
    world = a_world()
    lend(world, "d", 64)
    world.runs(submit(world))
    world.does(NodeLost(node="d", reason="silent"))

    async def test(api: Api) -> None:
        api.log.state = world.state
        found = {family.name: family for family in ManagerCollector(api.context).collect()}

        for name, value in {"promised": 64 * GIB, "capacity": 0}.items():
            assert found[f"farside_manager_memory_{name}_bytes"].samples[0].value == value

    api_test(test, tmp_path)


# ---- submission


@pytest.mark.parametrize(
    ("lends_gib", "said"),
    [
        (None, "and no node has a donor; run `farside daemon` on nodes whose memory may be lent"),
        (100, "and all nodes with a donor have 100 GiB; ask for less"),
        (128, ""),
    ],
)
def test_swap_that_donors_can_never_lend_is_refused_in_one_line(lends_gib: int | None, said: str) -> None:
    world = a_world()
    if lends_gib is not None:
        lend(world, "d", 0, memory_gib=lends_gib)  # however little it lends now
    spec = JobSpec(argv=("true",), gpus=2, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=64 * GIB)
    asks = "swap: it asks for 128 GiB of other nodes' memory, "

    assert cluster_problems(spec, world.state, user="ann") == [asks + said][: bool(said)]


def test_a_single_node_with_a_donor_can_not_back_its_own_jobs() -> None:
    world = a_world(nodes=0)
    world.does(borrower("n0", donor("n0", 64)))
    spec = JobSpec(argv=("true",), memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=GIB)

    (problem,) = cluster_problems(spec, world.state, user="ann")
    assert problem.endswith("a node does not borrow from its own donor: the others have too little; ask for less")


# ---- what agents say


def told(world: World, line: AgentLine, **said: Any) -> list[int]:
    """The capacities that a report writes into the log."""
    reported = m.Donor(node="d", control="tcp:d:1", **said)
    plain = m.Report(
        seq=1, at_s=1.0, headroom_bytes=1 << 36, psi=m.Psi(), gpus=FakeNode("n0").declared(), tasks=(), donor=reported
    )  # fmt: skip
    events = [event for event in line.reported(world.state, plain) if isinstance(event, NodeChanged)]
    for event in events:
        world.does(event)
    return [event.donor.capacity_bytes for event in events if event.donor is not None]


def test_what_a_donor_can_lend_is_news_when_it_moves_by_a_sixteenth_and_no_borrower_is_told_again() -> None:
    world = World(rules(), nodes=1)
    line = AgentLine(FakeNode("n0").hello(), "n0")
    for event in line.joined(world.state):
        world.does(event)

    assert told(world, line, free_bytes=64, lent_bytes=96) == [160]
    version = DonorRing(world.state).version
    assert told(world, line, free_bytes=0, lent_bytes=160) == []  # what is lent moves, and the sum does not
    assert told(world, line, free_bytes=0, lent_bytes=150) == []
    assert told(world, line, free_bytes=0, lent_bytes=149) == [149]
    assert told(world, line, free_bytes=9, lent_bytes=149, lends=False) == [0]
    assert DonorRing(world.state).version == version


# ---- the checker


def test_the_checker_finds_a_promise_of_more_than_donors_lend_and_none_of_an_older_leader() -> None:
    world = a_world()
    lend(world, "d", 64)
    submit(world)
    at = next(at for at, entry in enumerate(world.log) if isinstance(entry.event, JobStarted))
    less = NodeChanged(node="d", gpus=(), headroom_bytes=0, donor=donor("d", 63))
    entries = [*world.log[:at], Entry(seq=0, at_s=1000.0, generation=0, cause="test", event=less), *world.log[at:]]
    log = [structs.replace(entry, seq=place) for place, entry in enumerate(entries, 1)]
    older = [
        structs.replace(entry, event=structs.replace(entry.event, counts_lent=False))
        if isinstance(entry.event, SchedulerTookLead)
        else entry
        for entry in log
    ]

    lines = [line.partition(": job 1 is ")[2] for line in violations(log)]
    assert lines == [
        f"promised memory: {64 * GIB} bytes in all, and donors lend {63 * GIB}",
        f"promised memory on n0: {64 * GIB} bytes in all, and others lend {63 * GIB}",
    ]
    assert list(violations(older)) == []


def test_the_checker_counts_what_jobs_have_of_donors_nodes() -> None:
    """As if nobody had counted it: each of the two starts, and together they have 38 GiB too much."""
    found = []
    for order in (("1", "2"), ("2", "1")):
        world = a_world(nodes=0)
        for event in (borrower("n0", donor("n0", 40)), borrower("n1")):
            world.does(event)
        specs = {"1": world.submit(4, memory_bytes_per_gpu=15.5 * GIB, nodes=("n0",)), "2": submit(world, swap_gib=40)}
        assert phases(world, *specs.values()) == [Phase.STARTING, Phase.WAITING]
        facts = [entry for entry in world.log if not isinstance(entry.event, JobAllocated | JobStarted)]
        events: list[Any] = []
        for job in order:
            node, count = ("n0", 4) if job == "1" else ("n1", 1)
            places = (NodeAllocation(node=node, gpus=count),)
            task = TaskAllocation(rank=0, node=node, gpus=tuple(range(count)))
            events.append(JobAllocated(job_id=job, places=places, reason=""))
            events.append(JobStarted(job_id=job, start=1, tasks=(task,), master_addr="", master_port=1))
        forced = [Entry(seq=0, at_s=2000.0, generation=1, cause="test", event=event) for event in events]
        log = [structs.replace(entry, seq=place) for place, entry in enumerate([*facts, *forced], 1)]
        found.append([line.partition(": job ")[2] for line in violations(log)])

    lacks = f"{40 * GIB} bytes in all, and"
    assert found == [
        [
            f"2 is promised memory: {lacks} donors lend {2 * GIB}",
            f"2 is promised memory on n1: {lacks} others lend {2 * GIB}",
        ],
        [
            f"1 takes memory that is promised: {lacks} donors lend {2 * GIB}",
            f"1 takes memory that is promised on n1: {lacks} others lend {2 * GIB}",
        ],
    ]  # fmt: skip


_STEPS = st.one_of(
    st.tuples(st.just("lend"), st.integers(1, 3), st.integers(0, 160)),
    st.tuples(st.just("lose"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("rejoin"), st.just(1), st.integers(40, 80)),
    st.tuples(st.just("bound"), st.integers(1, 3), st.integers(0, 160)),
    st.tuples(st.sampled_from(("drain", "undrain")), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("submit"), st.integers(1, 4), st.integers(0, 100)),
    st.tuples(st.just("take"), st.integers(1, 4), st.integers(1, 15)),
    st.tuples(st.sampled_from(("run", "end", "lead")), st.integers(0, 5), st.just(0)),
)


@settings(max_examples=60)
@given(st.sampled_from(("fifo", "srtf", "las")), st.lists(_STEPS, min_size=5, max_size=30))
def test_whatever_donors_do_no_more_is_promised_than_they_lend(policy: str, steps: list[tuple[str, int, int]]) -> None:
    world = a_world(policy)
    world.does(borrower("n1", donor("n1", 40)))
    for what, number, size in steps:
        live = list(world.state.unfinished)
        job = live[number % len(live)] if live else ""
        match what:
            case "lend":
                lend(world, f"d{number}", size)
            case "lose":
                world.does(NodeLost(node=f"d{number}", reason="silent"))
            case "rejoin":
                world.does(lending_node(size, f"n{number}"))
            case "bound":
                at_most = None if size > 120 else size * GIB
                world.does(LendingOrdered(node=f"d{number}", lend_bytes=at_most, by="root"))
            case "drain":
                world.does(DrainRequested(node=f"d{number}", reason="", by="root"))
            case "undrain":
                world.does(UndrainRequested(node=f"d{number}", by="root"))
            case "submit":
                submit(world, number, swap_gib=size, time_limit_s=float(1000 - 10 * len(live)))
            case "take":
                world.submit(number, memory_bytes_per_gpu=size * GIB, time_limit_s=float(1000 - 10 * len(live)))
            case "run" if job:
                world.runs(job)
            case "end" if job:
                world.exits(job, 143, "preempted")
            case "lead":
                world.lead()
    assert list(violations(world.log)) == []


def test_a_replay_knows_what_donors_lent() -> None:
    world = a_world()
    lend(world, "d", 100)
    for job in (submit(world), submit(world)):
        world.runs(job)
        world.pass_s(10.0)
        world.exits(job)

    found = recording(world.log)

    assert found.lent.lent_bytes == 100 * GIB
    assert not found.lent.fits({"n0": 101 * GIB})
