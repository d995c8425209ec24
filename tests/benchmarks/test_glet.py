"""The workloads of glet's figures, and how its tables are made."""

from pathlib import Path

import pytest

from benchmarks import glet_interference, glet_schedulable, glet_throughput, glet_waves
from benchmarks.glet_schedulable import FEWEST, GLET, IDEAL, SBP, turned, turned_by_a_gpu
from benchmarks.glet_tables import all_scenarios, applications
from tests.sharing.drawn import GLET_DATA, needs_tables, shared_tables

DATA = GLET_DATA.parent


def test_scenarios_are_all_but_the_one_without_requests() -> None:
    assert sum(1 for _ in all_scenarios(tuple("abcdefghi"))) == 19_682


def test_neighbours_that_a_lower_rate_makes_impossible_are_counted() -> None:
    scenarios = list(all_scenarios(("a", "b")))
    yes = [rates != {"a": 100.0, "b": 100.0} for rates in scenarios]

    # From (200, 100) and (100, 200) one step down leads to the one that is not scheduled. Those that lead to nobody
    # asking for anything are no scenarios.
    assert turned(scenarios, yes) == (2, 8)


def test_scenarios_that_a_gpu_more_makes_impossible_are_counted() -> None:
    verdicts = {3: [False, True, True, False], 4: [True, False, True, False], 5: [True, True, False, True]}

    # The second from 3 to 4, the third from 4 to 5; four are yes on 3 or on 4.
    assert turned_by_a_gpu(verdicts) == (2, 4)


def test_the_second_wave_is_higher_and_both_end_where_they_began() -> None:
    tops = [max(glet_waves.rate_at(at) for at in range(*span)) for span in ((0, 1200), (1400, 3200))]

    assert tops == pytest.approx([glet_waves.FIRST_TOP, glet_waves.SECOND_TOP], rel=1e-3)
    for at_s in (0, 1199.9, 1300, 1400, 3199.9):
        assert glet_waves.rate_at(at_s) == pytest.approx(glet_waves.BOTTOM, rel=1e-3)


def test_without_the_tables_a_figure_says_that_it_is_skipped(tmp_path: Path) -> None:
    for figure in (
        glet_schedulable.figure(tmp_path),
        glet_throughput.figure(tmp_path, seconds=1.0, seeds=(1,)),
        glet_waves.figure(tmp_path),
        glet_interference.latency(tmp_path),
        glet_interference.interference(tmp_path, seeds=(1,)),
    ):
        assert figure.tables == ()
        assert "skipped" in figure.notes[0]


@needs_tables
def test_a_sample_of_scenarios_is_counted_and_no_plan_is_unsound_by_its_own_claim() -> None:
    figure = glet_schedulable.figure(DATA, every=900)
    rows = {row[0]: row for row in figure.tables[0].rows}

    assert {row[2] for row in rows.values()} == {"0"}
    assert int(rows[SBP][1]) <= int(rows[GLET][1]) <= int(rows[IDEAL][1])
    assert rows[GLET][3] == rows[IDEAL][3] == "0.0 %"
    bars = {row[0]: row for row in figure.tables[1].rows}
    assert bars["glet+int: a GPU more turns yes into no, 3 to 5 GPUs"][1].startswith("0 of ")
    times = [row for name, row in bars.items() if name.startswith("CPU ms")]
    assert [row[2] for row in times] == ["at most 2", "at most 20"] * 2
    decided = {row[0]: row[1:3] for row in figure.tables[2].rows}
    repeated, new = decided[FEWEST], decided[f"{FEWEST}: rates that come for the first time"]
    assert [row[1] for row in times] == [*repeated, *new]
    assert [row[0] for row in figure.tables[2].rows][-1] == f"{FEWEST}: 50 models, 64 GPUs"


@needs_tables
def test_rates_of_many_models_may_fit_on_all_gpus_and_are_equal_each_time() -> None:
    sizes, draws = glet_schedulable.large(shared_tables(), 5)

    assert len(sizes.models) == 50
    assert all(0 < glet_schedulable.gpus_at_best(sizes, rates) <= glet_schedulable.LARGE_GPUS for rates in draws)
    assert draws == glet_schedulable.large(shared_tables(), 5)[1]


@needs_tables
def test_a_game_has_six_lenets_whose_interference_is_that_of_one() -> None:
    found = shared_tables()
    one = glet_throughput.case(found, applications(found)["game"])

    assert len(one.models) == 7
    pressure = one.device.interference.pressure(40, [("lenet-3", 4)])
    assert pressure == found.device.interference.pressure(40, [("lenet", 4)])
    assert one.plan("glet+int", 50.0)[0] is not None
