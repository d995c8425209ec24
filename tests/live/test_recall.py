"""Memory that donors have lent: jobs go where it is not in their way, or wait until it has come back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from farside.agent import messages as m
from farside.scheduler.manager.decider import launch
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.codec import encode_event
from farside.scheduler.manager.model.event import (
    CancelRequested,
    Entry,
    JobStarted,
    LendingOrdered,
    MemoryRecalled,
    NodeChanged,
    NodeLost,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.spec import Ranks
from farside.scheduler.manager.nodes import services
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.entry_budget import EntryBudget, damped
from farside.scheduler.manager.view.view import show_job_in_full
from tests.live.facts import gpus, joined
from tests.live.fake_agent import FakeNode
from tests.live.test_api import Api, api_test
from tests.live.world import World, rules
from tests.support.promised_log import check

GIB = 1 << 30
WAIT_S = 70.0  # the world's 60 s for borrowers, and 10 for a donor that takes its memory by force


def facts_of(name: str, lent_gib: int, *, swap_gib: int = 0, lends_gib: int = 40, copies: int = 0) -> dict[str, Any]:
    """A node of four GPUs with 64 GiB, whose donor can lend 40 of them."""
    donor = m.Donor(
        node=name, control=f"tcp:{name}:7677", capacity_bytes=lends_gib * GIB, lent_bytes=lent_gib * GIB
    )  # fmt: skip
    swap = m.Swap(size_bytes=swap_gib * GIB, copies=copies) if swap_gib else None
    memory = {"memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB}
    return {"cpus": 16, "gpus": gpus(4, "H200"), "donor": donor, "swap": swap, **memory}


def a_world(lent_gib: list[int], policy: str = "fifo", **more: Any) -> World:
    """Nodes n0 and so on that have lent so much."""
    world = World(rules(policy), nodes=0, **more)
    for at, size in enumerate(lent_gib):
        world.does(joined(f"n{at}", f"n{at}", **facts_of(f"n{at}", size)))
    return world


def has_lent(world: World, name: str, lent_gib: int, *, free_gib: int | None = None) -> None:
    """The node's agent says what its donor has lent."""
    node = world.state.nodes[name]
    assert node.donor is not None
    said: dict[str, Any] = m.fields_of(m.ChangingFacts, node)
    said["donor"] = structs.replace(node.donor, lent_bytes=lent_gib * GIB)
    if free_gib is not None:
        said["headroom_bytes"] = free_gib * GIB
    world.does(NodeChanged(node=name, **said))


def submit(world: World, memory_gib: int, gpus: int = 4, **more: Any) -> str:
    """A job with so much memory in all."""
    return world.submit(gpus, memory_bytes_per_gpu=memory_gib * GIB / gpus, **more)


def why(world: World, job: str) -> tuple[str, ...]:
    return world.decider.why(job, world.now_s, str)


def recalls(world: World) -> list[MemoryRecalled]:
    return [entry.event for entry in world.log if isinstance(entry.event, MemoryRecalled)]


def test_a_job_goes_where_nobody_has_borrowed_its_memory_and_starts_at_once() -> None:
    world = a_world([30, 30, 0])
    job = submit(world, 60)

    assert (world.phase(job), world.job(job).nodes, recalls(world)) == (Phase.STARTING, ("n2",), [])


def test_where_it_is_lent_it_is_recalled_first_and_the_job_starts_when_it_is_back() -> None:
    world = a_world([30])
    job = submit(world, 54)

    (recall,) = recalls(world)
    assert (recall.node, recall.recalled_bytes, recall.lend_bytes) == ("n0", 20 * GIB, 10 * GIB)
    assert world.phase(job) is Phase.ALLOCATED
    world.now_s += 3.0
    has_lent(world, "n0", 11)
    assert world.phase(job) is Phase.ALLOCATED
    world.now_s += 2.0
    has_lent(world, "n0", 10)
    assert world.phase(job) is Phase.STARTING
    assert world.state.recall_times.by_node == {"n0": [(20 * GIB, 5.0)]}
    assert list(violations(world.log)) == []


