"""From one plan to the next as little changes as can be."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.change import beside, changes, closed_first, placed, renumbered
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile, NoInterference


def glet(gpu: int, part: int, model: str, batch: int = 1) -> Glet:
    return Glet(gpu=gpu, part_pct=part, cycle_ms=10.0, models=(Portion(model=model, batch=batch, rate=50.0),))


def test_gpus_get_the_numbers_under_which_most_stays() -> None:
    old = Plan(glets=(glet(0, 60, "a"), glet(0, 40, "b"), glet(1, 100, "c")))
    new = Plan(glets=(glet(0, 100, "c"), glet(1, 60, "a", batch=2), glet(1, 40, "d")))

    change = changes(old, renumbered(old, new))

    assert change.stay == (glet(1, 100, "c"),)
    assert change.retime == (glet(0, 60, "a", batch=2),)
    assert change.prepare == (glet(0, 40, "d"),)
    assert change.close == (glet(0, 40, "b"),)


def test_two_equal_halves_of_a_gpu_are_two() -> None:
    half = glet(0, 50, "a")
    nothing, one, both = Plan(glets=()), Plan(glets=(half,)), Plan(glets=(half, glet(0, 50, "a")))

    assert changes(nothing, both).prepare == (half, half)
    assert (changes(one, both).stay, changes(one, both).prepare) == ((half,), (half,))
    assert (changes(both, one).stay, changes(both, one).close) == ((half,), (half,))
    later = Plan(glets=(glet(0, 50, "a", batch=2), glet(0, 50, "a", batch=2)))
    assert changes(both, later).retime == later.glets


def test_a_gpu_is_closed_first_where_its_memory_does_not_hold_what_runs_beside_what_is_prepared() -> None:
    models = {
        name: ModelProfile(name=name, slo_ms=100.0, memory_mb=memory_mb, latency_ms={}, slowed_ms={})
        for name, memory_mb in (("small", 10.0), ("large", 60.0))
    }
    device = DeviceProfile(name="d", cuts=(), memory_mb=100.0, process_mb=20.0, interference=NoInterference())
    small, large = glet(0, 50, "small"), glet(0, 50, "large")
    elsewhere = glet(1, 50, "large")

    def first(running: tuple[Glet, ...], leaving: tuple[Glet, ...], preparing: tuple[Glet, ...]) -> frozenset[int]:
        return closed_first(running, leaving, preparing, models, device)

    assert first((small,), (small,), (small,)) == set(), "30 MB each"
    assert first((small,), (small,), (large,)) == {0}, "110 MB"
    assert first((small, small), (small,), (small,)) == set(), "90 MB"
    assert first((small, large), (small,), (small,)) == {0}, "140 MB, with what stays"
    assert first((large,), (), (large,)) == set(), "nothing leaves that would make room"
    assert first((small, elsewhere), (small,), (glet(1, 50, "large"),)) == set(), "what leaves is on another GPU"
    assert first((small, elsewhere), (small, elsewhere), (small, elsewhere)) == {1}


plans = st.lists(
    st.tuples(st.sampled_from([(100,), (60, 40), (80, 20), (50, 50)]), st.sampled_from("abc"), st.sampled_from("abc")),
    max_size=4,
).map(
    lambda gpus: Plan(
        glets=tuple(
            glet(gpu, part, model)
            for gpu, (cut, *models) in enumerate(gpus)
            for part, model in zip(cut, models, strict=False)
        )
    )
)


@given(old=plans, new=plans)
def test_numbers_change_and_nothing_else_does(old: Plan, new: Plan) -> None:
    found = renumbered(old, new)

    def without_numbers(plan: Plan) -> list[str]:
        gpus: dict[int, list[object]] = {}
        for one in plan.glets:
            gpus.setdefault(one.gpu, []).append((one.part_pct, one.models))
        return sorted(repr(sorted(map(repr, one))) for one in gpus.values())

    assert without_numbers(found) == without_numbers(new)
    change = changes(old, found)
    assert len(change.stay) + len(change.retime) + len(change.prepare) == len(found.glets)
    assert len(change.stay) + len(change.retime) + len(change.close) == len(old.glets)


@given(plan=plans)
def test_the_same_plan_again_touches_nothing(plan: Plan) -> None:
    assert changes(plan, renumbered(plan, plan)).stay == renumbered(plan, plan).glets
    assert changes(plan, renumbered(plan, plan)).prepare == ()


@given(old=plans, new=plans, usable=st.sets(st.integers(0, 7)))
def test_a_plan_is_placed_on_gpus_that_may_be_used_or_not_at_all(old: Plan, new: Plan, usable: set[int]) -> None:
    found = placed(old, new, usable)

    if new.gpus > len(usable):
        assert found is None
        return
    assert found is not None
    assert {one.gpu for one in found.glets} <= usable
    assert sorted((one.part_pct, one.models) for one in found.glets) == sorted(
        (one.part_pct, one.models) for one in new.glets
    )
    if {one.gpu for one in old.glets} <= usable:
        kept = len(changes(old, renumbered(old, new)).stay)
        assert len(changes(old, found).stay) == kept, "where all GPUs stay as much of the plan does"


@given(old=plans, new=plans, gpus=st.integers(0, 8))
def test_gpus_that_a_plan_does_not_use_keep_what_they_have_up_to_a_number_of_all(
    old: Plan, new: Plan, gpus: int
) -> None:
    new = renumbered(old, new)
    found = beside(old, new, gpus)

    ours = {one.gpu for one in new.glets}
    assert tuple(one for one in found.glets if one.gpu in ours) == new.glets
    kept = {one.gpu for one in found.glets} - ours
    for gpu in kept:
        assert Counter(one for one in found.glets if one.gpu == gpu) == Counter(
            one for one in old.glets if one.gpu == gpu
        )
    assert len(kept) == min(len({one.gpu for one in old.glets} - ours), max(0, gpus - len(ours)))
    left = [one for one in old.glets if one.gpu not in ours | kept]
    largest = max((sum(two.part_pct for two in left if two.gpu == one.gpu) for one in left), default=0)
    assert all(sum(one.part_pct for one in found.glets if one.gpu == gpu) >= largest for gpu in kept)
