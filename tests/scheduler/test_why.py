"""The story of one job, on traces made by hand."""

from dataclasses import replace

from farside.scheduler.domain import Rules
from farside.scheduler.explain import explain
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.result import explain_wait
from farside.scheduler.sim.result.explain_wait import Watcher
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster
from tests.support.traces import flat_cluster, trace


def story(jobs: list[TraceJob], row: int, rules: Rules, nodes: int = 1) -> list[str]:
    simulation = Simulation(flat_cluster(nodes, 4), rules, jobs)
    watcher = Watcher(simulation, row)
    simulation.run()
    return watcher.lines()


def test_a_job_behind_two_others() -> None:
    jobs = trace([(0.0, 60.0, 4), (10.0, 100.0, 4), (20.0, 30.0, 2)])

    assert story(jobs, 2, Rules(order=Fifo(), placement=Consolidate())) == [
        "job 2: 2 GPUs, came 20 s, ended 190 s; ran 30 s, waited 2.33 min",
        "  20 s  waits 40 s: needs 2 GPUs on one node, 0 free; the first in line is job 1 (4 GPUs), "
        "which came 10 s earlier",
        "  60 s  waits 1.67 min: needs 2 GPUs on one node, 0 free; one running job there, and fifo preempts no job",
        "  160 s  starts on n0 (2): 2 GPUs free",
        "  190 s  ended",
        "  in all 1.67 min: too few GPUs free",
        "  in all 40 s: behind the first in line",
    ]


def test_a_job_that_never_waited() -> None:
    told = story(trace([(5.0, 60.0, 4)]), 0, Rules(order=Fifo(), placement=Consolidate()))

    assert told == [
        "job 0: 4 GPUs, came 5 s, ended 65 s; ran 1 min, waited 0 s",
        "  5 s  starts on n0 (4): 4 GPUs free",
        "  65 s  ended",
    ]


def test_a_preemption_tells_for_whom_and_why_and_what_it_costs() -> None:
    jobs = trace([(0.0, 100.0, 4), (10.0, 20.0, 4)])

    told = story(jobs, 0, Rules(order=Srtf(), placement=Consolidate(), preemption_cost=SteppedCost()))

    assert told[2].startswith("  10 s  is preempted: its GPUs go to a job ahead of it, job 1 (4 GPUs), which ")
    assert told[3].startswith(
        "  10 s  waits 20 s: needs 4 GPUs on one node, 0 free; 4 are held by one running job that"
    )
    assert told[4] == ("  30 s  starts on n0 (4): 4 GPUs free; makes no progress for 30 s, which it takes to resume")


def test_who_preempts_is_told_whom() -> None:
    told = story(trace([(0.0, 100.0, 4), (10.0, 20.0, 4)]), 1, Rules(order=Srtf(), placement=Consolidate()))

    assert told[1].startswith("  10 s  starts on n0 (4): preempts job 0: it ")


def test_a_preemption_for_a_reservation_does_not_claim_the_policys_order() -> None:
    jobs = trace([(0.0, 500.0, 4), (1.0, 900.0, 4)])
    rules = Rules(order=Srtf(), placement=Consolidate(), reserve_after_s=50.0)

    told = story(jobs, 0, rules)

    assert told[2] == (
        "  51 s  is preempted: its GPUs go to a job ahead of it, job 1 (4 GPUs), which has waited too long"
    )


def test_what_follows_the_same_cause_is_one_line_with_the_range_of_what_was_free() -> None:
    jobs = trace([(0.0, 50.0, 3), (0.0, 90.0, 3), (1.0, 60.0, 8), (60.0, 10.0, 1)])

    told = story(jobs, 2, Rules(order=Fifo(is_strict=False), placement=Consolidate()), nodes=2)

    assert [line for line in told if "waits" in line] == [
        "  1 s  waits 1.48 min: needs 8 GPUs on 2 nodes, 2 to 5 free; 2 running jobs there, and best-effort preempts "
        "no job"
    ]


def test_of_a_job_that_is_thrown_about_the_longest_waits_are_told() -> None:
    jobs = trace([(0.0, 4000.0, 4), (5.0, 4000.0, 4)])
    rules = Rules(order=Las(limits_gpu_s=(400.0,), promote_knob=1.0), placement=Consolidate())

    told = story(jobs, 0, rules)

    waits = [line for line in told if " waits " in line]
    passed = [line for line in told if "shorter waits" in line]
    assert len(waits) == explain_wait.TOLD
    assert passed
    assert len(told) < 8 * explain_wait.TOLD


def test_a_guest_is_told_whose_nodes_it_runs_on_and_when_they_are_wanted_back() -> None:
    a, b = (flat_cluster(1, 4, vc).virtual_clusters[0] for vc in ("a", "b"))
    rows = [(0.0, 100.0, 4, "a"), (1.0, 100.0, 4, "a"), (41.0, 10.0, 4, "b")]
    jobs = [
        replace(job, job=replace(job.job, vc=row[3]))
        for job, row in zip(trace(row[:3] for row in rows), rows, strict=True)
    ]
    rules = Rules(order=Fifo(), placement=Consolidate())
    simulation = Simulation(Cluster(virtual_clusters=(a, b)), rules, jobs, is_lending=True)
    watcher = Watcher(simulation, 1)
    seen: list[str] = []
    simulation.observers.append(lambda now_s, domain, _: seen.extend(explain(domain, 1, now_s)) if now_s == 1 else None)

    simulation.run()

    assert "runs as a guest on idle nodes of others since 1 s" in seen
    assert watcher.lines()[1:3] == [
        "  1 s  starts: 4 GPUs of b are idle",
        "  41 s  is preempted: its GPUs go back to their owner, job 2 (4 GPUs)",
    ]
