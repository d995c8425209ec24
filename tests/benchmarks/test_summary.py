"""Medians, spreads, ratios, targets and the document made of them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.plan import alternate, full_plan, quick_plan
from benchmarks.render import render, table
from benchmarks.result import Machine, Point, RecallShare, Run, Rw, Sample, SlabTiming, load_run, save_run
from benchmarks.summary import middle, p99_ratio, percentile, ratio, summarise
from benchmarks.target import verdicts

READ_ONE = Point(rw=Rw.READ, block_bytes=4096, depth=1, connections=1)


def sample(server: str, iops: float, *, p99_us: float = 50.0, p50_us: float = 20.0, repetition: int = 0) -> Sample:
    return Sample(
        server=server,
        point=READ_ONE,
        repetition=repetition,
        iops=iops,
        bytes_per_s=iops * 4096,
        mean_us=p50_us,
        p50_us=p50_us,
        p99_us=p99_us,
        p999_us=p99_us,
        max_us=p99_us,
        failed=0,
        misread=0,
        cpu_us_per_request={"client": 5.0, "server": 7.0},
    )


def run_of(*samples: Sample, recall: RecallShare | None = None) -> Run:
    machine = Machine(cpu="a cpu", cores=2, memory_gib=8, kernel="6", system="Debian", load_before=0, versions={})
    timing = SlabTiming(phase="map", median_us=80, least_us=70, most_us=90, repetitions=5, paper_us=54250)
    return Run(
        date="2026-11-21",
        command="python -m benchmarks",
        commit="abc",
        machine=machine,
        seconds=1,
        repetitions=3,
        device_bytes=256 << 20,
        samples=samples,
        timings=(timing,),
        recall=recall,
    )


def test_a_percentile_lies_between_its_neighbours() -> None:
    values = [10.0, 20.0, 30.0, 40.0, 50.0]

    assert percentile(values, 0) == 10
    assert percentile(values, 0.5) == 30
    assert percentile(values, 0.625) == 35
    assert percentile(values, 1) == 50


def test_the_middle_is_the_median_and_the_spread_is_in_percent_of_it() -> None:
    found = middle([90, 100, 120])

    assert (found.median, found.least, found.most) == (100, 90, 120)
    assert found.spread_pct == pytest.approx(30)


def test_ratios_compare_medians_and_a_shorter_tail_is_above_one() -> None:
    summaries = summarise(
        [sample("ours", iops, p99_us=25, repetition=i) for i, iops in enumerate((10, 300, 200))]
        + [sample("theirs", iops, p99_us=50, repetition=i) for i, iops in enumerate((100, 90, 110))]
    )

    assert ratio(summaries, "ours", "theirs", READ_ONE) == 2
    assert p99_ratio(summaries, "ours", "theirs", READ_ONE) == 2
    assert ratio(summaries, "ours", "nobody", READ_ONE) is None


def test_every_server_is_measured_at_every_point_in_a_changing_order() -> None:
    turns = list(alternate(["a", "b", "c"], [READ_ONE], range(3)))

    assert len(turns) == len(set(turns)) == 9
    orders = {tuple(server for r, _, server in turns if r == repetition) for repetition in range(3)}
    assert len(orders) == 3


def test_the_full_plan_holds_the_loads_that_were_asked_for() -> None:
    plan = full_plan()

    shapes = {(p.rw, p.depth, p.connections) for p in plan.points if p.block_bytes == 4096}
    assert {(rw, d, c) for rw in Rw for d in (1, 32) for c in (1, 4)} <= shapes
    assert {p.block_bytes for p in plan.points} == {4096, 16384, 65536, 262144, 1048576}
    assert plan.repetitions >= 5
    assert len(quick_plan().points) < len(plan.points)


def test_a_target_that_is_missed_says_where_and_by_how_much() -> None:
    run = run_of(sample("farside-shm", 90), sample("nbdkit-memory", 100), sample("floor", 120, p50_us=12))

    ahead, _, added, *_ = verdicts(run)

    assert ahead.reached is False
    assert "4k read d1 c1 by 10 % IOPS" in ahead.measured
    assert added.reached is True
    assert "+8.0 us" in added.measured


@pytest.mark.parametrize(("cpu_us", "p50_us", "reached"), [(14.9, 21.9, [True, True]), (15.1, 22.1, [False, False])])
def test_encryption_is_judged_by_the_same_requests_in_the_clear(
    cpu_us: float, p50_us: float, reached: list[bool]
) -> None:
    """[H1] Clear pages take 12 us of processors a request here, and 20 us at depth 1."""
    processors = {"client": 5.0, "server": cpu_us - 5.0}
    sealed = replace(sample("farside-tcp", 100, p50_us=p50_us), cpu_us_per_request=processors)

    told = verdicts(run_of(sealed, sample("farside-tcp-clear", 100)))
    alone = verdicts(run_of(sealed))

    assert [one.reached for one in told if one.target.startswith("encryption")] == reached
    assert [one.reached for one in alone if one.target.startswith("encryption")] == [None, None]


def test_a_recall_is_judged_by_the_share_that_stayed_remote() -> None:
    enough = run_of(recall=RecallShare(deadline_s=5, live_pages=1000, remote_pages=960, took_s=1))
    short = run_of(recall=RecallShare(deadline_s=5, live_pages=1000, remote_pages=940, took_s=1))

    assert [v.reached for v in verdicts(enough) if "recalled" in v.target] == [True]
    assert [v.reached for v in verdicts(short) if "recalled" in v.target] == [False]


def test_the_document_names_machine_command_targets_and_figures() -> None:
    text = render(run_of(sample("farside-shm", 90000), sample("nbdkit-memory", 60000)), source="results/full.json")

    for expected in ("a cpu", "python -m benchmarks", "results/full.json", "1.50", "Reached", "54250", "5.0 + 7.0"):
        assert expected in text


def test_a_table_keeps_its_columns_apart() -> None:
    text = table(("load", "ours"), [("a", "1"), ("longer", "22")])

    assert text.splitlines() == ["| load   | ours |", "|--------|-----:|", "| a      |    1 |", "| longer |   22 |"]


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    run = run_of(sample("farside-shm", 1.5))

    save_run(run, tmp_path / "run.json")

    assert load_run(tmp_path / "run.json") == run
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(msgspec.ValidationError):
        load_run(tmp_path / "bad.json")


def test_encryption_of_single_reads_is_judged_within_repetitions() -> None:
    clear = [sample("farside-tcp-clear", 1, p50_us=us, repetition=i) for i, us in enumerate((50, 100, 70))]
    ours = [sample("farside-tcp", 1, p50_us=us, repetition=i) for i, us in enumerate((54, 104, 84))]

    (verdict,) = (one for one in verdicts(run_of(*clear, *ours)) if "reads at depth 1" in one.target)
    (slow,) = (one for one in verdicts(run_of(*clear[:1], *ours[2:], *clear[2:])) if "reads at depth 1" in one.target)

    assert verdict.reached is True
    assert verdict.measured.startswith("1.08 times, half of 3 repetitions 1.04 to 1.20 (")
    assert slow.reached is False
    assert slow.measured.startswith("1.20 times, half of 1 repetitions 1.20 to 1.20 (")
