"""HeadRoom: how many slabs may stand, which go first, and that it never over-commits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.daemon.headroom import (
    Grow,
    Hasten,
    HeadroomParams,
    MemorySnapshot,
    Recall,
    ReleaseUnmapped,
    decide,
    default_headroom_bytes,
    free_bytes,
    leasable_slabs,
    move_deadline_s,
    slabs_to_give_back,
    slabs_to_grow,
    smoothed_use_bytes,
    used_by_others_bytes,
)

GIB = 1 << 30
PARAMS = HeadroomParams(slab_bytes=GIB, headroom_bytes=8 * GIB, hysteresis_bytes=GIB, preallocate_slabs=2)


def machine(
    used_gib: float, *, unmapped: int = 0, mapped: int = 0, recalled: int = 0, now_gib: float | None = None
) -> MemorySnapshot:
    """The paper's machine of 64 GiB."""
    return MemorySnapshot(
        total_bytes=64 * GIB,
        used_bytes=used_gib * GIB,
        used_now_bytes=int((used_gib if now_gib is None else now_gib) * GIB),
        unmapped=unmapped,
        mapped=mapped,
        recalled=recalled,
    )


def test_headroom_is_the_papers_8_of_64_gib_by_default() -> None:
    assert default_headroom_bytes(64 * GIB) == 8 * GIB


def test_the_average_starts_at_the_first_sample_and_then_follows_by_beta() -> None:
    first = smoothed_use_bytes(None, 100, 0.2)

    assert first == 100
    assert smoothed_use_bytes(first, 200, 0.2) == pytest.approx(120)


def test_our_own_slabs_are_not_everybody_elses_use() -> None:
    assert used_by_others_bytes(total_bytes=64, available_bytes=20, slabs_bytes=30) == 14
    assert used_by_others_bytes(total_bytes=64, available_bytes=60, slabs_bytes=30) == 0


def test_an_idle_machine_makes_the_slabs_that_are_to_be_ready() -> None:
    assert decide(machine(10), PARAMS) == (Grow(count=2, reason="0 of 2 slabs ready"),)
    assert decide(machine(10, unmapped=2), PARAMS) == ()


def test_unmapped_slabs_go_before_mapped_ones() -> None:
    actions = decide(machine(48, unmapped=2, mapped=9), PARAMS)  # 5 GiB free: 3 slabs short

    assert actions == (
        ReleaseUnmapped(count=2, reason="free memory 5120 MiB below HeadRoom 8192 MiB"),
        Recall(count=1, deadline_s=3.125, reason="free memory 5120 MiB below HeadRoom 8192 MiB"),
    )


def test_slabs_already_on_their_way_back_are_not_recalled_again() -> None:
    assert decide(machine(48, mapped=8, recalled=3), PARAMS) == ()


def test_between_headroom_and_hysteresis_nothing_comes_or_goes() -> None:
    assert decide(machine(54.5, unmapped=0, mapped=1), PARAMS) == ()
    assert decide(machine(54, unmapped=0, mapped=0), PARAMS) == (Grow(count=1, reason="0 of 2 slabs ready"),)


def test_a_sudden_use_of_memory_stops_growth_before_the_average_knows() -> None:
    assert slabs_to_grow(machine(10, now_gib=60), PARAMS) == 0


def test_a_short_peak_recalls_nothing_but_eaten_headroom_does_before_the_average_knows() -> None:
    assert slabs_to_give_back(machine(40, mapped=16, now_gib=43), PARAMS) == 0
    assert slabs_to_give_back(machine(40, mapped=16, now_gib=45), PARAMS) == 5


def test_max_slabs_bounds_what_stands() -> None:
    assert slabs_to_grow(machine(0, mapped=3), replace(PARAMS, max_slabs=5)) == 2
    assert slabs_to_grow(machine(0, mapped=7), replace(PARAMS, max_slabs=5)) == 0


def test_what_is_offered_is_what_is_ready_and_what_could_be_made() -> None:
    assert leasable_slabs(machine(10, unmapped=2, mapped=4), PARAMS) == 2 + 39
    assert leasable_slabs(machine(60, unmapped=2), PARAMS) == 0


def test_time_to_move_shrinks_with_what_is_left_of_headroom() -> None:
    assert move_deadline_s(machine(56), PARAMS) == 5.0
    assert move_deadline_s(machine(60), PARAMS) == 2.5
    assert move_deadline_s(machine(64), PARAMS) == 0.5


def test_stalling_programs_get_a_slab_back_at_once_whatever_is_free() -> None:
    params = replace(PARAMS, psi_full_pct_limit=5)
    calm, stalled = (replace(machine(10, mapped=4), psi_full_pct=pct) for pct in (4.9, 5.1))

    assert slabs_to_give_back(calm, params) == 0
    assert decide(stalled, params) == (Recall(count=1, deadline_s=0.0, reason="memory pressure 5.1 % above 5.0 %"),)
    assert slabs_to_grow(stalled, params) == 0


