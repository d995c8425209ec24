"""Tables of chapter III and of Helios: ours beside the papers', with the real traces and without them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import (
    helios_philly,
    helios_preemption,
    policy_runs,
    reproduce,
    tiresias_dimensions,
    tiresias_example,
    tiresias_queueing,
)
from benchmarks.figure import Figure, Table, as_text
from benchmarks.policy_runs import Play, outcomes, the_testbed
from tests.support.traces import CLUSTER_DATA

SCHEDULING = (
    "two-dimensional", "dimensions", "testbed", "queueing", "fidelity", "placement-gain", "simulation",
    "sensitivity-las", "sensitivity-gittins", "helios-philly", "helios-preemption",
)  # fmt: skip


def column(table: Table, title: str) -> list[str]:
    return [row[table.header.index(title)] for row in table.rows]


def paper_columns(figure: Figure) -> Iterator[str]:
    for table in figure.tables:
        for row in table.rows:
            yield from (cell for cell, title in zip(row, table.header, strict=True) if title == "paper")


def test_every_table_of_the_scheduler_has_a_name_to_ask_for_it() -> None:
    assert set(SCHEDULING) <= set(reproduce.FIGURES)


def test_the_example_of_three_jobs_ends_as_it_does_by_hand() -> None:
    table = tiresias_example.figure().tables[0]

    assert column(table, "average") == ["9.33", "11.67", "9.33", "10.00"]
    assert column(table, "paper") == ["9.3", "11.7", "10", "-"]


def test_a_table_without_the_real_traces_says_what_is_skipped(tmp_path: Path) -> None:
    figure = tiresias_dimensions.figure(seeds=(1,), data=tmp_path)

    assert len(figure.tables) == 1
    assert list(paper_columns(figure)) == ["1.52", "1.20", "3.45", "1.03", "1.01", "1.55"]
    assert f"skipped: there is no {tmp_path}" in as_text(figure)


@pytest.mark.parametrize("make", [helios_philly.figure, helios_preemption.figure])
def test_a_figure_that_only_rests_on_real_traces_says_so_too(make: Callable[..., Figure], tmp_path: Path) -> None:
    figure = make(data=tmp_path)

    assert figure.tables == ()
    assert "are skipped" in as_text(figure)


@pytest.mark.long
def test_helios_results_stand_beside_the_published_ones() -> None:
    if not (CLUSTER_DATA / "expected.json").exists():
        pytest.skip("no real traces on this machine")

    figure = helios_philly.figure(data=CLUSTER_DATA.parent)

    for table in figure.tables:
        for ours, paper in zip(column(table, "average JCT s")[:3], column(table, "paper")[:3], strict=True):
            assert float(ours) == pytest.approx(float(paper), abs=2)


@pytest.mark.long
def test_srtf_by_count_meets_the_published_averages_and_is_never_the_better_one() -> None:
    if not (CLUSTER_DATA / "expected.json").exists():
        pytest.skip("no real traces on this machine")

    published, busy, _ = helios_preemption.figure(data=CLUSTER_DATA.parent).tables

    rows = zip(column(published, ""), column(published, "average JCT s"), column(published, "paper"), strict=True)
    for label, ours, paper in rows:
        assert float(ours) == pytest.approx(float(paper), abs=1 if label.endswith("by count") else 2)
    assert [column(busy, "")[at] for at, share in enumerate(column(busy, "of it")) if float(share) > 1] == []


@pytest.mark.long
def test_queueing_delays_are_told_of_all_jobs_and_of_gangs() -> None:
    figure = tiresias_queueing.figure(seeds=(1,))

    assert [table.caption for table in figure.tables] == ["All jobs", "Jobs of several GPUs"]
    yarn, *others = (float(cell) for cell in column(figure.tables[0], "average"))
    assert all(yarn > other for other in others)


@pytest.mark.long
def test_a_draw_is_the_same_each_time_and_another_seed_another_one() -> None:
    play = Play(label="LAS", policy="las", placement="count")
    once, again, other = (outcomes(the_testbed((seed,)).scenes[0], [play])[0].digest for seed in (1, 1, 2))

    assert once == again != other


def test_real_traces_are_looked_for_where_the_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARSIDE_DATA", str(tmp_path / "environment"))

    assert policy_runs.data_folder(tmp_path) == tmp_path
    assert policy_runs.data_folder(None) == tmp_path / "environment"

    monkeypatch.delenv("FARSIDE_DATA")

    assert policy_runs.data_folder(None).parts[-2:] == ("shared", "data")


def test_medians_of_draws_come_with_their_span() -> None:
    assert policy_runs.over([3.0, 1.0, 2.0]) == "2.00 (1.00-3.00)"
    assert policy_runs.over([3.0], ".0f") == "3"
