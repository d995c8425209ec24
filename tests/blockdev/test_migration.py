"""What moves where when a donor wants its memory back."""

from hypothesis import given
from hypothesis import strategies as st

from farside.blockdev.mapping.activity import SlabView
from farside.blockdev.mapping.migration import Recall, Resident, Why, plan_recall


def resident(
    granule: int, *, pages: int = 512, activity: float = 1.0, others: frozenset[int] = frozenset()
) -> Resident:
    return Resident(granule=granule, slab=0, live_pages=pages, activity=activity, other_donors=others)


def recall(*residents: Resident, deadline_s: float = 5.0) -> Recall:
    return Recall(donor=0, slabs=frozenset({0}), deadline_s=deadline_s, residents=residents)


def view(slab: int, donor: int, *free: int) -> SlabView:
    return SlabView(slab=slab, donor=donor, region=0, free=free)


def test_all_granules_move_where_there_is_room_and_time() -> None:
    plan = plan_recall(recall(resident(1), resident(2)), [view(5, 1, 0, 1, 2)], granules_per_region=4)

    assert sorted(a.granule for a in plan.moves) == [1, 2]
    assert plan.falls == ()


def test_nothing_moves_to_the_donor_that_asks() -> None:
    plan = plan_recall(recall(resident(1)), [view(5, 0, 0, 1)], granules_per_region=4)

    assert plan.moves == ()
    assert plan.wanting == (1,)


def test_the_busiest_granules_get_the_room_there_is() -> None:
    plan = plan_recall(
        recall(resident(1, activity=1.0), resident(2, activity=9.0)), [view(5, 1, 0)], granules_per_region=4
    )  # fmt: skip

    assert [a.granule for a in plan.moves] == [2]
    assert [(f.granule, f.why) for f in plan.falls] == [(1, Why.NO_ROOM)]


def test_what_can_not_be_copied_in_time_falls() -> None:
    plan = plan_recall(
        recall(resident(1), resident(2), deadline_s=0.01), [view(5, 1, 0, 1)], granules_per_region=4, pages_per_s=60_000
    )

    assert len(plan.moves) == 1
    assert [f.why for f in plan.falls] == [Why.NO_TIME]


def test_empty_granules_take_no_room() -> None:
    plan = plan_recall(recall(resident(1, pages=0)), [view(5, 1, 0)], granules_per_region=4)

    assert plan.moves == ()
    assert [f.why for f in plan.falls] == [Why.EMPTY]


def test_a_replica_does_not_join_its_twin() -> None:
    plan = plan_recall(
        recall(resident(1, others=frozenset({1}))), [view(5, 1, 0), view(6, 2, 3)], granules_per_region=4
    )  # fmt: skip

    assert [(a.slab, a.extent) for a in plan.moves] == [(6, 3)]


residents = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 512), st.floats(0, 100), st.frozensets(st.integers(1, 3), max_size=2)),
    max_size=12,
    unique_by=lambda row: row[0],
).map(lambda rows: [resident(c, pages=p, activity=a, others=o) for c, p, a, o in rows])
slabs = st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 3))), max_size=6).map(
    lambda rows: [view(i + 1, d, *sorted(free)) for i, (d, free) in enumerate(rows)]
)


@given(residents, slabs, st.floats(0, 1))
def test_a_plan_never_over_commits_and_accounts_for_every_granule(
    granules: list[Resident], targets: list[SlabView], deadline_s: float
) -> None:
    plan = plan_recall(recall(*granules, deadline_s=deadline_s), targets, granules_per_region=4)

    given_out = [(a.slab, a.extent) for a in plan.moves]
    donors = {v.slab: v.donor for v in targets}
    by_granule = {r.granule: r for r in granules}
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= {(v.slab, e) for v in targets for e in v.free}
    assert sorted([*(a.granule for a in plan.moves), *(f.granule for f in plan.falls)]) == sorted(by_granule)
    for move in plan.moves:
        assert donors[move.slab] != 0
        assert donors[move.slab] not in by_granule[move.granule].other_donors
        assert by_granule[move.granule].live_pages > 0


@given(residents, slabs)
def test_more_time_never_moves_less(granules: list[Resident], targets: list[SlabView]) -> None:
    short = plan_recall(recall(*granules, deadline_s=0.01), targets, granules_per_region=4)
    long = plan_recall(recall(*granules, deadline_s=5.0), targets, granules_per_region=4)

    assert len(long.moves) >= len(short.moves)
