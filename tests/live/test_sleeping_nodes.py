"""Nodes that are about to go off, and the jobs and decisions around them: the log and the scheduler process."""

import json
from dataclasses import replace

import pytest

from farside.agent.messages import Donor, Swap
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    NodeClosed,
    NodesReserved,
    PowerChanged,
    ServiceChanged,
    TaskPhase,
)
from farside.scheduler.manager.model.lending import donors_to_keep
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.power.busy_nodes import busy_nodes
from farside.scheduler.manager.power.nodes_needed import SETTLED_S, nodes_needed
from farside.scheduler.manager.view.power import energy_of
from farside.scheduler.power.state import Phase as PowerPhase
from farside.scheduler.tenancy import Account, Tenancy
from tests.live.facts import gpus, joined
from tests.live.world import World, rules

CLOSING = NodePowerRecord(phase=PowerPhase.DRAINING, reason="idle", drain_number=1, number=1)
OFF = NodePowerRecord(phase=PowerPhase.OFF, reason="idle", drain_number=1, number=2, past_boots=("boot-1",))
BOOTING = NodePowerRecord(phase=PowerPhase.BOOTING, reason="a job", drain_number=1, number=3, past_boots=("boot-1",))
OPEN = NodePowerRecord(phase=PowerPhase.ON, reason="booted", number=4)


def powers(world: World, node: str, note: NodePowerRecord, *, generation: int | None = None) -> None:
    world.does(PowerChanged(node=node, generation=world.generation if generation is None else generation, note=note))


def asleep(world: World, *nodes: str) -> None:
    for node in nodes:
        powers(world, node, CLOSING)
        powers(world, node, OFF)


def test_the_brain_says_when_no_job_starts_on_a_closing_node_any_more() -> None:
    world = World(rules(), nodes=2)

    powers(world, "n0", CLOSING)
    job = world.submit(gpus=4)

    assert NodeClosed(node="n0", number=1) in [entry.event for entry in world.log]
    assert world.state.nodes["n0"].closed_by == 1
    assert world.state.nodes["n0"].state == "closing"
    assert world.job(job).nodes == ("n1",)
    assert list(violations(world.log)) == []


def test_a_job_that_waits_for_others_to_leave_a_closing_node_gives_its_place_back_before_the_brain_says_so() -> None:
    world = World(rules("srtf"), nodes=1)
    first = world.submit(gpus=4, time_limit_s=9000.0, preemptible=True)
    world.runs(first)
    world.pass_s(100.0)
    second = world.submit(gpus=4, time_limit_s=10.0)
    assert world.phase(first) is Phase.STOPPING
    world.exits(first, 0, "preempted")

    powers(world, "n0", CLOSING)
    world.exits(second)
    kinds = [type(entry.event).__name__ for entry in world.log]

    assert "NodeClosed" in kinds
    assert list(violations(world.log)) == []


def test_a_node_that_is_off_on_purpose_is_not_lost_not_free_and_takes_jobs_again_when_it_is_open() -> None:
    world = World(rules(), nodes=1)
    asleep(world, "n0")
    job = world.submit(gpus=4)

    assert (world.state.nodes["n0"].state, world.phase(job)) == ("asleep", Phase.WAITING)
    powers(world, "n0", BOOTING)
    assert world.state.nodes["n0"].state == "booting"
    assert "being switched on: n0" in world.decider.why(job, world.now_s, str)
    world.join("n0", boot_id="boot-2")
    assert (world.state.nodes["n0"].state, world.phase(job)) == ("booting", Phase.WAITING)
    powers(world, "n0", OPEN)

    assert world.phase(job) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_a_restarted_brain_still_answers_for_a_node_that_was_closing() -> None:
    world = World(rules(), nodes=2)
    world.tell(PowerChanged(node="n0", generation=world.generation, note=CLOSING))

    world.lead()

    assert world.state.nodes["n0"].closed_by == 1


def test_what_was_decided_beside_a_brain_that_leads_no_more_counts_for_nothing() -> None:
    world = World(rules(), nodes=1)

    powers(world, "n0", CLOSING, generation=world.generation - 1)

    assert world.state.nodes["n0"].power is None
    assert world.phase(world.submit(gpus=1)) is Phase.STARTING


def test_the_checker_finds_a_job_started_on_a_closed_node_and_a_node_cut_off_under_a_job() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(gpus=1)
    world.runs(job)
    stop = replace(CLOSING, command="soft-off", is_stopping=True)
    world.tell(PowerChanged(node="n0", generation=world.generation, note=stop))

    found = list(violations(world.log))

    assert any("is ordered off, and jobs may start there" in line for line in found)
    assert any("is ordered off, and job 1 runs there" in line for line in found)


