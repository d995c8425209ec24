"""Activity, heat and packing."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.blockdev.mapping.activity import (
    Activity,
    ActivityLaw,
    RegionState,
    SlabView,
    activity_law,
    cold_regions,
    first_activity,
    next_activity,
    next_slab_rates,
    pack,
    wanting_granules,
)

GIB = 1 << 30
MIB = 1 << 20


def law(slab_bytes: int = 8 * MIB, *, hot: float = 20.0, cold: float = 0.0) -> ActivityLaw:
    return activity_law(slab_bytes=slab_bytes, alpha=0.2, hot_pages_per_s_per_gib=hot, cold_pages_per_s_per_gib=cold)


def after(activity: Activity, counters: tuple[int, ...], rule: ActivityLaw, *, times: int = 1) -> Activity:
    for _ in range(times):
        activity = next_activity(activity, counters, rule)
    return activity


def test_the_papers_threshold_stands_for_a_slab_of_a_gibibyte() -> None:
    assert law(GIB).hot_pages_per_s == 20.0


def test_the_threshold_scales_with_the_slab_down_to_its_floor() -> None:
    assert law(256 * MIB).hot_pages_per_s == 5.0
    assert law(2 * MIB).hot_pages_per_s == 1.0


def test_cold_is_at_most_half_of_hot() -> None:
    assert law(GIB, cold=19.0).cold_pages_per_s == 10.0


def test_a_new_device_is_cold_everywhere() -> None:
    activity = first_activity((7,) * 10, law())

    assert activity.rates == (0.0, 0.0, 0.0)
    assert set(activity.states) == {RegionState.COLD}


def test_the_rate_is_the_papers_ewma() -> None:
    rule = law()
    start = first_activity((0,) * 8, rule)

    one = next_activity(start, (0, 0, 0, 0, 100, 0, 0, 0), rule)
    two = next_activity(one, (0, 0, 0, 0, 150, 0, 0, 50), rule)

    assert list(one.rates) == pytest.approx([0.0, 20.0])
    assert list(two.rates) == pytest.approx([0.0, 0.2 * 100 + 0.8 * 20])
    assert two.touched == {4: 50, 7: 50}


def test_counters_wrap_at_32_bits() -> None:
    rule = law()
    start = first_activity((2**32 - 10,), rule)

    assert next_activity(start, (5,), rule).touched == {0: 15}


@given(st.dictionaries(st.integers(0, 4 * 300 + 1), st.integers(1, 2**32 - 1), max_size=8))
def test_a_change_anywhere_on_a_large_device_is_seen(changes: dict[int, int]) -> None:
    rule, before = law(), array("I", range(4 * 300 + 2))  # the last region is half of one
    counters = array("I", before)
    for granule, delta in changes.items():
        counters[granule] = (counters[granule] + delta) & 0xFFFFFFFF

    activity = next_activity(first_activity(before, rule), counters, rule)

    assert activity.touched == changes
    expected = [0.2 * sum(delta for c, delta in changes.items() if c // 4 == number) for number in range(301)]
    assert list(activity.rates) == pytest.approx(expected)


def test_a_late_tick_is_a_rate_all_the_same() -> None:
    rule = law()

    late = next_activity(first_activity((0,), rule), (100,), rule, elapsed_s=2.0)

    assert late.rates[0] == pytest.approx(10.0)


def test_a_region_is_hot_while_its_rate_is_above_the_threshold() -> None:
    rule = law(GIB)
    activity = after(first_activity((0,) * 512, rule), (100, *(0,) * 511), rule)

    assert activity.states == (RegionState.HOT,)
    assert after(activity, tuple(activity.counters), rule).states == (RegionState.COLD,)


def test_with_a_cold_threshold_a_region_stays_hot_in_between() -> None:
    rule = law(GIB, cold=5.0)
    hot = after(first_activity((0,) * 512, rule), (100, *(0,) * 511), rule)

    between = after(hot, tuple(hot.counters), rule)
    cold = after(between, tuple(hot.counters), rule, times=8)

    assert between.states == (RegionState.HOT,)
    assert cold.states == (RegionState.COLD,)
    assert cold_regions(hot, cold) == (0,)


def test_granules_of_a_hot_region_want_an_extent_when_used_or_named() -> None:
    rule = law()
    activity = after(first_activity((0,) * 8, rule), (100, 0, 0, 0, 1, 0, 0, 0), rule)

    wanting = wanting_granules(activity, rule, wanted=frozenset({3, 5}), mapped=frozenset())

    assert wanting == (0, 3)


def test_what_a_broken_disk_refused_wants_an_extent_however_cold_it_is() -> None:
    rule = law()
    activity = after(first_activity((0,) * 8, rule), (100, 0, 0, 0, 1, 0, 0, 0), rule)

    wanting = wanting_granules(activity, rule, wanted=frozenset({3, 5}), mapped=frozenset({3}), is_disk_well=False)

    assert wanting == (0, 5)


def test_a_granule_with_a_mapping_wants_none() -> None:
    rule = law()
    activity = after(first_activity((0,) * 4, rule), (100, 100, 0, 0), rule)

    assert wanting_granules(activity, rule, wanted=frozenset(), mapped=frozenset({0})) == (1,)


def test_the_busiest_region_comes_first() -> None:
    rule = law()
    activity = after(first_activity((0,) * 8, rule), (50, 0, 0, 0, 90, 0, 0, 0), rule)

    assert wanting_granules(activity, rule, wanted=frozenset(), mapped=frozenset()) == (4, 0)


def test_a_slabs_rate_is_that_of_the_granules_on_it() -> None:
    rates = next_slab_rates({1: 10.0, 3: 7.0}, (1, 2), {1: 100, 3: 5}, alpha=0.2, elapsed_s=1.0)

    assert rates == {1: pytest.approx(28.0), 2: 0.0}


def view(slab: int, donor: int, region: int, *free: int) -> SlabView:
    return SlabView(slab=slab, donor=donor, region=region, free=free)


def test_a_granule_goes_to_its_regions_own_slab_first() -> None:
    packing = pack([9], [view(0, 0, 0, 3), view(1, 0, 2, 5, 6)], granules_per_region=4)

    assert [(a.slab, a.extent) for a in packing.assigned] == [(1, 5)]


def test_else_to_the_fullest_slab_with_room() -> None:
    packing = pack([9], [view(0, 0, 0, 1, 2, 3), view(1, 0, 1, 7)], granules_per_region=4)

    assert [(a.slab, a.extent) for a in packing.assigned] == [(1, 7)]


def test_what_finds_no_room_is_named() -> None:
    packing = pack([1, 2, 3], [view(0, 0, 0, 0)], granules_per_region=4)

    assert packing.unmapped == (2, 3)


def test_a_banned_donor_gets_nothing() -> None:
    packing = pack([1], [view(0, 5, 0, 0)], granules_per_region=4, banned_donors={1: frozenset({5})})

    assert packing.unmapped == (1,)


views = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 7), st.sets(st.integers(0, 3))), max_size=6
).map(lambda rows: [view(i, d, r, *sorted(free)) for i, (d, r, free) in enumerate(rows)])  # fmt: skip


@given(st.lists(st.integers(0, 31), unique=True, max_size=20), views, st.dictionaries(
    st.integers(0, 31), st.frozensets(st.integers(0, 3)), max_size=8
))  # fmt: skip
def test_no_extent_is_given_twice_and_everybody_is_accounted_for(
    granules: list[int], slabs: list[SlabView], banned: dict[int, frozenset[int]]
) -> None:
    packing = pack(granules, slabs, granules_per_region=4, banned_donors=banned)

    given_out = [(a.slab, a.extent) for a in packing.assigned]
    donors = {v.slab: v.donor for v in slabs}
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= {(v.slab, extent) for v in slabs for extent in v.free}
    assert sorted([*(a.granule for a in packing.assigned), *packing.unmapped]) == sorted(granules)
    assert all(donors[a.slab] not in banned.get(a.granule, frozenset()) for a in packing.assigned)


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4), st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_more_activity_never_makes_a_region_colder(low: list[int], more: list[int]) -> None:
    rule = law()
    start = first_activity((0,) * 4, rule)

    quiet = next_activity(start, tuple(low), rule)
    busy = next_activity(start, tuple(a + b for a, b in zip(low, more, strict=True)), rule)

    assert busy.rates[0] >= quiet.rates[0]
    assert (quiet.states[0], busy.states[0]) != (RegionState.HOT, RegionState.COLD)
