"""Work profiles from measured steps."""

import pytest

from farside.scheduler.sharing.colocation.measured import DROPPED_ITERATIONS, Measured, Timing


def run(known: Measured, count: int, **timing: float) -> Measured:
    for _ in range(count):
        known = known.then(Timing(**{"machines": 4, "comp_s": 3.0, "update_s": 1.0, "net_s": 2.0, **timing}))  # type: ignore[arg-type]
    return known


def test_the_first_iterations_of_each_start_are_dropped() -> None:
    known = run(Measured(), DROPPED_ITERATIONS, comp_s=90.0)
    assert known.profile("a") is None

    known = run(run(known, 1).started(), DROPPED_ITERATIONS, comp_s=90.0)

    profile = known.profile("a", floor_bytes=5)
    assert profile is not None
    assert (profile.work_machine_s, profile.update_s, profile.net_s, profile.floor_bytes) == (8.0, 1.0, 2.0, 5)


def test_a_profile_outlives_a_change_of_machines() -> None:
    known = run(run(Measured(), 10), 0).started()

    profile = run(known, 10, machines=8, comp_s=2.0).profile("a")

    assert profile is not None
    assert profile.work_machine_s == pytest.approx(8.0)
    assert profile.comp_s(16) == pytest.approx(1.5)


def test_one_machine_says_nothing_of_the_network_between_several() -> None:
    known = run(Measured(), 10, machines=1, comp_s=9.0, net_s=0.1)
    assert known.profile("a") is None

    profile = run(known.started(), 10).profile("a")

    assert profile is not None
    assert [profile.net_alone_s, profile.net_s] == pytest.approx([0.1, 2.0])


def test_a_new_value_moves_the_average_by_a_fifth_and_the_spread_is_told() -> None:
    known = run(run(Measured(), DROPPED_ITERATIONS + 1), 1, net_s=4.0)

    assert known.net_s is not None
    assert known.net_s.mean == pytest.approx(2.4)
    assert known.net_s.spread == pytest.approx((0.8 * 0.2 * 4) ** 0.5 / 2.4)