def test_sleep_is_counted_from_off_to_booting() -> None:
    world = World(rules(), nodes=2)
    asleep(world, "n0")
    world.now_s += 3600.0
    powers(world, "n0", BOOTING)
    world.now_s += 3600.0

    energy = energy_of(world.state, world.now_s, 800.0)

    assert (energy.nodes_asleep, energy.nodes_booting) == (0, 1)
    assert energy.saved_kwh == pytest.approx(0.8)


# ---------------------------------------------------------------------------------------------- who is called


def called(world: World, tenancy: Tenancy | None = None) -> tuple[str, ...]:
    world.now_s += SETTLED_S
    return nodes_needed(world.state, tenancy, world.now_s)


def test_a_job_calls_idle_nodes_then_those_that_boot_already_and_then_as_many_as_it_lacks() -> None:
    world = World(rules(), nodes=4)
    asleep(world, "n1", "n2", "n3")
    powers(world, "n3", BOOTING)
    world.submit(gpus=12)

    assert called(world) == ("n0", "n3", "n1")


def test_a_job_that_waits_for_aggregators_calls_as_many_nodes_that_offer_one_as_it_asked_for() -> None:
    world = World(rules(), nodes=4)
    offer = json.dumps({"cores": 1, "memory_bytes": 1 << 30, "unix": "/a", "tcp": "h:1", "machine": "m"})
    for node in ("n1", "n2", "n3"):
        world.does(ServiceChanged(node=node, name="aggregator", raw=offer))
    asleep(world, "n2", "n3")
    world.submit(gpus=2, aggregation="shared", aggregators=2)

    assert called(world) == ("n1", "n2", "n0")
    world.submit(gpus=2, aggregation="shared", aggregators=4)
    assert "n3" not in called(world)  # all together would be too few for it


def test_a_job_that_the_brain_has_not_looked_at_yet_wakes_nobody() -> None:
    world = World(rules(), nodes=1)
    asleep(world, "n0")
    world.submit(gpus=1)

    assert nodes_needed(world.state, None, world.now_s) == ()


def test_a_job_calls_no_node_of_another_model_or_that_is_reserved_or_drained() -> None:
    world = World(rules(), nodes=2)
    world.does(joined("a", cpus=16, memory_bytes=1 << 36, gpus=gpus(4, "A100"), headroom_bytes=1 << 36))
    asleep(world, "n0", "n1", "a")
    world.does(NodesReserved(nodes=("n0",), begin_s=world.now_s + 60, end_s=world.now_s + 600, reason="", by="root"))
    world.submit(gpus=4, gpu_model="H200")

    assert called(world) == ("n1",)


@pytest.mark.parametrize("wanted", ["H200", "h200", "h200|a100", " A100 | H200 "])
def test_a_job_calls_a_node_of_each_model_that_the_cycle_would_give_it(wanted: str) -> None:
    world = World(rules(), nodes=1)
    asleep(world, "n0")
    world.submit(gpus=4, gpu_model=wanted)

    assert called(world) == ("n0",)


@pytest.mark.parametrize(
    ("user", "swap_gib", "found"), [("ann", 8, ("s", "d")), ("eve", 8, ()), ("ann", 9, ()), ("ann", 2, ("s", "d"))]
)
def test_a_job_calls_no_node_of_other_users_or_with_too_little_swap(
    user: str, swap_gib: int, found: tuple[str, ...]
) -> None:
    world = World(rules(), nodes=0)
    world.does(
        joined(
            "s", cpus=16, memory_bytes=1 << 36, gpus=gpus(1), users=("ann",), headroom_bytes=1 << 36,
            swap=Swap(size_bytes=8 << 30, own_bytes=1 << 30),
        )
    )  # fmt: skip
    world.does(joined("d", memory_bytes=1 << 36, donor=Donor(node="d", control="tcp:d:1", capacity_bytes=1 << 36)))
    asleep(world, "s")
    world.submit(gpus=1, user=user, memory_bytes_per_gpu=1 << 30, swap_bytes_per_gpu=swap_gib << 30)

    assert called(world) == found


def lender(world: World, name: str, lends_gib: int) -> None:
    donor = Donor(node=name, control=f"tcp:{name}:1", capacity_bytes=lends_gib << 30)
    world.does(joined(name, name, memory_bytes=1 << 40, donor=donor))