def test_stalling_programs_end_the_time_to_move_of_slabs_already_recalled() -> None:
    params = replace(PARAMS, psi_full_pct_limit=5)
    stalled = replace(machine(10, mapped=4, recalled=2), psi_full_pct=5.1)

    assert decide(replace(stalled, migrating=2), params) == (Hasten(reason="memory pressure 5.1 % above 5.0 %"),)
    assert decide(replace(stalled, migrating=0), params) == ()


def test_headroom_that_goes_while_slabs_move_ends_their_time_to_move() -> None:
    assert decide(machine(55, mapped=0, recalled=3), PARAMS) == ()
    assert decide(replace(machine(55, recalled=3), migrating=3), PARAMS) == ()
    assert decide(replace(machine(60.5, recalled=3), migrating=3), PARAMS) == (
        Hasten(reason="free memory 512 MiB below HeadRoom 8192 MiB"),
    )


def test_pressure_that_the_kernel_does_not_tell_is_no_pressure() -> None:
    assert decide(machine(10, unmapped=2), replace(PARAMS, psi_full_pct_limit=5)) == ()


def test_huge_pages_set_aside_are_lent_whatever_programs_use() -> None:
    full = replace(machine(60), huge_free=3)

    assert slabs_to_grow(full, PARAMS) == 3
    assert decide(full, PARAMS) == (Grow(count=2, reason="0 of 2 slabs ready"),)


def test_slabs_on_huge_pages_are_never_recalled_for_memory() -> None:
    full = replace(machine(60), huge_mapped=3, huge_unmapped=2)

    assert decide(full, PARAMS) == ()
    assert leasable_slabs(full, PARAMS) == 2


SNAPSHOTS = st.builds(
    MemorySnapshot,
    total_bytes=st.integers(1, 1024 * GIB),
    used_bytes=st.floats(0, 1100 * GIB),
    used_now_bytes=st.integers(0, 1100 * GIB),
    unmapped=st.integers(0, 500),
    mapped=st.integers(0, 500),
    recalled=st.integers(0, 500),
    migrating=st.integers(0, 500),
    huge_unmapped=st.integers(0, 9),
    huge_mapped=st.integers(0, 9),
    psi_full_pct=st.none() | st.floats(0, 100),
)
ANY_PARAMS = st.builds(
    HeadroomParams,
    slab_bytes=st.sampled_from([1 << 21, 1 << 26, GIB]),
    headroom_bytes=st.integers(0, 128 * GIB),
    hysteresis_bytes=st.integers(0, 2 * GIB),
    preallocate_slabs=st.integers(0, 64),
    max_slabs=st.integers(0, 600),
    psi_full_pct_limit=st.sampled_from([0.0, 10.0]),
)


@given(snapshot=SNAPSHOTS, params=ANY_PARAMS)
def test_growing_never_eats_headroom(snapshot: MemorySnapshot, params: HeadroomParams) -> None:
    for action in decide(snapshot, params):
        if isinstance(action, Grow):
            after = replace(snapshot, unmapped=snapshot.unmapped + action.count)
            assert free_bytes(after, params.slab_bytes, snapshot.used_bytes) >= params.headroom_bytes
            assert slabs_to_give_back(after, params) == 0


@given(snapshot=SNAPSHOTS, params=ANY_PARAMS)
def test_after_giving_back_headroom_is_free_or_nothing_is_left(
    snapshot: MemorySnapshot, params: HeadroomParams
) -> None:
    back = slabs_to_give_back(snapshot, params)
    unmapped = max(0, snapshot.unmapped - back)
    mapped = snapshot.mapped - (back - (snapshot.unmapped - unmapped))
    after = replace(snapshot, unmapped=unmapped, mapped=mapped, recalled=0, psi_full_pct=None)

    enough = free_bytes(after, params.slab_bytes, snapshot.used_bytes) >= params.headroom_bytes - 1e-3 * GIB
    assert enough or unmapped + mapped == 0


@given(snapshot=SNAPSHOTS, params=ANY_PARAMS)
def test_it_never_grows_and_gives_back_at_once(snapshot: MemorySnapshot, params: HeadroomParams) -> None:
    actions = decide(snapshot, params)
    kinds = {type(action) for action in actions}

    assert not (Grow in kinds and kinds & {ReleaseUnmapped, Recall, Hasten})
    assert all(isinstance(action, Hasten) or action.count > 0 for action in actions)


@given(snapshot=SNAPSHOTS, params=ANY_PARAMS, more=st.integers(0, 64 * GIB))
def test_more_use_by_others_never_gives_borrowers_more(
    snapshot: MemorySnapshot, params: HeadroomParams, more: int
) -> None:
    busier = replace(snapshot, used_bytes=snapshot.used_bytes + more, used_now_bytes=snapshot.used_now_bytes + more)

    assert slabs_to_grow(busier, params) <= slabs_to_grow(snapshot, params)
    assert slabs_to_give_back(busier, params) >= slabs_to_give_back(snapshot, params)
    assert leasable_slabs(busier, params) <= leasable_slabs(snapshot, params)
    assert move_deadline_s(busier, params) <= move_deadline_s(snapshot, params)