def test_that_memory_is_back_is_written_also_of_a_node_whose_facts_have_changed_too_often() -> None:
    """It was left out for up to ten seconds, and the job waited for that."""
    world, budget = a_world([30]), EntryBudget(0.0)
    node = world.state.nodes["n0"]
    while budget.takes_change(0.0):
        pass

    def written(lent_gib: int) -> bool:
        assert node.donor is not None
        said: dict[str, Any] = m.fields_of(m.ChangingFacts, node)
        said["donor"] = structs.replace(node.donor, lent_bytes=lent_gib * GIB)
        return bool(damped([NodeChanged(node="n0", **said)], world.state, budget, 0.0))

    nobody_waits = written(10)
    job = submit(world, 54)
    still_lent, back = written(11), written(10)
    has_lent(world, "n0", 10)
    once_more = written(9)

    assert world.phase(job) is Phase.STARTING
    assert (nobody_waits, still_lent, back, once_more) == (False, False, True, False)


def test_memory_that_is_not_back_keeps_a_job_no_longer_than_the_bound() -> None:
    world = a_world([30])
    job = submit(world, 54)
    world.pass_s(WAIT_S - 0.1)
    before = world.phase(job)
    world.pass_s(0.2)

    assert (before, world.phase(job)) == (Phase.ALLOCATED, Phase.STARTING)
    assert "20 GiB that the donor of n0 had lent did not come back in 1.17 min" in "\n".join(why(world, job))
    assert world.state.recall_times.by_node == {}


def test_a_recall_that_takes_longer_than_its_job_waits_is_measured_all_the_same() -> None:
    world = a_world([30])
    job = submit(world, 54)
    world.pass_s(WAIT_S + 0.1)
    world.runs(job)
    world.now_s = 1000.0 + 100.0
    has_lent(world, "n0", 10)

    assert world.state.recall_times.by_node == {"n0": [(20 * GIB, 100.0)]}
    assert "had lent came back in 1.67 min" in "\n".join(why(world, job))


def test_of_a_recall_whose_job_is_cancelled_before_its_end_what_it_took_by_then_counts() -> None:
    world = a_world([30])
    first = submit(world, 54)
    world.now_s += 4.0
    has_lent(world, "n0", 10)
    world.runs(first)
    world.exits(first)
    has_lent(world, "n0", 20)
    second = submit(world, 54)
    world.now_s += 30.0
    world.does(CancelRequested(job_id=second, by="ann"))
    third = submit(world, 54)
    world.now_s += 1.0
    world.does(CancelRequested(job_id=third, by="ann"))

    assert [one.expected_s for one in recalls(world)] == [None, 4.25, 30.25]
    assert world.state.recall_times.by_node == {"n0": [(20 * GIB, 4.0), (10 * GIB, 30.0)]}


def test_a_node_that_is_lost_has_given_nothing_back() -> None:
    """Its donor counts as one that lends nothing, so another job's recall was over when the first job left."""
    world = a_world([30])
    jobs = [submit(world, 40, gpus=2), submit(world, 20, gpus=2)]
    world.pass_s(WAIT_S + 0.1)
    for job in jobs:
        world.runs(job)
    waited = [one.recalled_bytes for one in recalls(world)]

    world.does(NodeLost(node="n0", reason="silent"))

    assert waited == [6 * GIB, 26 * GIB]
    assert [world.phase(job) for job in jobs] == [Phase.WAITING] * 2
    assert world.state.recall_times.by_node == {}


def test_what_has_come_back_when_an_agent_connects_anew_starts_the_job() -> None:
    world = a_world([30])
    job = submit(world, 54)
    world.now_s += 5.0
    world.does(joined("n0", "n0", **facts_of("n0", 10)))

    assert world.phase(job) is Phase.STARTING
    assert world.state.recall_times.by_node == {"n0": [(20 * GIB, 5.0)]}


def test_borrowers_get_the_time_of_a_recall_only_while_a_job_waits_for_it() -> None:
    world = a_world([30])
    can = (m.can_service(services.DONOR, 1), m.can_service(services.DONOR, 2))
    line = AgentLine(structs.replace(FakeNode("n0").hello(), can=can), "n0", move_s=900.0, recall_s=60.0)
    job = submit(world, 54)
    awaited = donor_order(line, world)
    has_lent(world, "n0", 10)
    world.runs(job)

    assert awaited == m.DonorOrder(closed_by=0, deadline_s=60.0, lend_bytes=10 * GIB)
    assert donor_order(line, world) == m.DonorOrder(closed_by=0, deadline_s=900.0, lend_bytes=10 * GIB)


