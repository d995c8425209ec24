"""SRTF that stops jobs by a count of GPUs, as the published simulator does, beside SRTF that plans by placement."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.config.manager import ManagerConfig
from farside.config.slurm import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.explain import Cause, look
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.experiment import make_experiments
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Preempt
from tests.support.counted import counted_ends
from tests.support.traces import flat_cluster, trace

By = Literal["placement", "count"]

# On two nodes of 8: A and D lie on the first, B on the second, so 1 and 3 GPUs are free when P comes and wants 6.
FOUR = trace([(0, 1000, 5), (0, 900, 5), (0, 2000, 2), (10, 50, 6)])
A, B, D, P = range(4)


def simulation(preempts_by: By, *, min_run_s: float = 0.0) -> Simulation:
    rules = Rules(order=Srtf(preempts_by=preempts_by), placement=Consolidate(), min_run_s=min_run_s)
    return Simulation(flat_cluster(2, 8), rules, FOUR)


@pytest.mark.parametrize(
    ("preempts_by", "ends_s", "preempted"),
    [
        # P, B and A have all 16 GPUs between them, so D stops, and P finds no 6 on a node until B has ended.
        ("count", [1000, 900, 2890, 950], [0, 0, 1, 0]),
        # A makes room for P, and D stays beside it.
        ("placement", [1050, 900, 2000, 60], [1, 0, 0, 0]),
    ],
)
def test_by_count_a_job_stops_for_one_that_finds_no_place(
    preempts_by: By, ends_s: list[float], preempted: list[int]
) -> None:
    runs = simulation(preempts_by).run()

    assert [run.end_s for run in runs] == ends_s
    assert [run.preemptions for run in runs] == preempted


def test_what_a_count_decided_is_told_in_words() -> None:
    told: list[tuple[tuple[Action, ...], Cause, Cause]] = []

    def at_ten(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        if now_s == 10:
            told.append((actions, look(domain, D, now_s).cause, look(domain, P, now_s).cause))

    simulated = simulation("count")
    simulated.observers.append(at_ten)
    simulated.run()

    assert told == [
        (
            (Preempt(row=D, winner=P, reason="all GPUs are counted to jobs ahead of it"),),
            Cause.COUNTED,
            Cause.SCATTERED,
        )
    ]


def test_a_job_that_is_left_alone_has_its_gpus_counted_first() -> None:
    runs = simulation("count", min_run_s=100).run()

    # At 10 all three are left alone, 12 of 16 GPUs: too few are left for P, and D stops only at 100.
    assert [run.end_s for run in runs] == [1000, 900, 2800, 950]


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 300), st.sampled_from([1, 1, 2, 3, 4, 5, 8, 8, 12, 16, 20, 24])),
        min_size=1,
        max_size=40,
    )
)
def test_the_cycle_stops_and_starts_what_a_restatement_does(rows: list[tuple[int, int, int]]) -> None:
    jobs = trace([(float(submit_s), float(duration_s), gpus) for submit_s, duration_s, gpus in rows])
    rules = Rules(
        order=Srtf(preempts_by="count"),
        placement=Consolidate(remainder_on_fullest=True),
        preemption_cost=SteppedCost(),
    )

    runs = Simulation(flat_cluster(3, 8), rules, jobs).run()

    assert ([run.end_s for run in runs], sum(run.preemptions for run in runs)) == counted_ends(jobs, 3, (7, 30, 60))


@pytest.mark.parametrize(
    ("settings", "of_what"),
    [
        ({"is_lending": "true"}, "is_lending"),
        ({"reserve_after_s": "1h"}, "reserve_after_s"),
        ({"user_quota_gpus": "8"}, "accounts, quotas or fair share"),
        ({"fair_share_half_life_s": "1h"}, "accounts, quotas or fair share"),
    ],
)
def test_a_count_refuses_what_it_knows_nothing_of(settings: dict[str, str], of_what: str) -> None:
    with pytest.raises(ConfigError, match=f"srtf: preempts_by=count does not go with {of_what}"):
        make_experiments(["srtf"], {"preempts_by": "count", **settings})


def test_real_clusters_refuse_a_count() -> None:
    told = "preempts_by=count"
    for config in (
        ManagerConfig(policy="srtf", policy_settings=told),
        SlurmConfig(policy="srtf", policy_settings=told),
    ):
        with pytest.raises(ConfigError, match="policy_settings: srtf with preempts_by=count stops jobs for others"):
            rules_of(config)
