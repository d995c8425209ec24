"""How long jobs take in all, by the equations and the rules."""

import pytest

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster
from farside.scheduler.sharing.colocation.forecast import forecast
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.regroup import Regrouping

RULES = Regrouping(GroupingRules(), decide)


def job(name: str, comp_s: float, net_s: float) -> WorkProfile:
    """A job of one worker."""
    return WorkProfile(job=name, work_machine_s=comp_s, net_s=net_s, net_alone_s=net_s, machines_most=1)


def started(machines: int, *jobs: WorkProfile) -> Cluster:
    names = tuple(one.job for one in jobs)
    waiting = Cluster(machines=machines, waiting=names, profiles={one.job: one for one in jobs})
    return RULES.arrived(waiting, names).cluster


def test_jobs_that_fit_end_together_and_sooner_than_apart() -> None:
    pair = job("a", 3, 1), job("b", 1, 3)

    found = forecast(started(1, *pair), {"a": 10, "b": 10}, RULES, start_s={})

    assert found.ends_s == pytest.approx({"a": 40, "b": 40})
    assert found.makespan_s == pytest.approx(40)  # apart they take 80
    assert [stage.time.iteration_s for stage in found.stages] == pytest.approx([4])


def test_a_job_moves_to_the_machine_of_one_that_has_ended_and_its_start_costs_time() -> None:
    # What the demo plays: the one that only computes ends, and another one moves to the one that only communicates.
    four = job("talks", 0.03, 0.3), job("computes", 0.3, 0.03), job("c", 0.36, 0.18), job("d", 0.36, 0.18)
    cluster = started(2, *four)
    left = {"talks": 60.0, "computes": 36.0, "c": 34.0, "d": 34.0}

    found, free = (
        forecast(cluster, left, RULES, start_s=dict.fromkeys(left, start_s)) for start_s in (2.0, 0.0)
    )  # fmt: skip

    assert {group.jobs for group in cluster.groups} == {("talks", "computes"), ("c", "d")}
    assert min(found.ends_s, key=lambda name: found.ends_s[name]) == "computes"
    assert found.ends_s["computes"] == pytest.approx(36 * 0.33)
    assert found.moves == 1
    assert 0 < found.makespan_s - free.makespan_s <= 2.0 + 1e-6


def test_a_job_that_waits_gets_the_machine_that_becomes_free() -> None:
    cluster = started(1, job("a", 4, 0), job("b", 4, 0))
    assert cluster.waiting == ("b",)

    found = forecast(cluster, {"a": 10, "b": 5}, RULES, start_s={"b": 1})

    assert found.ends_s == pytest.approx({"a": 40, "b": 40 + 1 + 20})
    assert found.moves == 0


def test_a_job_that_no_machine_takes_is_left_out() -> None:
    few = WorkProfile(job="few", work_machine_s=1, net_s=1, machines_least=3)

    found = forecast(started(2, job("a", 1, 1), few), {"a": 3, "few": 3}, RULES, start_s={})

    assert set(found.ends_s) == {"a"}