def test_where_no_job_is_to_wait_for_memory_none_is_recalled() -> None:
    world = a_world([30], recall_s=0.0)

    assert world.phase(submit(world, 54)) is Phase.STARTING
    assert recalls(world) == []


def test_no_memory_is_recalled_for_a_job_that_cant_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "TASKS_MAX", 3)
    world = a_world([30])
    job = submit(world, 54, ranks=Ranks.GPU)

    assert (world.phase(job), recalls(world)) == (Phase.HELD, [])
    assert "4 of its processes would stand on n0, and a node takes 3" in world.job(job).reason


def test_no_memory_is_recalled_for_a_job_to_which_donors_lend_too_little_by_now() -> None:
    world = a_world([0], "srtf")
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64)))
    long = submit(world, 4, time_limit_s=9000.0, nodes=("s",))
    world.runs(long)
    job = submit(world, 60, time_limit_s=10.0, nodes=("s",), swap_bytes_per_gpu=9 * GIB)
    waited = world.phase(job)
    has_lent(world, "s", 30, free_gib=60)
    before = len(recalls(world))
    world.does(LendingOrdered(node="n0", lend_bytes=GIB, by="root"))

    assert (waited, before) == (Phase.ALLOCATED, 1)
    assert world.job(job).recalls == ()
    assert world.phase(job) is Phase.WAITING
    world.pass_s(5.0)
    assert len(recalls(world)) == 1


def test_it_is_recalled_while_others_still_leave_their_gpus() -> None:
    world = a_world([0], "srtf")
    long = submit(world, 4, time_limit_s=9000.0)
    world.runs(long)
    has_lent(world, "n0", 30, free_gib=60)
    short = submit(world, 54, time_limit_s=10.0)

    assert [world.phase(job) for job in (long, short)] == [Phase.STOPPING, Phase.ALLOCATED]
    assert len(recalls(world)) == 1
    has_lent(world, "n0", 0)
    assert world.phase(short) is Phase.ALLOCATED
    world.exits(long, 143, "preempted")
    assert world.phase(short) is Phase.STARTING


def test_a_second_job_on_the_node_does_not_count_what_the_first_is_about_to_get() -> None:
    world = a_world([30])
    first, second = submit(world, 20, gpus=2), submit(world, 30, gpus=2)

    assert world.phase(first) is Phase.STARTING  # of the 34 GiB that are not lent
    assert [(one.job_id, one.recalled_bytes) for one in recalls(world)] == [(second, 16 * GIB)]


@pytest.mark.parametrize("end", ["ends", "is cancelled", "is preempted"])
def test_a_donor_lends_again_when_the_job_has_left(end: str) -> None:
    world = a_world([30], "srtf" if end == "is preempted" else "fifo")
    job = submit(world, 54, time_limit_s=9000.0)
    bounded = world.state.nodes["n0"].lend_bound_bytes
    if end == "is cancelled":
        world.does(CancelRequested(job_id=job, by="ann"))
    else:
        has_lent(world, "n0", 10)
        world.runs(job)
        running = world.state.nodes["n0"].lend_bound_bytes
        if end == "is preempted":
            submit(world, 1, time_limit_s=1.0)
            world.exits(job, 143, "preempted")
        else:
            world.exits(job)
        assert running == 10 * GIB

    assert bounded == 10 * GIB
    assert (world.job(job).recalls == ()) is (end == "is preempted")
    assert world.state.nodes["n0"].lend_bound_bytes is None
    assert world.state.nodes["n0"].lends_bytes == 40 * GIB


def test_the_bound_follows_what_jobs_of_the_node_leave_and_a_wait_for_what_others_left_is_over() -> None:
    world = a_world([30])
    first, second = submit(world, 20, gpus=2), submit(world, 30, gpus=2)
    world.runs(first)
    bounds = [world.state.nodes["n0"].lend_bound_bytes]
    waited = world.phase(second)
    world.exits(first)  # 34 GiB are left beside the second job, of which 30 are lent
    bounds.append(world.state.nodes["n0"].lend_bound_bytes)
    third = submit(world, 4, gpus=2)
    bounds.append(world.state.nodes["n0"].lend_bound_bytes)
    has_lent(world, "n0", 30, free_gib=0)  # other programs use all
    bounds.append(world.state.nodes["n0"].lend_bound_bytes)

    assert bounds == [14 * GIB, 34 * GIB, 30 * GIB, 14 * GIB]
    assert [waited, world.phase(second), world.phase(third)] == [Phase.ALLOCATED, Phase.STARTING, Phase.STARTING]
    assert world.state.recall_times.by_node == {}  # nothing was recalled
    for job in (second, third):
        world.runs(job)
        world.exits(job)
    assert world.state.nodes["n0"].lend_bound_bytes is None
    assert list(violations(world.log)) == []