def needing_memory(*, swap_gib: int) -> World:
    """A node with room for a job that waits for memory, and sleeping donors of 16 and 8 GiB."""
    world = World(rules(), nodes=0)
    world.does(joined("s", "s", cpus=16, gpus=gpus(1), swap=Swap(size_bytes=64 << 30)))
    for name, size in {"d1": 16, "d2": 8, "d3": 4}.items():
        lender(world, name, size)
    asleep(world, "d1", "d2")
    world.submit(gpus=1, memory_bytes_per_gpu=1 << 30, swap_bytes_per_gpu=swap_gib << 30)
    return world


@pytest.mark.parametrize(("swap_gib", "found"), [(20, {"s", "d1", "d3"}), (21, {"s", "d1", "d2"}), (29, set())])
def test_a_job_that_waits_for_memory_calls_as_many_donors_as_it_takes_and_none_if_all_are_too_few(
    swap_gib: int, found: set[str]
) -> None:
    assert {*called(needing_memory(swap_gib=swap_gib))} == found


def test_donors_that_lend_what_jobs_were_promised_stay_awake_and_no_more_of_them_than_it_takes() -> None:
    world = needing_memory(swap_gib=3)
    lender(world, "d4", 2)
    (job,) = world.state.unfinished

    assert donors_to_keep(world.state) == {"d3"}
    world.runs(job)
    world.exits(job)
    assert donors_to_keep(world.state) == frozenset()


def test_donors_stay_awake_for_a_job_that_has_its_place_and_waits_for_others_to_leave() -> None:
    world = World(rules("srtf"), nodes=0)
    world.does(joined("s", "s", cpus=16, gpus=gpus(1), swap=Swap(size_bytes=64 << 30)))
    lender(world, "d1", 16)
    long = world.submit(gpus=1, time_limit_s=9000.0)
    world.runs(long)
    short = world.submit(gpus=1, time_limit_s=10.0, memory_bytes_per_gpu=1 << 30, swap_bytes_per_gpu=8 << 30)

    assert world.phase(short) is Phase.ALLOCATED
    assert donors_to_keep(world.state) == {"d1"}


@pytest.mark.parametrize("copies", [1, 2])
def test_idle_donors_that_a_waiting_job_needs_stay_awake_as_many_as_hold_its_copies(copies: int) -> None:
    world = World(rules(), nodes=0)
    world.does(joined("s", "s", cpus=16, gpus=gpus(1), swap=Swap(size_bytes=64 << 30, copies=copies)))
    for name in ("d1", "d2"):
        lender(world, name, 16)
    asleep(world, "s")
    world.submit(gpus=1, memory_bytes_per_gpu=1 << 30, swap_bytes_per_gpu=10 << 30)

    assert {*called(world)} == ({"s", "d1"} if copies == 1 else {"s", "d1", "d2"})


def test_a_job_that_its_account_holds_back_or_that_no_cluster_could_run_calls_nobody() -> None:
    world = World(rules(), nodes=2)
    tenancy = Tenancy(accounts={"ml": Account(name="ml", quota_gpus=4)})
    running = world.submit(gpus=4, account="ml")
    world.runs(running)
    asleep(world, "n1")
    world.submit(gpus=4, account="ml")
    world.submit(gpus=99)

    assert called(world, tenancy) == ()
    world.task(world.job(running).tasks[0], TaskPhase.EXITED, exit_code=0)


def test_jobs_that_an_account_holds_back_keep_nobody_else_from_waking_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farside.scheduler.manager.power.nodes_needed.LOOKED_AT", 3)
    world = World(rules(), nodes=2)
    tenancy = Tenancy(accounts={"ml": Account(name="ml", quota_gpus=4), "bio": Account(name="bio")})
    world.runs(world.submit(gpus=4, account="ml"))
    asleep(world, "n1")
    for asked in (4, 1, 2, 3):
        world.submit(gpus=asked, account="ml")
    world.submit(gpus=4, account="bio")

    assert called(world, tenancy) == ("n1",)


# ---------------------------------------------------------------------------------------------- the past


def test_what_was_busy_before_the_manager_began_is_read_from_the_jobs_stints() -> None:
    world = World(rules(), nodes=2)
    begin_s = world.now_s
    first = world.submit(gpus=8)
    world.runs(first)
    world.pass_s(150.0)
    world.exits(first)
    world.pass_s(100.0)
    second = world.submit(gpus=4)
    world.pass_s(50.0)

    found = busy_nodes(world.state.jobs.values(), {"n0", "n1"}, begin_s, world.now_s, 50.0)

    assert found == (2.0, 2.0, 2.0, 2.0, 0.0, 1.0)
    assert busy_nodes(world.state.jobs.values(), {"n1"}, begin_s, world.now_s, 50.0)[-1] == 0.0
    assert world.phase(second) is Phase.STARTING
