"""Partitions that lend idle nodes: who borrows them, how they come back, and what is known of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.config.manager import ManagerConfig, PartitionRow
from farside.scheduler.configured_rules import partitions_of
from farside.scheduler.manager.model.check_log import LEAVING_S, violations
from farside.scheduler.manager.model.event import CancelRequested, JobStopping, NodesReserved
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.view.partition import Owners, Whose
from farside.scheduler.tenancy import Account, Qos, Tenancy
from tests.live.world import World, rules

LENDS = ManagerConfig(
    node="m",
    partition=(
        PartitionRow(name="a", nodes="n0", lend_grace_s=30),
        PartitionRow(name="b", nodes="n1", lend_grace_s=30),
    ),
)
GUEST: dict[str, Any] = {"partition": "a", "preemptible": True}


def a_world(order: str = "fifo", *, config: ManagerConfig = LENDS, tenancy: Tenancy | None = None) -> World:
    return World(replace(rules(order), tenancy=tenancy), nodes=2, gpus=4, partitions=partitions_of(config))


def with_guest(w: World, **more: Any) -> tuple[str, str]:
    """A job that fills a's node, and another of a on b's."""
    own, guest = w.submit(4, partition="a"), w.submit(4, **(GUEST | more))
    w.runs(own)
    w.runs(guest)
    return own, guest


def test_an_idle_node_runs_a_job_of_another_partition_and_says_whose_it_is() -> None:
    w = a_world()
    _, guest = with_guest(w)

    assert (w.job(guest).nodes, w.job(guest).host, w.job(guest).reason) == (("n1",), "b", "4 GPUs of b are idle")
    assert Owners(partitions=w.partitions, jobs=w.state.jobs).of(w.state.nodes["n1"]) == Whose(
        partition="b", borrower="a"
    )
    assert not [*violations(w.log)]


def test_an_owner_has_its_node_back_as_soon_as_the_borrower_has_left() -> None:
    w = a_world()
    own, guest = with_guest(w)
    owner = w.submit(4, partition="b")

    stop = next(entry.event for entry in w.log if isinstance(entry.event, JobStopping))
    assert (stop.job_id, stop.winner) == (guest, owner)
    assert stop.reason == f"its GPUs go back to their owner: job {owner}"
    w.exits(guest, 143, cause="preempted")
    assert (w.phase(owner), w.job(owner).nodes, w.phase(guest)) == (Phase.STARTING, ("n1",), Phase.WAITING)
    w.exits(own)
    assert (w.job(guest).nodes, w.job(guest).host, w.phase(guest)) == (("n0",), "", Phase.STARTING)
    assert not [*violations(w.log)]


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ({"preemptible": False}, ", since it is not preemptible"),
        ({"grace_s": 31.0}, ": its grace is 31 s, and they lend for 30 s at most"),
    ],
)
def test_a_job_that_would_keep_an_owner_waiting_is_no_guest_and_is_told_so(refused: dict[str, Any], why: str) -> None:
    w = a_world()
    w.submit(4, partition="a")
    job = w.submit(4, **(GUEST | refused))

    assert w.phase(job) is Phase.WAITING
    assert f"it borrows no idle nodes of other partitions{why}" in w.decider.why(job, w.now_s, str)


def lender_lines(w: World, job: str) -> list[str]:
    return [line for line in w.decider.why(job, w.now_s, str) if line.startswith("partition") and "lend" in line]


def test_a_lender_that_has_too_few_free_gpus_or_jobs_that_wait_is_named() -> None:
    w = a_world()
    w.submit(4, partition="a")
    w.submit(2, partition="b")
    job = w.submit(3, **GUEST)
    few = lender_lines(w, job)
    w.submit(4, partition="b")

    assert w.phase(job) is Phase.WAITING
    assert few == ["partition b lends it nothing: it needs 3 GPUs, and 2 GPUs there are free"]
    assert lender_lines(w, job) == ["partition b lends it nothing: jobs of its own wait"]


def test_each_lender_has_its_reason_and_who_borrows_none_anyway_is_told_that_alone() -> None:
    rows = (
        PartitionRow(name="a", nodes="n0"),
        PartitionRow(name="b", nodes="n1", lend_grace_s=10),
        PartitionRow(name="c", nodes="n2", lend_grace_s=60),
        PartitionRow(name="d", nodes="n3", lend_grace_s=60),
    )
    w = World(rules(), nodes=4, gpus=4, partitions=partitions_of(replace(LENDS, partition=rows)))
    w.submit(4, partition="a")
    for lender in ("c", "d"):
        w.submit(4, partition=lender)
    job = w.submit(2, **GUEST)
    never = w.submit(2, partition="a", preemptible=False)

    assert lender_lines(w, job) == [
        "partition b lends it nothing: its grace is 30 s, and 10 s is the most there",
        "partitions c, d lend it nothing: it needs 2 GPUs, and 0 GPUs there are free",
    ]
    assert lender_lines(w, never) == []


def test_a_lender_with_room_says_who_is_in_the_way() -> None:
    w = a_world()
    w.submit(4, partition="a")
    first = w.submit(4, partition="a", preemptible=False)
    second = w.submit(1, **GUEST)

    assert (w.phase(first), w.phase(second)) == (Phase.WAITING, Phase.WAITING)
    assert lender_lines(w, second) == [
        "partition b lends it nothing: there is room, and only the first in line borrows"
    ]


def test_a_partition_without_a_lend_grace_lends_nothing_and_may_borrow() -> None:
    one = (PartitionRow(name="a", nodes="n0"), PartitionRow(name="b", nodes="n1", lend_grace_s=30))
    w = a_world(config=replace(LENDS, partition=one))
    _, guest = with_guest(w)
    w.exits("1")
    w.submit(4, partition="b", preemptible=True)
    w.exits(guest, 143, cause="preempted")
    other = w.submit(4, partition="b", preemptible=True)

    assert w.job(guest).nodes == ("n0",)
    assert w.phase(other) is Phase.WAITING


def test_a_partition_with_jobs_that_wait_lends_nothing() -> None:
    w = a_world()
    w.submit(4, partition="a")
    half, waiting = w.submit(2, partition="b"), w.submit(4, partition="b")

    assert (w.phase(half), w.phase(waiting)) == (Phase.STARTING, Phase.WAITING)
    assert w.phase(w.submit(1, **GUEST)) is Phase.WAITING


@pytest.mark.parametrize("phase", ["starting", "running", "stopping"])
def test_a_guest_is_one_after_a_restart_and_leaves_when_it_is_over(phase: str) -> None:
    w = a_world()
    own, guest = w.submit(4, partition="a"), w.submit(4, **GUEST)
    w.runs(own)
    if phase != "starting":
        w.runs(guest)
    if phase == "stopping":
        w.does(CancelRequested(job_id=guest, by="ann"))
    w.lead(decode_state(encode_state(w.state)))

    assert w.job(guest).host == "b"
    owner = w.submit(4, partition="b")
    assert w.phase(guest) is Phase.STOPPING
    w.exits(guest, 143, cause="preempted")
    assert (w.phase(owner), w.job(owner).nodes) == (Phase.STARTING, ("n1",))
    assert w.phase(guest) is (Phase.CANCELLED if phase == "stopping" else Phase.WAITING)
    assert not [*violations(w.log)]


def test_a_guest_that_ends_by_itself_leaves_the_node_to_whoever_comes() -> None:
    w = a_world()
    _, guest = with_guest(w)
    w.exits(guest)

    assert w.phase(guest) is Phase.DONE
    assert w.job(w.submit(4, partition="b")).nodes == ("n1",)


def test_a_guest_whose_node_is_resized_away_stays_and_owes_the_lender() -> None:
    w = a_world()
    _, guest = with_guest(w)
    w.partitions = partitions_of(
        replace(LENDS, partition=(PartitionRow(name="a", nodes="*"), PartitionRow(name="b", nodes="n9")))
    )
    w.lead()

    assert w.phase(guest) is Phase.RUNNING
    w.exits(guest)
    assert w.job(w.submit(4, partition="a")).nodes == ("n1",)


def test_a_guest_counts_for_its_accounts_quota() -> None:
    tenancy = Tenancy(accounts={"ml": Account(name="ml", quota_gpus=6, users=frozenset({"ann"}))})
    w = a_world(tenancy=tenancy)
    own = w.submit(4, partition="a", account="ml")
    guest, capped = (w.submit(2, account="ml", **GUEST) for _ in range(2))
    w.runs(own)
    w.runs(guest)

    assert (w.job(guest).host, w.phase(capped)) == ("b", Phase.WAITING)
    assert w.decider.why(capped, w.now_s, str)[0] == "waits: account ml uses 6 of its 6 GPUs"
    assert lender_lines(w, capped) == []
    w.exits(guest)
    assert w.job(capped).host == "b"


def test_an_owner_whose_qos_may_not_preempt_has_its_node_back_all_the_same() -> None:
    w = a_world("las", tenancy=Tenancy(qualities={"low": Qos(name="low", may_preempt=False)}))
    _, guest = with_guest(w)
    w.submit(4, partition="b", qos="low")

    assert w.phase(guest) is Phase.STOPPING


def test_no_guest_comes_to_a_node_that_is_reserved_before_it_ends() -> None:
    w = a_world()
    w.does(NodesReserved(nodes=("n1",), begin_s=w.now_s + 100, end_s=w.now_s + 200, reason="disks", by="root"))
    w.submit(4, partition="a")

    assert w.phase(w.submit(4, **GUEST)) is Phase.WAITING
    assert w.job(w.submit(4, time_limit_s=50.0, **GUEST)).host == ""  # fifo: the first in line has no room
    w.pass_s(201)
    assert w.job("2").host == "b"


def test_the_start_of_an_owner_is_foreseen_as_if_guests_left_when_asked() -> None:
    w = a_world()
    with_guest(w)
    w.does(NodesReserved(nodes=("n1",), begin_s=w.now_s + 100, end_s=w.now_s + 200, reason="disks", by="root"))
    owner = w.submit(4, partition="b", time_limit_s=500.0)
    estimate = w.decider.foresee(owner, w.now_s)

    assert estimate is not None
    assert estimate.at_s == pytest.approx(w.now_s + 200, abs=1)


def test_the_log_tells_of_a_borrower_that_stayed_longer_than_its_grace() -> None:
    w = a_world()
    _, guest = with_guest(w)
    w.submit(4, partition="b")
    w.pass_s(30 + LEAVING_S + 5)
    w.exits(guest, 143, cause="preempted")

    (found,) = violations(w.log)
    assert found.endswith("job 2 kept nodes of partition b 35 s longer than its grace")


def obey(w: World) -> None:
    """Nodes start and stop processes until there is nothing more to do."""
    while True:
        jobs = [job for job in list(w.state.live_jobs()) if job.phase in (Phase.STARTING, Phase.STOPPING)]
        if not jobs:
            return
        for job in jobs:
            if job.phase is Phase.STARTING:
                w.runs(job.job_id)
            else:
                w.exits(job.job_id, 143, cause="preempted")


_STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((1, 2, 4)), st.integers(1, 300), st.booleans()),
    min_size=4, max_size=20,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(steps=_STEPS)
def test_no_owner_waits_for_a_borrower_on_any_day(steps: list[tuple[str, int, int, bool]]) -> None:
    """Whenever the nodes have obeyed, none has a guest while a job of its owner could have its GPUs."""
    w = a_world("best-effort")
    for name, gpus, pass_s, is_end in steps:
        w.submit(gpus, partition=name, preemptible=True)
        obey(w)
        w.pass_s(pass_s)
        obey(w)
        running = [job.job_id for job in w.state.live_jobs() if job.phase is Phase.RUNNING]
        if is_end and running:
            w.exits(running[0])
            obey(w)
        hosted = {job.host for job in w.state.live_jobs() if job.host and job.phase is Phase.RUNNING}
        for job in w.state.live_jobs():
            if job.phase is Phase.WAITING and job.spec.partition in hosted:
                own = [one for one in w.state.live_jobs() if one.places and one.spec.partition == job.spec.partition]
                held = sum(one.spec.gpus for one in own if not one.host and one.phase is not Phase.WAITING)
                assert held + job.spec.gpus > 4
    assert not [*violations(w.log)]