def test_what_a_looser_bound_lets_donors_lend_is_promised() -> None:
    world = a_world([30])
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    first, second = submit(world, 20, gpus=2, nodes=("n0",)), submit(world, 30, gpus=2, nodes=("n0",))
    world.runs(first)
    borrower = world.submit(4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=8 * GIB, nodes=("s",))
    waited = world.phase(borrower)
    world.exits(first)

    assert [waited, world.phase(borrower)] == [Phase.WAITING, Phase.STARTING]  # of 14 GiB, then of 34
    assert world.phase(second) is Phase.STARTING
    world.lead(decode_state(encode_state(world.state)))
    assert world.state.nodes["n0"].lend_bound_bytes == 34 * GIB
    assert list(violations(world.log)) == []


def test_an_operators_bound_counts_beside_that_of_jobs_and_the_tighter_one_is_told() -> None:
    world = a_world([30])
    submit(world, 54)
    node = world.state.nodes["n0"]
    ordered = services.KNOWN[services.DONOR].order(services.Outlook(node=node, move_s=900.0, recall_s=60.0))
    world.does(LendingOrdered(node="n0", lend_bytes=5 * GIB, by="root"))
    tighter = services.KNOWN[services.DONOR].order(
        services.Outlook(node=world.state.nodes["n0"], move_s=900.0, recall_s=60.0)
    )

    assert ordered == m.DonorOrder(closed_by=0, deadline_s=60.0, lend_bytes=10 * GIB)
    assert tighter == m.DonorOrder(closed_by=0, deadline_s=60.0, lend_bytes=5 * GIB)


def test_what_is_expected_is_in_the_log_in_explain_and_in_what_is_shown() -> None:
    world = a_world([30])
    first = submit(world, 54)
    unmeasured = why(world, first)
    world.now_s += 4.0
    has_lent(world, "n0", 10)
    world.runs(first)
    known = why(world, first)
    world.exits(first)
    has_lent(world, "n0", 20)
    second = submit(world, 54)
    world.now_s += 1.0

    assert unmeasured == (
        "has an allocation on n0 (4), and starts when it has its memory",
        "20 GiB that the donor of n0 had lent have been recalled for 0 s so far; no recall was measured yet; "
        "it waits for that 1.17 min more at most",
    )
    assert known[-1] == "20 GiB that the donor of n0 had lent came back in 4 s; no recall was measured yet"
    assert (recalls(world)[1].expected_s, recalls(world)[1].samples) == (4.25, 1)
    assert why(world, second)[1] == (
        "10 GiB that the donor of n0 had lent have been recalled for 1 s so far; expected to take 4.25 s, "
        "by one recall before; it waits for that 1.15 min more at most"
    )
    (shown,) = show_job_in_full(world.job(second), world.now_s).recalls
    assert (shown.node, shown.recalled_bytes, shown.expected_s, shown.expected_from, shown.back_s) == (
        "n0", 10 * GIB, 4.25, 1, None,
    )  # fmt: skip


def test_a_recall_outlives_a_change_of_leader_and_is_in_the_snapshot() -> None:
    world = a_world([30])
    job = submit(world, 54)
    world.lead()
    assert (world.phase(job), len(recalls(world))) == (Phase.ALLOCATED, 1)
    world.lead(decode_state(encode_state(world.state)))
    world.now_s += 4.0
    has_lent(world, "n0", 10)

    assert world.phase(job) is Phase.STARTING
    again = decode_state(encode_state(world.state))
    assert again.recall_times == world.state.recall_times
    assert again.nodes["n0"].recalls == {job: 10 * GIB}


