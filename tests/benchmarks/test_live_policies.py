"""Policies live beside their simulation: what is judged, and what a result file keeps."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.live_policies import (
    Bar,
    judge_delays,
    judge_equal,
    judge_gain,
    judge_join,
    judge_lending,
    keep,
    lead_faults,
    main,
    tell,
    with_join,
)
from benchmarks.live_run import Run, table_of, words_of
from farside.cli.demo.live.compare import Delays, LiveCompared, leaders_around
from farside.cli.demo.live.halfway import FIRST, STANDBY, Halfway
from farside.cli.demo.live.rig import Played
from farside.config import ManagerConfig
from farside.config.manager import PartitionRow
from farside.scheduler.manager.compare_decisions import DecisionCount
from farside.scheduler.manager.compare_simulation import Compared, Fidelity
from farside.scheduler.manager.model.event import Entry, SchedulerTookLead
from tests.live.world import World, rules


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


def test_a_kill_in_any_run_after_which_nothing_was_decided_is_no_fast_recovery() -> None:
    runs = [run(10, 10), replace(run(10, 10), recovery_s=0.0)]

    (recovery,) = (bar for bar in judge_delays(runs) if bar.name.startswith("from the kill"))

    assert (recovery.figure, recovery.is_met, recovery.said) == (None, False, "none")


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
        for at, (vc, jct_s, said_s) in enumerate([("b", 10.0, 11.0), ("b", 30.0, 33.0), ("a", 5.0, 50.0)], 1)
    )
    compared = LiveCompared(
        fidelity=Fidelity(jobs=jobs, preemptions=0, predicted_preemptions=0),
        delays=Delays(deciding_s=0.0, starting_s=0.0, stopping_s=0.0, deciding_of_s={}),
        fifo_jct_s=1.0, mean_need_s=1.0, decided=DecisionCount(decisions=3, different=0, elsewhere=0), recalls=(),
        guests=0, leaders=(FIRST, ""),
    )  # fmt: skip
    world = World(rules(), nodes=0)
    world.join("n2")
    for _ in range(3):
        world.submit(4)  # the first has the node, and the others wait
    world.join("n3")
    played = Played(
        config=ManagerConfig(node="m", partition=tuple(rows)), entries=tuple(world.log), jobs={}, states={},
        estimates={}, killed_s=math.inf, late_s=0.0, joined="n3",
    )  # fmt: skip

    found = with_join(run(10, 10), played, compared)

    assert (found.joined_jct_s, found.predicted_joined_jct_s) == (20.0, 22.0)
    assert found.joined_error == pytest.approx(0.1)
    assert found.starts_on_joined == 1
    # Of the two jobs that wait one is of the other partition.
    assert (found.joined_partition, found.waiting_when_joined) == ("b", 1)


NOBODY_LED = "no scheduler process took the lead after the kill"
DUE = "in place of manager and then standby"


@pytest.mark.parametrize(
    ("halfway", "leads", "said"),
    [
        pytest.param(Halfway.KILL, [(1, FIRST), (5, FIRST)], [], id="the next process led"),
        pytest.param(Halfway.KILL, [(1, FIRST)], [NOBODY_LED], id="no next process led"),
        pytest.param(Halfway.KILL, [(1, FIRST), (2, FIRST)], [NOBODY_LED], id="the next process led before"),
        pytest.param(Halfway.JOIN, [(1, FIRST)], [], id="nothing was killed"),
        pytest.param(Halfway.LEADER, [(1, FIRST), (5, STANDBY)], [], id="the standby led next"),
        pytest.param(Halfway.LEADER, [(1, FIRST), (5, STANDBY), (9, FIRST)], [], id="the first one led again later"),
        pytest.param(Halfway.LEADER, [(1, FIRST), (2, STANDBY)], [NOBODY_LED], id="the standby led before"),
        pytest.param(Halfway.LEADER, [(1, FIRST)], [NOBODY_LED], id="nobody led next"),
        pytest.param(
            Halfway.LEADER, [(1, FIRST), (5, FIRST), (6, STANDBY)],
            [f"manager led before the kill, and manager after it, {DUE}"], id="the first one led next",
        ),
        pytest.param(
            Halfway.LEADER, [(1, STANDBY), (5, STANDBY)],
            [f"standby led before the kill, and standby after it, {DUE}"], id="the standby led before and after",
        ),
    ],
)  # fmt: skip
def test_the_first_manager_must_lead_until_the_kill_and_whoever_is_due_after_it(
    halfway: Halfway, leads: list[tuple[int, str]], said: list[str]
) -> None:
    entries = [
        Entry(
            seq=at, at_s=float(at), generation=at, cause="test",
            event=SchedulerTookLead(generation=at, holder=f"{node}:{at}"),
        )
        for at, node in leads
    ]  # fmt: skip

    assert lead_faults(halfway, leaders_around(entries, 4.0)) == said


def test_a_run_s_decisions_and_how_late_it_was_are_in_the_table() -> None:
    (row,) = table_of([replace(run(10, 10), late_s=36.0)])["rows"]

    assert row[5] == "1 of 40"
    assert row[-3:] == ["0.20 s", "1.50 s", "36.00 s"]
    assert "decided again 1.50 s after the kill" in words_of(run(10, 10))


def test_what_did_not_happen_on_a_day_has_no_figure() -> None:
    quiet = replace(run(10, 10), recovery_s=0.0, recalls=0)
    joined = replace(
        quiet, joined_partition="b", waiting_when_joined=4, starts_on_joined=7, joined_jct_s=20.0,
        predicted_joined_jct_s=21.0,
    )  # fmt: skip

    assert table_of([quiet])["rows"][0][-2] == "-"
    assert not any(word in words_of(quiet) for word in ("kill", "owner", "joined"))
    assert "4 jobs waited when a node joined b, 7 starts on it, average JCT there 20.00 s" in words_of(joined)
    assert "kill" not in words_of(joined)


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
    assert tell([Bar(name="a", figure=None, bar=0.5)], [])
    assert tell([], ["1 jobs are not done"])
    assert capsys.readouterr().out.count("MISSED") == 3


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
