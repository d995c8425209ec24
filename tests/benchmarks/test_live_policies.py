"""Policies live beside their simulation: what is judged, and what a result file keeps."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.live_policies import (
    Bar,
    Run,
    judge_delays,
    judge_equal,
    judge_gain,
    judge_join,
    judge_lending,
    keep,
    lead_faults,
    main,
    table_of,
    tell,
    with_join,
)
from farside.cli.demo.live.compare import Delays, LiveCompared
from farside.cli.demo.live.halfway import STANDBY, Halfway
from farside.cli.demo.live.rig import Played
from farside.config import ManagerConfig
from farside.config.manager import PartitionRow
from farside.scheduler.manager.compare_decisions import DecisionCount
from farside.scheduler.manager.compare_simulation import Compared, Fidelity


def run(
    jct_s: float, said_s: float, *, policy: str = "qssf", swapped: float = 0.0, recall_s: float = 0.0, guests: int = 3
) -> Run:
    return Run(
        policy=policy, jct_s=jct_s, predicted_jct_s=said_s, wait_s=jct_s - 5, predicted_wait_s=said_s - 5, pairs=10,
        swapped=swapped, decisions=40, different=1, deciding_s=0.01, longest_s=0.2, recovery_s=1.5, starting_s=0.02,
        stopping_s=0.03, guests=guests, recalls=1,
        longest_recall_s=recall_s, late_s=0.0, faults=(),
    )  # fmt: skip


def test_the_median_run_decides_whether_live_equals_simulated() -> None:
    met = judge_equal([run(10, 10.4, swapped=0.01), run(10, 9.7, swapped=0.02), run(10, 20, swapped=0.5)])

    assert [bar.is_met for bar in met] == [True, True]
    assert [bar.figure for bar in met] == pytest.approx([0.04, 0.02])
    assert [bar.is_met for bar in judge_equal([run(10, 11, swapped=0.06)])] == [False, False]


@pytest.mark.parametrize(
    ("of_one_run", "missed"),
    [
        ({}, []),
        ({"deciding_s": 1.1}, [0]),
        ({"longest_s": 1.1}, [1]),
        ({"recovery_s": 4.1}, [2]),
        ({"late_s": 36.0}, [3]),
    ],
)
def test_the_slowest_decisions_and_the_latest_submission_of_all_runs_count(
    of_one_run: dict[str, float], missed: list[int]
) -> None:
    bars = judge_delays([run(10, 10), replace(run(10, 10), **of_one_run)])  # type: ignore[arg-type]

    assert [at for at, bar in enumerate(bars) if not bar.is_met] == missed


def test_where_no_process_is_killed_decisions_never_stop_and_no_bar_is_for_that() -> None:
    killed, joined = judge_delays([run(10, 10)]), judge_delays([run(10, 10)], is_killed=False)

    assert [bar.name for bar in killed if bar not in joined] == ["from the kill until decisions go on, seconds"]
    assert len(joined) == 3


def test_on_the_node_that_joined_some_job_must_start_in_each_run_and_the_rest_is_as_simulated() -> None:
    of_use = replace(run(10, 10), starts_on_joined=1, joined_jct_s=20.0, predicted_joined_jct_s=20.0)
    otherwise = replace(run(10, 11, swapped=0.06), starts_on_joined=1, joined_jct_s=20.0, predicted_joined_jct_s=21.1)

    assert all(bar.is_met for bar in judge_join([of_use, of_use]))
    assert [bar.is_met for bar in judge_join([of_use, replace(of_use, starts_on_joined=0)])] == [
        True, True, False, True,
    ]  # fmt: skip
    assert [bar.is_met for bar in judge_join([otherwise])] == [False, False, True, False]


def test_of_the_partition_that_a_node_joined_only_its_own_jobs_count() -> None:
    rows = [PartitionRow(name="a", nodes="n1"), PartitionRow(name="b", nodes="n2,n3")]
    jobs = tuple(
        Compared(job_id=str(at), gpus=1, jct_s=jct_s, predicted_s=said_s, partition=vc)
        for at, (vc, jct_s, said_s) in enumerate([("a", 5.0, 50.0), ("b", 10.0, 11.0), ("b", 30.0, 33.0)])
    )
    compared = LiveCompared(
        fidelity=Fidelity(jobs=jobs, preemptions=0, predicted_preemptions=0),
        delays=Delays(deciding_s=0.0, starting_s=0.0, stopping_s=0.0, deciding_of_s={}),
        fifo_jct_s=1.0, mean_need_s=1.0, decided=DecisionCount(decisions=3, different=0, elsewhere=0), recalls=(),
        guests=0, leads=1,
    )  # fmt: skip
    played = Played(
        config=ManagerConfig(node="m", partition=tuple(rows)), entries=(), jobs={}, states={}, estimates={},
        killed_s=math.inf, late_s=0.0, joined="n3",
    )  # fmt: skip

    found = with_join(run(10, 10), played, compared)

    assert (found.joined_jct_s, found.predicted_joined_jct_s) == (20.0, 22.0)
    assert found.joined_error == pytest.approx(0.1)
    assert found.starts_on_joined == 0


@pytest.mark.parametrize(
    ("halfway", "leads", "leader", "said"),
    [
        (Halfway.KILL, 2, "manager", []),
        (Halfway.KILL, 1, "manager", ["no other scheduler process took the lead"]),
        (Halfway.JOIN, 1, "manager", []),
        (Halfway.LEADER, 2, STANDBY, []),
        (Halfway.LEADER, 2, "manager", ["the other manager does not lead, but manager"]),
    ],
)
def test_who_led_must_be_who_should_after_what_happened(
    halfway: Halfway, leads: int, leader: str, said: list[str]
) -> None:
    assert lead_faults(halfway, leads, leader) == said


def test_a_run_s_decisions_and_how_late_it_was_are_in_the_table() -> None:
    (row,) = table_of([replace(run(10, 10), late_s=36.0)])["rows"]

    assert row[5] == "1 of 40"
    assert row[-3:] == ["0.20 s", "1.50 s", "36.00 s"]


def test_the_gain_is_what_the_average_falls_by_beside_the_simulated_fall() -> None:
    runs = [run(20, 20, policy="fifo"), run(11.5, 10)]

    *_, gain = judge_gain(runs)

    assert gain.figure == pytest.approx(0.85)
    assert not gain.is_met
    assert judge_gain([run(20, 20, policy="fifo"), run(10.5, 10)])[-1].is_met


def test_an_owner_s_longest_wait_of_all_runs_counts_and_something_must_have_been_lent() -> None:
    assert all(bar.is_met for bar in judge_lending([run(10, 10), run(10, 10, recall_s=4.9)]))
    assert [bar.is_met for bar in judge_lending([run(11, 10), run(11, 10, recall_s=5.1), run(11, 10, guests=0)])] == [
        False, False, False,
    ]  # fmt: skip


def test_a_missed_bar_or_a_fault_is_told_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert not tell([Bar(name="a", figure=1.0, bar=1.0)], [])
    assert tell([Bar(name="a", figure=1.0, bar=0.5)], [])
    assert tell([], ["1 jobs are not done"])
    assert capsys.readouterr().out.count("MISSED") == 2


def test_a_part_that_is_measured_leaves_the_others_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r" / "live.json"
    keep(path, "one", {"table": table_of([run(10, 10)])})
    keep(path, "other", {"a": 2})
    keep(path, "other", {"a": 3})

    found = json.loads(path.read_text())
    assert found["other"] == {"a": 3}
    assert found["one"]["table"]["rows"][0][1:4] == ["10.00 s", "10.00 s", "+0.0 %"]


def test_a_part_whose_log_is_missing_is_one_line_and_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--parts", "philly", "--data", str(tmp_path), "--output", str(tmp_path / "out.json")]) == 1
    assert f"there is no {tmp_path}/cluster/jobs/philly_dev.csv.gz" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "mars"])
    assert "no mars; there are philly, repeating, lending, join, leader" in capsys.readouterr().err
