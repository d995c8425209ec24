"""Aggregation beside its peers: tensors and buckets, what follows from samples, and a short run of ours alone."""

import csv
import sys
from pathlib import Path

import pytest

from benchmarks.aggregation.__main__ import main
from benchmarks.aggregation.group import Farside
from benchmarks.aggregation.judge import Sample, bars_table, busy_s, judged, other_share, spread
from benchmarks.aggregation.models import FLOAT_BYTES, MIB, alexnet, bert_base, chunks_of, ddp_buckets
from benchmarks.aggregation.moving import MovedJob, extra_bar_s
from benchmarks.aggregation.plan import GLOO, PS_LITE, TCP, Bar, Workload, in_turn
from benchmarks.aggregation.sharing import begun_after
from benchmarks.aggregation.training import median_step_s
from benchmarks.policy_runs import data_folder

BAR = Bar(ours=TCP, peer=GLOO, workload="16 MB", speed=0.4, cpu_bar=2.5)


def sample(system: str, at: int, step_s: float, cpu_s: float = 1.0, other: float = 0.0) -> Sample:
    return Sample(
        round=at, workload="16 MB", system=system, size_bytes=16 * MIB, step_s=step_s, cpu_s=cpu_s, other_share=other
    )


@pytest.mark.parametrize(("name", "counts"), [("alexnet", alexnet()), ("bert-base", bert_base())])
def test_models_have_the_tensors_of_the_published_lists(name: str, counts: tuple[int, ...]) -> None:
    path = data_folder(None) / "autops" / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    with path.open() as file:
        listed = [int(row["bytes"]) for row in csv.DictReader(file)]

    assert [count * FLOAT_BYTES for count in counts] == listed


def test_chunks_have_each_element_once_and_small_tensors_are_joined() -> None:
    counts = bert_base()
    chunks = chunks_of(counts)

    pieces = sorted(piece for chunk in chunks for piece in chunk)
    assert len(chunks) == 1677  # as many as the design says
    assert max(sum(piece[2] for piece in chunk) for chunk in chunks) * FLOAT_BYTES == 256 << 10
    for tensor, count in enumerate(counts):
        mine = [(first, length) for number, first, length in pieces if number == tensor]
        ends = [0, *(first + length for first, length in mine)]
        assert [first for first, _ in mine] == ends[:-1]
        assert ends[-1] == count


def test_a_joined_chunk_is_whole_when_gradients_have_come_down_to_its_place() -> None:
    counts = (10, 100_000, 10, 200_000, 20_000)

    assert [[piece[0] for piece in chunk] for chunk in chunks_of(counts)] == [[0, 2], [1], [1], [3], [3], [3], [3], [4]]


