"""What the profiler costs: intervals, the share of an iteration, and the part of docs/profiler.md."""

import pytest

from benchmarks.profile_cost import DOCUMENT
from benchmarks.profile_render import HEAD, section
from benchmarks.profile_training import Middle, middle, training
from benchmarks.section import with_section

FIGURE = {"value": 2.0, "low": 1.0, "high": 3.0}
TOLD = {
    "commit": "abc",
    "machine": {"cpu": "a CPU", "cores": 2, "load_before": 0.5},
    "training": {
        "message_ns": FIGURE, "messages": FIGURE, "iteration_us": FIGURE,
        "share": {"value": 0.0002, "low": 0.0001, "high": 0.0003},
    },
    "costs": [
        {
            "case": "ping-pong", "round_us": 60.0, "wall": 0.01, "wall_low": -0.05, "wall_high": 0.05, "cpu": 0.015,
            "idle_cpu": 0.0,
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize(("count", "low", "high"), [(6, 0, 5), (15, 3, 11), (20, 5, 14)])
def test_the_median_lies_between_the_order_statistics_of_the_tables(count: int, low: int, high: int) -> None:
    found = middle([float(one) for one in reversed(range(count))])

    assert (found.low, found.high) == (low, high)
    assert found.value == (count - 1) / 2


def test_fewer_values_than_can_have_an_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="six values"):
        middle([1.0] * 5)


def test_the_share_is_what_messages_take_of_an_iteration_without_it() -> None:
    found = training([100.0] * 6, [(10.0, 101.0)] * 6)

    assert found.share == Middle(value=0.01, low=0.01, high=0.01)


def test_the_interval_of_the_share_has_the_worst_that_can_come_together() -> None:
    found = training([100.0, 200.0] * 3, [(10.0, 1000.0), (20.0, 2000.0)] * 3)

    assert found.share.low == pytest.approx(1 / (2000 - 1))
    assert found.share.high == pytest.approx(4 / (1000 - 4))


def test_the_section_has_the_share_with_its_interval_and_the_rest_of_the_document_stays() -> None:
    made = with_section(f"# Title\n\n{HEAD}\nold figures\n\n## What it does not see\n\ntext\n", HEAD, section(TOLD))

    assert made == f"# Title\n\n{section(TOLD)}\n## What it does not see\n\ntext\n"
    row = next(line for line in made.splitlines() if "of the iteration" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == ["0.020", "0.010", "0.030"]


def test_a_document_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no '## What it costs'"):
        with_section("# Title\n", HEAD, section(TOLD))


def test_the_document_has_the_section() -> None:
    assert HEAD in DOCUMENT.read_text()
