"""Where a preemption costs time: nobody is preempted for ever before he gets any further, and a run always ends."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.catalog import ORDERS, make_order
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.preemption_cost import ModelCost, NoCost, PreemptionCost, SteppedCost
from farside.scheduler.sim.simulation import Run, Simulation, Stuck
from farside.scheduler.state import Action, Preempt, Start
from tests.support.traces import flat_cluster, trace

PAIR = [(0.0, 100.0, 4), (0.0, 100.0, 4)]  # one node of 4 GPUs holds one of them


def run_pair(rules: Rules, *, tick_s: float = 0.0) -> list[Run]:
    return list(Simulation(flat_cluster(1, 4), rules, trace(PAIR), tick_s=tick_s).run())


@pytest.mark.parametrize(
    ("order", "cost", "reserve_after_s", "tick_s"),
    [
        (Timeshare(quantum_s=30.0), SteppedCost(), math.inf, 0.0),
        (Timeshare(quantum_s=60.0), ModelCost(), math.inf, 0.0),
        (Timeshare(quantum_s=50.0), ModelCost(), math.inf, 0.0),
        (Las(), SteppedCost(), 30.0, 0.0),
        (Las(), ModelCost(), 60.0, 0.0),
        (Srtf(), ModelCost(), 60.0, 0.0),
        (Gittins(), ModelCost(), 50.0, 0.7),
        (Las(limits_gpu_s=(), interval_s=30.0), ModelCost(), math.inf, 0.0),
    ],
    ids=["slice-as-cost", "slice", "shorter-slice", "las", "las-model", "srtf", "gittins-ticks", "interval"],
)
def test_two_jobs_end_though_each_turn_is_no_longer_than_it_takes_to_resume(
    order: OrderPolicy, cost: PreemptionCost, reserve_after_s: float, tick_s: float
) -> None:
    runs = run_pair(
        Rules(order=order, placement=CountOnly(), preemption_cost=cost, reserve_after_s=reserve_after_s), tick_s=tick_s
    )

    assert all(run.end_s <= 2000.0 for run in runs)


def turns(rules: Rules) -> list[tuple[float, float]]:
    """Of each turn but the last of a job: what it took to resume, and how long it lasted."""
    began: dict[int, tuple[float, float]] = {}
    seen: list[tuple[float, float]] = []

    def note(now_s: float, _: Domain, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Start):
                began[action.row] = action.delay_s, now_s
            elif isinstance(action, Preempt):
                delay_s, start_s = began[action.row]
                seen.append((delay_s, now_s - start_s))

    Simulation(flat_cluster(1, 4), rules, trace(PAIR), observers=(note,)).run()
    return seen


def test_a_slice_begins_when_the_job_has_resumed() -> None:
    seen = turns(Rules(order=Timeshare(quantum_s=40.0), placement=CountOnly(), preemption_cost=SteppedCost()))

    assert seen == [(0.0, 40.0), (0.0, 40.0), (30.0, 70.0), (30.0, 70.0)]


@pytest.mark.parametrize("setting", ["min_run_s", "reserve_after_s"])
def test_who_is_left_alone_is_so_from_when_it_has_resumed(setting: str) -> None:
    rules = Rules(order=Las(), placement=CountOnly(), preemption_cost=SteppedCost(), reserve_after_s=20.0)
    if setting == "min_run_s":
        rules = Rules(
            order=Las(), placement=CountOnly(), preemption_cost=SteppedCost(), reserve_after_s=5.0, min_run_s=20.0
        )  # fmt: skip

    seen = turns(rules)

    assert seen
    assert all(length_s >= delay_s + 20.0 for delay_s, length_s in seen)
    assert any(delay_s for delay_s, _ in seen)


ENDLESS = Rules(order=Las(limits_gpu_s=(10.0,), promote_knob=1.0), placement=CountOnly(), preemption_cost=ModelCost())


@pytest.mark.long
def test_jobs_that_never_get_any_further_end_the_run_with_one_line_that_says_what_to_do() -> None:
    """Both are promoted after 3 s, and it takes 58 s to resume."""
    with pytest.raises(Stuck, match=r"las: 2 of 2 jobs will never end: .*--set min_run_s=60") as caught:
        run_pair(ENDLESS)

    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_the_run_goes_on_as_long_as_anybody_gets_further() -> None:
    """The same two, beside one that runs on for long: when it ends there is room for both."""
    long_s = 20_000.0
    rows = [(0.0, long_s, 4), (1.0, 100.0, 4), (1.0, 100.0, 4)]
    order = Las(limits_gpu_s=(10.0,), promote_knob=1.0)
    jobs = trace(rows)
    jobs[0] = type(jobs[0])(
        job=type(jobs[0].job)(job_id="long", sequence=0, submit_s=0.0, gpus=4, preemptible=False), duration_s=long_s
    )

    runs = Simulation(
        flat_cluster(2, 4), Rules(order=order, placement=CountOnly(), preemption_cost=ModelCost()), jobs
    ).run()

    assert all(run.end_s <= long_s + 1000.0 for run in runs)


SETTINGS = {
    "timeshare": {"quantum_s": "9"}, "las": {"limits_gpu_s": "40,200", "promote_knob": "1"},
    "gittins": {"limits_gpu_s": "40,200", "promote_knob": "2", "first_fit_jobs": "1"},
}  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 150), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=9
    ),
    policy=st.sampled_from(sorted(ORDERS)),
    is_set=st.booleans(),
    cost=st.sampled_from([NoCost(), SteppedCost(), ModelCost(), ModelCost(fixed_s=0.0)]),
    reserve_after_s=st.sampled_from([1.0, 7.0, 60.0, math.inf]),
    min_run_s=st.sampled_from([0.0, 2.5]),
    tick_s=st.sampled_from([0.0, 0.7, 60.0]),
)
def test_every_run_ends(
    rows: list[tuple[int, int, int]], policy: str, is_set: bool, cost: PreemptionCost, reserve_after_s: float,
    min_run_s: float, tick_s: float,
) -> None:  # fmt: skip
    order = make_order(policy, SETTINGS.get(policy, {}) if is_set else {})
    rules = Rules(
        order=order, placement=CountOnly(), preemption_cost=cost, reserve_after_s=reserve_after_s, min_run_s=min_run_s
    )  # fmt: skip
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    simulation = Simulation(flat_cluster(2, 4), rules, jobs, tick_s=tick_s)

    try:
        runs = simulation.run()
    except Stuck:
        # Only where an operator's own limits are shorter than what it takes to resume, and nobody is left alone.
        assert is_set
        assert cost.name != "free"
        assert not min_run_s
        return

    assert all(run.end_s >= 0 for run in runs)
    assert sum(run.held_s - run.cost_s for run in runs) == pytest.approx(sum(duration for _, duration, _ in rows))


@pytest.mark.parametrize(("tick_s", "submit_s"), [(0.7, 500.5), (0.3, 16242.6), (2.3, 12845.5)])
def test_a_tick_that_is_rounded_never_lies_before_what_happened(tick_s: float, submit_s: float) -> None:
    """These are multiples, but for the last binary place: the product lies below."""
    assert math.ceil(submit_s / tick_s) * tick_s < submit_s
    seen: list[float] = []
    simulation = Simulation(
        flat_cluster(1, 4), Rules(order=Las(), placement=CountOnly()), trace([(submit_s, 10.0, 4)]), tick_s=tick_s,
        observers=(lambda now_s, *_: seen.append(now_s),),
    )  # fmt: skip

    (run,) = simulation.run()

    assert run.start_s == submit_s
    assert seen == sorted(seen)


def test_with_ticks_the_end_of_a_protection_and_a_wait_too_long_wait_for_the_next_one() -> None:
    began: list[float] = []

    def note(now_s: float, _: Domain, actions: tuple[Action, ...]) -> None:
        began.extend(now_s for action in actions if isinstance(action, Start))

    rules = Rules(order=Las(), placement=CountOnly(), reserve_after_s=33.0)
    Simulation(flat_cluster(1, 4), rules, trace(PAIR), tick_s=10.0, observers=(note,)).run()

    assert len(began) > 2
    assert all(at_s % 10.0 == 0 for at_s in began)
