"""Nodes that sleep under real jobs in the simulator: who is delayed, and by how much."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.energy.ces import Ces, CesSettings
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.energy.simple_policies import AllOn, KeepRecent
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.sim.energy.sleeping import Cost, SleepingSimulation, cost_of
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster
from farside.scheduler.tenancy import Account, Tenancy
from tests.support.traces import flat_cluster, philly, trace

RULES = Rules(order=Fifo(), placement=make_placement("consolidate", {}))
HOUR_S = 3600.0


def keep(buffer_nodes: float, hours: float = 1 / 6) -> Callable[[int], EnergyPolicy]:
    return lambda nodes: KeepRecent(buffer_nodes=min(nodes, buffer_nodes), keep_s=hours * HOUR_S, step_s=600.0)


def run(
    jobs: list[TraceJob], cluster: Cluster, make_policy: Callable[[int], EnergyPolicy], *, rules: Rules = RULES
) -> tuple[SleepingSimulation, Cost]:
    before = Simulation(cluster, rules, jobs).run()
    simulation = SleepingSimulation(cluster, rules, jobs, make_policy=make_policy)
    return simulation, cost_of(simulation, simulation.run(), before)


def test_nobody_waits_where_nobody_sleeps() -> None:
    jobs = trace([(0, 7200, 4), (3600, 60, 8)])

    simulation, cost = run(jobs, flat_cluster(2, 8), lambda _: AllOn())

    assert (cost.delayed_jobs, cost.sleeping_nodes, cost.wakeups_per_day) == (0, 0, 0)
    assert [part.end_s for part in simulation.runs] == [7200, 3660]


def test_a_job_that_finds_its_node_asleep_waits_for_the_boot() -> None:
    jobs = trace([(0, 7200, 8), (3600, 60, 8)])

    simulation, cost = run(jobs, flat_cluster(2, 8), keep(0))

    assert simulation.runs[1].start_s == 3600 + 300
    assert (cost.delayed_jobs, cost.mean_delay_s, cost.max_delay_s) == (1, 300, 300)


def test_a_buffer_spares_the_wait() -> None:
    jobs = trace([(0, 7200, 8), (3600, 60, 8)])

    _, cost = run(jobs, flat_cluster(3, 8), keep(1))

    assert cost.delayed_jobs == 0
    assert cost.sleeping_nodes > 0


def test_a_gang_wakes_all_the_nodes_that_it_lacks_at_once() -> None:
    jobs = trace([(0, 7200, 8), (3600, 60, 24)])

    simulation, cost = run(jobs, flat_cluster(4, 8), keep(0))

    assert simulation.runs[1].start_s == 3900
    assert (simulation.pools[""].wakeups, cost.nodes_per_wakeup) == (1, 3)


def test_a_node_with_a_job_never_sleeps() -> None:
    simulation, _ = run(trace([(0, 86400, 8), (60, 86400, 8)]), flat_cluster(2, 8), keep(0))

    assert [part.end_s - part.start_s for part in simulation.runs] == [86400, 86400]
    assert simulation.pools[""].asleep_node_s == 0


def test_sleep_is_counted_from_the_check_to_the_boot() -> None:
    simulation, _ = run(trace([(0, 7200, 8), (3600, 7200, 8)]), flat_cluster(2, 8), keep(0))

    # The second sleeps from the first check until it is woken; the first from the check after its job to the end.
    assert simulation.pools[""].asleep_node_s == (3600 - 600) + (3900 + 7200 - 7800)


def test_a_job_wakes_only_what_it_lacks_beyond_idle_nodes() -> None:
    # When the gang of four nodes comes one is busy, two are on and idle, and three sleep.
    jobs = trace([(0, 7200, 8), (3010, 200, 16), (3610, 60, 32)])

    simulation, _ = run(jobs, flat_cluster(6, 8), keep(0))

    assert (simulation.pools[""].woken_nodes, simulation.runs[2].start_s) == (2 + 2, 3610 + 300)


def test_a_job_that_its_accounts_quota_holds_back_wakes_nobody() -> None:
    tenancy = Tenancy(others=Account(name="", quota_gpus=8), half_life_s=0.0)
    jobs = trace([(0, 7200, 8), (3600, 60, 8)])

    simulation, cost = run(jobs, flat_cluster(2, 8), keep(0), rules=replace(RULES, tenancy=tenancy))

    assert simulation.pools[""].woken_nodes == 0
    assert (simulation.runs[1].start_s, cost.delayed_jobs) == (7200, 0)


@pytest.mark.parametrize(
    ("fleet", "asleep"),
    [
        (FleetRules(floor=2, min_on_s=0.0), 0.0),
        (FleetRules(floor=0, min_on_s=0.0, always_on=frozenset({"n0", "n1"})), 0.0),
        (FleetRules(floor=0, min_on_s=0.0), 7200.0 - 600),
        (FleetRules(floor=0, min_on_s=0.0, stops_per_hour=0), 0.0),
    ],
)
def test_the_rules_of_the_fleet_count(fleet: FleetRules, asleep: float) -> None:
    jobs = trace([(0, 7200, 8)])
    simulation = SleepingSimulation(flat_cluster(2, 8), RULES, jobs, make_policy=keep(0), fleet=fleet)

    simulation.run()

    assert simulation.pools[""].asleep_node_s == asleep


def test_no_more_nodes_boot_at_once_than_the_rules_allow() -> None:
    jobs = trace([(0, 7200, 8), (3600, 60, 24)])
    fleet = FleetRules(floor=0, min_on_s=0.0, booting_at_once=1)
    simulation = SleepingSimulation(flat_cluster(4, 8), RULES, jobs, make_policy=keep(0), fleet=fleet)

    simulation.run()

    assert simulation.runs[1].start_s == 3600 + 3 * 300


def test_virtual_clusters_sleep_each_by_itself() -> None:
    one, two = flat_cluster(2, 8, "a"), flat_cluster(2, 8, "b")
    cluster = Cluster(virtual_clusters=(*one.virtual_clusters, *two.virtual_clusters))
    jobs = [*trace([(0, 7200, 16)], "a"), *trace([(0, 7200, 8)], "b")]

    simulation, _ = run(jobs, cluster, keep(0))

    assert simulation.pools["a"].asleep_node_s == 0
    assert simulation.pools["b"].asleep_node_s == 7200 - 600


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 20000), st.integers(1, 20000), st.sampled_from([1, 2, 4, 8, 16])),
        min_size=1,
        max_size=25,
    ),
    buffer_nodes=st.integers(0, 3),
    order=st.sampled_from([Fifo(), Srtf()]),
)
def test_every_job_ends_and_none_runs_shorter(
    rows: list[tuple[int, int, int]], buffer_nodes: int, order: Fifo | Srtf
) -> None:
    jobs = trace([(float(submit), float(duration), gpus) for submit, duration, gpus in rows])
    rules = Rules(order=order, placement=make_placement("consolidate", {}))

    simulation, cost = run(jobs, flat_cluster(4, 8), keep(buffer_nodes), rules=rules)

    for job, part in zip(jobs, simulation.runs, strict=True):
        assert part.start_s >= job.job.submit_s
        assert part.end_s >= part.start_s + job.duration_s - 1e-6
    assert 0 <= cost.sleeping_nodes <= 4


@pytest.mark.long
def test_ces_keeps_its_word_under_the_jobs_of_a_real_cluster() -> None:
    jobs = philly("2869ce")

    _, cost = run(
        jobs, flat_cluster(16, 8, "2869ce"), lambda nodes: Ces(settings=CesSettings(), step_s=600.0, total=nodes)
    )

    assert 0.5 / 1.5 <= cost.wakeups_per_day <= 0.5 * 1.5
    assert cost.sleeping_nodes > 5
    assert cost.max_delay_s <= 600


def test_a_trace_without_jobs_says_nothing() -> None:
    simulation = SleepingSimulation(flat_cluster(1, 8), RULES, [], make_policy=keep(0))

    with pytest.raises(ValueError, match="without jobs"):
        cost_of(simulation, simulation.run(), [])