def test_no_memory_is_recalled_that_others_were_promised() -> None:
    world = a_world([30])
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    borrower = world.submit(4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=9 * GIB, nodes=("s",))
    job = submit(world, 54, nodes=("n0",))

    assert (world.phase(borrower), world.phase(job)) == (Phase.STARTING, Phase.WAITING)
    world.runs(borrower)
    world.exits(borrower)
    assert world.phase(job) is Phase.ALLOCATED
    assert list(violations(world.log)) == []


def as_json(log: list[Entry]) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """A log as the foreign checker reads it."""
    for entry in log:
        kind, body = encode_event(entry.event)
        yield entry.seq, kind, json.loads(body)


def test_no_memory_is_given_away_that_others_were_promised_and_do_not_use_yet() -> None:
    world = a_world([0])
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    borrower = world.submit(4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=9 * GIB, nodes=("s",))
    job = submit(world, 54, nodes=("n0",))

    assert (world.phase(borrower), world.phase(job)) == (Phase.STARTING, Phase.WAITING)
    assert check(as_json(world.log)) == ([], 1)
    world.runs(borrower)
    world.exits(borrower)
    assert world.phase(job) is Phase.STARTING


def test_the_foreign_checker_counts_what_a_job_is_to_have_of_a_donors_memory() -> None:
    world = a_world([0])
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    submit(world, 54, nodes=("n0",))

    world.submit(4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=9 * GIB, nodes=("s",))
    waiting = [*as_json(world.log)]
    # As if nobody had counted it: the borrower starts as well.
    place = {"node": "s", "gpus": 4}
    forced: list[tuple[int, str, Mapping[str, Any]]] = [
        (90, "JobPlaced", {"job_id": "2", "places": [place]}),
        (91, "JobStarted", {"job_id": "2"}),
    ]

    assert world.phase("2") is Phase.WAITING
    wrong, starts = check(iter([*waiting, *forced]))
    assert starts == 1
    assert [line.partition("; ")[0] for line in wrong] == [f"entry 91: job 2: {26 * GIB} bytes have no place"]


def test_what_is_recalled_is_promised_to_nobody() -> None:
    world = a_world([30])
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    submit(world, 54, nodes=("n0",))
    borrower = world.submit(4, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=9 * GIB, nodes=("s",))

    assert world.state.nodes["n0"].lends_bytes == 10 * GIB
    assert world.phase(borrower) is Phase.WAITING


def test_with_two_copies_of_each_page_a_job_is_promised_the_memory_of_two_donors() -> None:
    world = World(rules(), nodes=0)
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0, copies=2)))
    for name in ("d1", "d2"):
        world.does(joined(name, name, **facts_of(name, 0) | {"gpus": ()}))
    first, second = (world.submit(2, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=12 * GIB) for _ in range(2))

    assert [world.phase(job) for job in (first, second)] == [Phase.STARTING, Phase.WAITING]
    said: dict[str, Any] = m.fields_of(m.ChangingFacts, world.state.nodes["s"])
    said["swap"] = m.Swap(size_bytes=64 * GIB, copies=1)
    world.does(NodeChanged(node="s", **said))
    assert world.phase(second) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_the_checker_finds_a_promise_that_counts_copies_once() -> None:
    world = World(rules(), nodes=0)
    world.does(joined("s", "s", **facts_of("s", 0, swap_gib=64, lends_gib=0)))
    for name in ("d1", "d2"):
        world.does(joined(name, name, **facts_of(name, 0, lends_gib=20) | {"gpus": ()}))
    world.submit(2, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=15 * GIB)
    at = next(at for at, entry in enumerate(world.log) if isinstance(entry.event, JobStarted))
    said: dict[str, Any] = m.fields_of(m.ChangingFacts, world.state.nodes["s"])
    said["swap"] = m.Swap(size_bytes=64 * GIB, copies=2)
    twice = NodeChanged(node="s", **said)
    entries = [*world.log[:at], Entry(seq=0, at_s=1000.0, generation=0, cause="test", event=twice), *world.log[at:]]
    log = [structs.replace(entry, seq=place) for place, entry in enumerate(entries, 1)]

    assert [line.partition(": job 1 is ")[2] for line in violations(log)] == [
        f"promised memory: {60 * GIB} bytes in all, and donors lend {40 * GIB}",
        f"promised memory on s: {60 * GIB} bytes in all, and others lend {40 * GIB}",
        f"promised memory: {30 * GIB} bytes of it twice, and donors but d1 lend too little",
    ]


