"""Placements that are judged by what jobs then need: reverted, accepted, and given back."""

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement, Profile
from farside.scheduler.sharing.aggregation.scale import Change, Scaling
from tests.aggregation.mixes import check, held

LIMITS = Limits(cycle_multiple=4, period_tolerance=0.0)
WATCHED = 100


def job(name: str, *tasks_s: float, iteration_s: float = 1.0, servers: int = 1) -> Profile:
    return Profile(job=name, iteration_s=iteration_s, tasks_s=tasks_s, servers=servers)


def scaling(*profiles: Profile) -> Scaling:
    made = Scaling(Placement(LIMITS))
    for profile in profiles:
        assert made.arrive(profile).refused is None
    return made


def test_a_job_that_loses_too_much_gets_another_aggregator_after_100_iterations() -> None:
    both = scaling(job("first", 0.2), job("second", 0.2))

    assert both.measured("second", 99, 1.3) == Change()
    change = both.measured("second", 1, 1.3)

    assert change.reverted == "second"
    assert change.allocated == (1,)
    assert change.moved == {"second": (0,)}
    assert both.placement.owners("second") == (1,)


def test_a_job_that_keeps_its_speed_is_left_where_it_is() -> None:
    both = scaling(job("first", 0.2), job("second", 0.2))

    for name in ("first", "second"):
        assert both.measured(name, WATCHED, 1.05) == Change()
        # It is not watched any more: what slows it down now is something else.
        assert both.measured(name, WATCHED, 9.0) == Change()


def test_a_new_job_moves_also_for_the_sake_of_one_that_was_there_before() -> None:
    both = scaling(job("first", 0.2))
    both.measured("first", WATCHED, 1.0)
    both.arrive(job("second", 0.2))

    change = both.measured("first", WATCHED, 1.2)

    assert change.reverted == "second"
    assert both.placement.owners("first") == (0,)
    assert both.placement.owners("second") == (1,)


def test_after_as_many_new_aggregators_as_servers_the_loss_is_accepted_and_told() -> None:
    both = scaling(job("first", 0.2), job("second", 0.2, 0.1, servers=2))
    before = len(both.placement.aggregators)

    changes = [both.measured("second", WATCHED, 2.0) for _ in range(3)]

    assert [change.reverted for change in changes] == ["second", "second", None]
    assert changes[2].accepted == {"second": 0.5}
    assert both.accepted == {"second": 0.5}
    assert len(both.placement.aggregators) <= before + 2
    assert both.measured("second", WATCHED, 2.0) == Change()


def test_a_job_alone_that_is_slower_than_its_profile_is_accepted_in_the_end() -> None:
    alone = scaling(job("only", 0.2))

    changes = [alone.measured("only", WATCHED, 3.0) for _ in range(2)]

    assert "only" in changes[1].accepted
    assert len(alone.placement.aggregators) == 1


def test_an_exit_tells_what_moved_and_which_aggregators_are_free() -> None:
    three = scaling(job("a", 0.6), job("b", 0.6), job("c", 0.3))
    assert three.placement.owners("c") == (0,)

    change = three.leave("b")

    assert change.released == (1,)
    assert change.moved == {}
    change = scaling(job("a", 0.6), job("b", 0.6), job("c", 0.3)).leave("a")
    assert change.released in ((0,), (1,))
    assert len(change.moved) == 1


def test_a_refused_job_changes_nothing() -> None:
    one = scaling(job("a", 0.6))

    change = one.arrive(job("b", 1.5))

    assert change.refused is not None
    assert (change.allocated, change.released, change.moved) == ((), (), {})
    load, losses = check(one.placement.profiles, held(one.placement))
    assert load <= 1
    assert losses == {"a": 0}


def test_a_job_that_ends_while_it_is_watched_is_forgotten() -> None:
    both = scaling(job("first", 0.2), job("second", 0.2))

    both.leave("second")

    assert both.measured("second", WATCHED, 9.0) == Change()
    assert both.measured("first", WATCHED, 1.0) == Change()


def test_the_papers_case_study_ends_with_three_aggregators_and_gives_one_back() -> None:
    """[autops Figure 4.11]: VGG19 on two, AlexNet loses 22 % with them, then has a third until it ends."""
    vgg = job("vgg19", *[0.5 * 0.32 / 8] * 8, iteration_s=0.5, servers=2)
    alexnet = job("alexnet", *[0.125 * 1.2 / 16] * 16, iteration_s=0.125, servers=2)
    both = scaling(vgg)
    assert len(both.placement.aggregators) == 2
    both.arrive(alexnet)
    assert len(both.placement.aggregators) == 2

    change = both.measured("alexnet", WATCHED, 0.125 / (1 - 0.22))

    assert change.reverted == "alexnet"
    assert len(both.placement.aggregators) == 3
    assert both.measured("alexnet", WATCHED, 0.126) == Change()
    # The paper gives back the newest alone. Here VGG19, which needs a third of one, has one Aggregator from then on.
    assert both.leave("alexnet").released == (1, 2)
