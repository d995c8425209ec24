"""Which donor a slab comes from."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.donor_choice import global_best, two_choices, uniform_random
from farside.blockdev.mapping.placement import DonorView, choose, draw


def donor(number: int, *, slabs: int = 0, free: int = 4, used: int = 0, usable: bool = True) -> DonorView:
    return DonorView(donor=number, slabs=slabs, free_slabs=free, used_bytes=used, total_bytes=100, usable=usable)


def rng() -> random.Random:
    return random.Random(7)


def test_donors_without_a_slab_of_this_device_come_first() -> None:
    views = [donor(0, slabs=1), donor(1, slabs=2), donor(2, used=99)]

    assert two_choices(views, choices=2, rng=rng()).donor == 2


def test_then_those_that_have_one() -> None:
    views = [donor(0, slabs=1, used=50), donor(1, slabs=2, used=10), donor(2, free=0)]

    assert two_choices(views, choices=2, rng=rng()).donor == 1


def test_of_two_asked_the_least_used_wins() -> None:
    assert choose([donor(0, used=60), donor(1, used=40)], rng()).donor == 1


def test_use_is_compared_as_a_share_of_the_donors_memory() -> None:
    small = DonorView(donor=0, free_slabs=1, used_bytes=30, total_bytes=100)
    large = DonorView(donor=1, free_slabs=1, used_bytes=200, total_bytes=1000)

    assert choose([small, large], rng()).donor == 1


def test_ties_are_broken_by_chance() -> None:
    views = [donor(n) for n in range(4)]
    chance = rng()

    won = Counter(two_choices(views, choices=2, rng=chance).donor for _ in range(400))

    assert min(won[n] for n in range(4)) > 50


def test_only_as_many_as_asked_for_are_drawn() -> None:
    views = [donor(n) for n in range(10)]

    assert len(draw(views, choices=2, banned=frozenset(), rng=rng())) == 2


def test_nobody_with_room_is_told_with_a_reason() -> None:
    verdict = two_choices([donor(0, free=0), donor(1, usable=False)], choices=2, rng=rng())

    assert verdict.donor is None
    assert verdict.reason


def test_two_choices_balance_better_than_one_and_nearly_as_well_as_all() -> None:
    def fill(pick: str) -> int:
        chance, used = random.Random(3), [0] * 50
        for _ in range(1000):
            views = [donor(n, used=used[n]) for n in range(50)]
            if pick == "two":
                verdict = two_choices(views, choices=2, rng=chance)
            else:
                verdict = (uniform_random if pick == "random" else global_best)(views, rng=chance)
            assert verdict.donor is not None
            used[verdict.donor] += 1
        return max(used) - min(used)

    assert fill("best") <= fill("two") < fill("random") / 2


views_strategy = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 100), st.booleans()), max_size=8
).map(lambda rows: [donor(n, slabs=s, free=f, used=u, usable=x) for n, (s, f, u, x) in enumerate(rows)])


@given(views_strategy, st.frozensets(st.integers(0, 7)), st.integers(1, 3), st.integers())
def test_the_choice_has_room_is_up_and_is_not_banned(
    views: list[DonorView], banned: frozenset[int], choices: int, seed: int
) -> None:
    for verdict in (
        two_choices(views, choices=choices, rng=random.Random(seed), banned=banned),
        uniform_random(views, rng=random.Random(seed), banned=banned),
        global_best(views, rng=random.Random(seed), banned=banned),
    ):
        possible = {v.donor for v in views if v.usable and v.free_slabs > 0 and v.donor not in banned}
        assert verdict.donor in possible if possible else verdict.donor is None


@given(views_strategy, st.integers())
def test_new_donors_with_room_go_before_old_ones(views: list[DonorView], seed: int) -> None:
    new = {v.donor for v in views if v.usable and v.free_slabs > 0 and v.slabs == 0}

    verdict = two_choices(views, choices=2, rng=random.Random(seed))

    assert not new or verdict.donor in new


@given(views_strategy, st.integers(), st.randoms(use_true_random=False))
def test_the_order_of_donors_does_not_matter(views: list[DonorView], seed: int, shuffler: random.Random) -> None:
    shuffled = list(views)
    shuffler.shuffle(shuffled)

    one = two_choices(views, choices=2, rng=random.Random(seed))
    other = two_choices(shuffled, choices=2, rng=random.Random(seed))

    assert one == other
