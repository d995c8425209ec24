"""How the benchmark of jobs in turns predicts an iteration, and what it compares that with."""

from msgspec.structs import replace

from benchmarks.colocation import calm, median_size, predicted_s, spread_of, windows_of
from farside.agent.messages import ProcessorUse, TurnTaker
from farside.scheduler.manager.view import groups as view
from tests.live.test_colocation import a_world, runs_measured
from tests.live.test_groups import facts_of

JOBS = [TurnTaker(job=name, start=1, rank=0, comp_s=0.028, net_s=0.024, iteration_s=0.052) for name in ("1", "2")]
USED = ProcessorUse(comp_s=0.028, rest_s=0.004, processors=1)


def test_a_prediction_is_the_one_that_a_manager_writes_and_shows() -> None:
    world = a_world(nodes=1)
    for _ in JOBS:
        runs_measured(world, 0.028, 0.024, processor=USED)
    (planned,) = world.state.colocation.groups
    (shown,) = view.report(facts_of([replace(one, processor=USED) for one in JOBS]), lambda _: True).groups

    found_s = predicted_s([replace(one, processor=USED) for one in JOBS], 1)

    assert found_s == planned.predicted_s == shown.predicted_s
    assert abs(found_s - 0.064) < 1e-9
    assert abs(predicted_s(JOBS, 1) - 0.056) < 1e-9


def test_jobs_of_two_nodes_are_predicted_by_what_each_takes_on_two() -> None:
    used = [replace(one, processor=USED) for one in JOBS]

    assert predicted_s(used, 2) >= predicted_s(JOBS, 2) >= 0.056


def test_a_window_has_the_iterations_of_the_slowest_job_while_all_are_there() -> None:
    quick, slow = list(range(9)), list(range(0, 18, 2))

    assert windows_of({"a": quick}, 2) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    # The quick one has ended at 8, when the other one has made four iterations.
    assert windows_of({"a": quick, "b": slow}, 2) == [(0, 4), (4, 8)]


def test_an_error_counts_to_either_side() -> None:
    assert median_size([-0.08, 0.02, 0.06]) == 0.06


def test_a_prediction_is_judged_by_windows_in_which_computing_spreads_by_less_than_a_tenth() -> None:
    windows = [(0.09, 0.01, 0.0), (0.1, 0.02, 0.0), (0.47, 0.03, 0.0)]

    assert calm(windows) == windows[:1]
    assert spread_of([1.0, 1.0]) == 0
    assert round(spread_of([1.0, 3.0]), 3) == 0.707
