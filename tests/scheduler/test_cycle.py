"""The cycle against a slow restatement of what it must decide, and against arithmetic done by hand."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srsf, Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Job, Node, Preempt, Resize, Start
from farside.scheduler.table import JobTable
from tests.support.greedy import Keys, greedy_ends
from tests.support.traces import flat_cluster, trace

LIMITS = (30.0, 90.0)


def level(executed_gpu_s: float) -> float:
    return float(sum(executed_gpu_s >= limit for limit in LIMITS))


@dataclass(frozen=True)
class Case:
    order: OrderPolicy
    keys: Keys
    limits: tuple[float, ...] = ()


def cases(jobs: list[TraceJob]) -> list[Case]:
    gpus = [job.job.gpus for job in jobs]
    return [
        Case(Srtf(), lambda row, executed, remaining, first: (remaining,)),
        Case(Srsf(), lambda row, executed, remaining, first: (remaining * gpus[row], gpus[row])),
        Case(
            Las(limits_gpu_s=LIMITS, within="start_time"),
            lambda row, executed, remaining, first: (level(executed * gpus[row]), first),
            LIMITS,
        ),
    ]


jobs_of_a_trace = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 50), st.sampled_from([1, 1, 1, 2, 4, 8])), min_size=1, max_size=25
)


@settings(deadline=None, max_examples=150)
@given(jobs_of_a_trace, st.integers(0, 2))
def test_counting_gpus_it_decides_what_filling_an_empty_cluster_would(
    rows: list[tuple[int, int, int]], which: int
) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    case = cases(jobs)[which]
    simulation = Simulation(flat_cluster(1, 8), Rules(order=case.order, placement=CountOnly()), jobs)

    runs = simulation.run()

    ends, preemptions = greedy_ends(jobs, 8, case.keys, case.limits)
    assert [run.end_s for run in runs] == pytest.approx(ends)
    assert sum(run.preemptions for run in runs) == preemptions


class Watch:
    """Checks after every cycle that nobody holds what another has, and that no preemption was for nothing."""

    def __init__(self) -> None:
        self.cycles = 0

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        self.cycles += 1
        held = [0] * len(domain.ledger.nodes)
        for row in domain.running:
            assert row not in domain.waiting
            allocation = domain.running[row].allocation
            assert sum(gpus for _, gpus in allocation) == domain.jobs[row].gpus
            for at, gpus in allocation:
                held[at] += gpus
        assert all(held[at] + domain.ledger.free[at] == node.gpus for at, node in enumerate(domain.ledger.nodes))
        started = {action.row for action in actions if isinstance(action, Start)}
        assert all(action.winner in started for action in actions if isinstance(action, Preempt))


LAS = Las(limits_gpu_s=LIMITS)
PROMOTING = Las(limits_gpu_s=LIMITS, promote_knob=2.0)
orders = st.sampled_from([Fifo(), Fifo(is_strict=False), Srtf(), Srsf(), LAS, PROMOTING])
placements = st.sampled_from([CountOnly(), Consolidate(), Consolidate(remainder_on_fullest=True)])


@settings(deadline=None, max_examples=150)
@given(jobs_of_a_trace, orders, placements, st.sampled_from([0.0, 5.0]))
def test_no_gpu_is_given_twice_and_nobody_is_preempted_for_nothing(
    rows: list[tuple[int, int, int]], order: OrderPolicy, placement: PlacementPolicy, min_run_s: float
) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    watch = Watch()
    rules = Rules(order=order, placement=placement, min_run_s=min_run_s)

    runs = Simulation(flat_cluster(3, 4), rules, jobs, observers=(watch,)).run()

    assert watch.cycles
    assert all(run.end_s >= job.job.submit_s + job.duration_s for run, job in zip(runs, jobs, strict=True))
    assert all(math.isclose(run.held_s, job.duration_s) for run, job in zip(runs, jobs, strict=True))


def test_srsf_gives_the_papers_example() -> None:
    """Figure 3.7's jobs on two GPUs: 9.33 units on average. [tiresias §3.3.2.2]"""
    jobs = trace([(0.0, 2.0, 2), (0.0, 8.0, 1), (0.0, 6.0, 2)])

    runs = Simulation(flat_cluster(1, 2), Rules(order=Srsf(), placement=CountOnly()), jobs, tick_s=1.0).run()

    assert sum(run.end_s for run in runs) / len(runs) == pytest.approx(28 / 3)


@pytest.mark.parametrize("placement", [CountOnly(), Consolidate()], ids=["count", "consolidate"])
def test_nodes_that_leave_finish_what_they_run_and_take_nothing_more(placement: PlacementPolicy) -> None:
    jobs = trace([(0.0, 100.0, 4), (0.0, 100.0, 4), (50.0, 10.0, 4), (60.0, 10.0, 4)])
    cluster = flat_cluster(2, 4)
    nodes = cluster.virtual_clusters[0].nodes
    resizes = (Resize(at_s=10.0, vc="", nodes=nodes[:1]), Resize(at_s=300.0, vc="", nodes=nodes))

    runs = Simulation(cluster, Rules(order=Fifo(), placement=placement), jobs, resizes=resizes).run()

    assert [run.end_s for run in runs] == [100.0, 100.0, 110.0, 120.0]


def test_who_finds_no_room_on_a_node_that_has_left_leaves_those_who_still_run_there_alone() -> None:
    nodes = (Node(name="a", gpus=4), Node(name="b", gpus=4))
    domain = Domain("", nodes, Rules(order=Srtf(), placement=Consolidate()), JobTable())
    domain.submit(0, job(0, gpus=2), remaining_s=1000.0, predicted_gpu_s=math.nan)
    run_cycle(domain, 0.0)
    domain.resize(())  # both leave, and the job ends where it is

    domain.submit(1, job(1, gpus=4), remaining_s=1.0, predicted_gpu_s=math.nan)
    actions = run_cycle(domain, 1.0)

    assert actions == ()
    assert (domain.ledger.free, list(domain.running)) == ([-2, 0], [0])


def job(sequence: int, *, gpus: int) -> Job:
    return Job(job_id=str(sequence), sequence=sequence, submit_s=float(sequence), gpus=gpus)


@pytest.mark.parametrize(("order", "looked_at"), [(Fifo(), 1), (Srsf(), 15)])
def test_behind_a_head_that_blocks_all_no_other_demand_is_looked_at(order: OrderPolicy, looked_at: int) -> None:
    nodes = flat_cluster(1, 20).virtual_clusters[0].nodes
    domain = Domain("", nodes, Rules(order=order, placement=CountOnly()), JobTable())
    for row, entry in enumerate(trace([(0.0, 10.0, 20), *((0.0, 10.0, 20 - at) for at in range(20))])):
        domain.submit(row, entry.job, remaining_s=entry.duration_s, predicted_gpu_s=math.nan)
    first = run_cycle(domain, 0.0)
    domain.touch()

    heads = domain.queue.take_heads(1.0)

    assert len(first) >= 1
    assert len(heads) == looked_at