# ---- what agents say


def report(line: AgentLine, lent: int | None, *, refusal: str = "", copies: int | None = None) -> m.Report:
    """What an agent says whose donor has lent so much of 160; None: it does not answer."""
    node, memory = FakeNode("n0"), None if lent is None else m.LentMemory(lent_bytes=lent, lendable_bytes=160 - lent)
    donor = m.Donor(node="n0", control="tcp:n0:7677", free_bytes=160 - (lent or 0), lent_bytes=lent or 0)
    said = {services.DONOR: m.DonorFacts(donor=donor, lent=memory, refusal=refusal)}
    if copies is not None:
        said[services.BORROWER] = m.BorrowerFacts(swap=m.Swap(size_bytes=64, copies=copies))  # type: ignore[assignment]
    raw = {name: msgspec.Raw(msgspec.json.encode(facts)) for name, facts in said.items()}
    hello = node.hello()
    return m.Report(
        at_s=1.0, seq=1, psi=m.Psi(), headroom_bytes=hello.headroom_bytes, gpus=hello.gpus, donor=donor, services=raw,
        swap=None if copies is None else m.Swap(size_bytes=64), tasks=(),
    )  # fmt: skip


def donor_order(line: AgentLine, world: World) -> m.DonorOrder:
    """What the node's donor is told now."""
    (order,) = (one for one in line.orders(world.state) if one.name == services.DONOR)
    return msgspec.json.decode(order.raw, type=m.DonorOrder)


def a_line(world: World, *, donor_version: int = 2) -> AgentLine:
    can = tuple(m.can_service(services.DONOR, version) for version in range(1, donor_version + 1))
    line = AgentLine(structs.replace(FakeNode("n0").hello(), can=can), "n0")
    for event in line.joined(world.state):
        world.does(event)
    return line


def hears(world: World, line: AgentLine, lent: int | None, **more: Any) -> int | None:
    """What the log gets to know of what the donor has lent; None: nothing new."""
    events = [one for one in line.reported(world.state, report(line, lent, **more)) if isinstance(one, NodeChanged)]
    for event in events:
        world.does(event)
    donor = events[0].donor if events else None
    return None if donor is None else donor.lent_bytes


def test_what_a_donor_has_lent_is_news_when_it_moves_by_a_sixteenth_of_what_it_can() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world)

    assert hears(world, line, 64) == 64
    assert hears(world, line, 74) is None
    assert hears(world, line, 75) == 75


def test_it_is_news_at_once_when_it_comes_down_to_the_bound() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world)
    hears(world, line, 64)
    world.does(LendingOrdered(node="n0", lend_bytes=60, by="root"))

    assert hears(world, line, 61) is None
    assert hears(world, line, 60) == 60


def test_a_donor_that_does_not_answer_now_has_lent_what_it_had() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world)
    hears(world, line, 64)

    hears(world, line, None)
    assert world.state.nodes["n0"].borrowed_bytes == 64


def test_what_no_manager_may_bound_is_not_recalled() -> None:
    world = World(rules(), nodes=1)
    old, refusing = a_line(world, donor_version=1), a_line(world)

    assert hears(world, old, 64) == 0
    assert hears(world, refusing, 100, refusal="its owner says no") in (0, None)
    assert world.state.nodes["n0"].borrowed_bytes == 0


def test_copies_of_a_nodes_pages_are_as_its_borrower_said_last() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world)

    hears(world, line, 64, copies=2)
    assert world.state.nodes["n0"].swap_copies == 2
    hears(world, line, 100, copies=0)  # no borrower answers
    assert world.state.nodes["n0"].swap_copies == 2
    hears(world, line, 100, copies=1)
    assert world.state.nodes["n0"].swap_copies == 1


def test_a_recall_is_in_the_answer_about_its_job(tmp_path: Path) -> None:
    world = a_world([30])
    job = submit(world, 54)

    async def test(api: Api) -> None:
        api.log.state = world.state
        told = (await api.as_uid(0).get(f"/v1/jobs/{job}")).json()

        assert [(one["node"], one["recalled_bytes"], one["back_s"]) for one in told["recalls"]] == [
            ("n0", 20 * GIB, None)
        ]

    api_test(test, tmp_path)
