"""How many damaged copies a donor may give before it is left out [H1]."""

from hypothesis import given
from hypothesis import strategies as st

from farside.blockdev.donor.trust import DAMAGED_MAX, WINDOW_S, Trust


@given(st.lists(st.floats(0.0, 3 * WINDOW_S), max_size=30))
def test_a_donor_is_left_out_when_more_than_three_fall_into_one_hour(moments_s: list[float]) -> None:
    trust = Trust()
    moments_s.sort()
    for at, now_s in enumerate(moments_s):
        lately = [moment_s for moment_s in moments_s[: at + 1] if now_s - moment_s < WINDOW_S]
        assert trust.found("d1", now_s) == (len(lately) > DAMAGED_MAX)


def test_each_donor_counts_by_itself_and_begins_anew_when_it_is_forgiven() -> None:
    trust = Trust()
    assert [trust.found("d1", float(at)) for at in range(4)] == [False, False, False, True]
    assert not trust.found("d2", 4.0)

    trust.forgive("d1")

    assert not trust.found("d1", 5.0)