def test_buckets_are_filled_in_reverse_and_the_first_is_small() -> None:
    mib = MIB // FLOAT_BYTES

    assert ddp_buckets([10 * mib, 20 * mib, 2 * mib, mib // 2, mib]) == [[4], [3, 2, 1, 0]]
    assert ddp_buckets([30 * mib, mib]) == [[1], [0]]
    assert sorted(tensor for bucket in ddp_buckets(bert_base()) for tensor in bucket) == list(range(199))


def test_a_ratio_is_taken_within_a_round() -> None:
    # The machine's speed drifts threefold; in each round ours takes twice as long.
    samples = [sample(TCP, at, 2.0 * drift, cpu_s=3.0) for at, drift in enumerate((1, 2, 3))]
    samples += [sample(GLOO, at, 1.0 * drift) for at, drift in enumerate((1, 2, 3))]

    found = judged(samples, BAR)

    assert found
    assert (found.speed.low, found.speed.median, found.speed.high) == (0.5, 0.5, 0.5)
    assert found.cpu.median == 3.0


def test_a_round_that_one_of_them_lacks_does_not_count() -> None:
    samples = [sample(TCP, 0, 1.0), sample(TCP, 1, 100.0), sample(GLOO, 0, 1.0)]

    found = judged(samples, BAR)

    assert found
    assert found.speed == spread([1.0])
    assert judged(samples, Bar(ours=TCP, peer=PS_LITE, workload="16 MB", speed=1.0)) is None


@pytest.mark.parametrize(
    ("ours_s", "cpu_s", "other", "is_met"),
    [
        (2.0, 2.0, 0.1, True),
        (3.0, 2.0, 0.1, False),  # too slow
        (2.0, 3.0, 0.1, False),  # fast enough, and too dear
        (3.0, 2.0, 0.6, True),  # on a busy machine CPU time alone decides
        (2.0, 3.0, 0.6, False),
    ],
)
def test_speed_decides_on_a_quiet_machine_and_cpu_time_on_a_busy_one(
    ours_s: float, cpu_s: float, other: float, is_met: bool
) -> None:
    found = judged([sample(TCP, 0, ours_s, cpu_s, other), sample(GLOO, 0, 1.0, 1.0, other)], BAR)

    assert found
    assert found.is_met is is_met


def test_a_table_says_what_is_met_and_by_which_judge() -> None:
    samples = [sample(TCP, 0, 2.0, 2.0, 0.6), sample(GLOO, 0, 1.0, 1.0, 0.6)]

    table = bars_table(samples, [BAR])

    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["judge"], row["met"], row["other work"]) == ("CPU", "yes", "60%")
    assert row["speed"] == "0.50 (0.50 to 0.50)"


def test_other_work_is_what_the_processors_did_beside_the_measured_processes() -> None:
    before = busy_s("cpu  100 0 100 1000 50 0 0 0 0 0\ncpu0 1 2 3\n", ticks_per_s=100)
    after = busy_s("cpu  200 10 130 1100 50 5 5 50 0 0\n", ticks_per_s=100)

    assert after - before == pytest.approx(2.0)
    assert other_share(after - before, ours_s=1.0, wall_s=1.0, cores=2) == pytest.approx(0.5)
    assert other_share(1.0, ours_s=1.5, wall_s=1.0, cores=2) == 0


def test_each_system_has_each_turn() -> None:
    turns = [in_turn(["a", "b", "c"], at) for at in range(6)]

    assert {tuple(sorted(turn)) for turn in turns} == {("a", "b", "c")}
    assert [sum(turn[place] == "a" for turn in turns) for place in range(3)] == [2, 2, 2]


def test_the_slowest_member_counts_and_first_iterations_do_not() -> None:
    assert median_step_s([[9.0, 9.0, 1.0, 1.0, 2.0], [9.0, 9.0, 3.0, 3.0, 3.0]]) == 3.0


def test_iterations_that_began_before_a_kill_do_not_show_what_it_did() -> None:
    steps_s = [1.0, 1.0, 1.0, 2.0, 4.0]

    assert begun_after(steps_s, 2.5) == [2.0, 4.0]
    assert begun_after(steps_s, 0.0) == [1.0, 2.0, 4.0]  # never the first two


def test_an_iteration_may_take_50_ms_or_a_quarter_more_while_everything_moves() -> None:
    assert extra_bar_s([0.1, 0.1, 0.1]) == 0.05
    assert extra_bar_s([0.4, 0.2, 0.6]) == pytest.approx(0.1)


def test_a_job_trains_while_its_chunks_move_and_move_back(tmp_path: Path) -> None:
    ours = Farside(sys.executable, tmp_path, aggregators=2)
    try:
        job = MovedJob(ours, Workload(name="tiny", counts=(100_000, 10)), compute_s=0.03)
        for _ in range(2):
            job.begin()
            job.move()
            assert job.longest_s() > 0.03
    finally:
        ours.close()


def test_a_short_run_of_ours_alone_ends_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--peers", "none", "--rounds", "1"]) == 0

    told = capsys.readouterr().out
    assert "CPU seconds of all processes a GB" in told
    assert told.count("shm registered") >= 3


def test_a_peer_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "horovod"])

    assert "there are gloo, ps-lite" in capsys.readouterr().err
