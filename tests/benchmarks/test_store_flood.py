"""What the benchmark of a flood makes of its turns, and that its attackers say what a manager takes."""

from collections.abc import Sequence

import pytest

from benchmarks.store_flood import Turn, at_share, figures_of
from benchmarks.store_flood_attack import hello, report
from farside.agent import protocol


def turn(latencies_ms: Sequence[float], growth_bytes: int, *, is_attacked: bool) -> Turn:
    return Turn(
        is_attacked=is_attacked, latencies_ms={"show": latencies_ms[::2], "list": latencies_ms[1::2]},
        growth_bytes=growth_bytes, log_bytes=0, done={}, steal=0.0, busy=0.0,
    )  # fmt: skip


def turns(attacked_ms: float, growth_bytes: int) -> list[Turn]:
    """Three pairs; one of each kind is out of line, as on a machine that others use."""
    usual = [1.0] * 97 + [10.0] * 3
    return [
        turn(usual, 1000, is_attacked=False),
        turn([1.0] * 97 + [attacked_ms] * 3, 1000 + growth_bytes, is_attacked=True),
        turn(usual, 2000, is_attacked=False),
        turn([2.0] * 97 + [900.0] * 3, 9_000_000, is_attacked=True),
        turn([3.0] * 97 + [900.0] * 3, 1000, is_attacked=False),
        turn([1.0] * 97 + [attacked_ms] * 3, 1000, is_attacked=True),
    ]


def test_a_ratio_is_that_of_the_medians_of_turns_and_growth_is_without_that_of_others() -> None:
    found = figures_of(turns(12.0, 4_000_000))

    assert (found.alone_p99_ms, found.attacked_p99_ms) == (10.0, 12.0)
    assert found.ratio_p99 == pytest.approx(1.2)
    assert found.growth_bytes == 4_000_000
    assert found.missed == []


def test_a_missed_bar_is_told_in_words() -> None:
    found = figures_of(turns(12.1, 5_000_001))

    assert [line[:30] for line in found.missed] == ["others' p99 is 1.21 times what", "the store grew by 5.0 MB, at m"]


def test_the_value_at_a_share_is_one_of_the_values() -> None:
    assert [at_share([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]


def test_what_the_node_says_fits_into_frames_and_differs_each_time() -> None:
    said = [protocol.encode(hello("n", number)) for number in (0, 1)]
    reports = [protocol.encode(report(0, number)) for number in (1, 2)]

    assert said[0] != said[1]
    assert max(map(len, (*said, *reports))) <= protocol.FRAME_BYTES_MAX
    assert report(0, 1).headroom_bytes != report(0, 2).headroom_bytes
    assert not any(gpu.healthy for gpu in hello("n", 0).gpus)
