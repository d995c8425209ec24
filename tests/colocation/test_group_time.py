"""Equations 1 to 4: how long a group's iteration is, and how busy its machines are."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.group_time import WorkProfile, group_time
from farside.scheduler.sharing.colocation.grouping import busy_shares
from tests.colocation.draws import profiles


def job(name: str, work_machine_s: float, net_s: float, **more: float) -> WorkProfile:
    return WorkProfile(job=name, work_machine_s=work_machine_s, net_s=net_s, **more)  # type: ignore[arg-type]


def test_the_iteration_is_as_long_as_the_scarcest_of_processors_network_and_longest_job() -> None:
    cpu = group_time([job("a", 40, 1), job("b", 40, 1)], 4)
    net = group_time([job("a", 4, 10), job("b", 4, 10)], 4)
    longest = group_time([job("a", 40, 9), job("b", 4, 1)], 4)

    assert (cpu.iteration_s, cpu.bound) == (20, "cpu")
    assert (net.iteration_s, net.bound) == (20, "network")
    assert (longest.iteration_s, longest.bound) == (19, "job")


def test_a_single_machine_has_no_network_and_the_update_does_not_shrink() -> None:
    one = job("a", 10, 5, update_s=1, net_alone_s=0.5)

    assert group_time([one], 1).iteration_s == 11.5
    assert group_time([one], 10).iteration_s == 7


@given(profiles, st.integers(2, 200))
def test_more_machines_never_make_an_iteration_longer(jobs: list[WorkProfile], machines: int) -> None:
    assert group_time(jobs, machines + 1).iteration_s <= group_time(jobs, machines).iteration_s


@given(profiles, st.integers(1, 200), st.floats(0.0, 50.0))
def test_longer_steps_never_make_an_iteration_shorter(jobs: list[WorkProfile], machines: int, more_s: float) -> None:
    before = group_time(jobs, machines).iteration_s
    for change in ("work_machine_s", "net_s", "update_s", "net_alone_s"):
        slower = replace(jobs[0], **{change: getattr(jobs[0], change) + more_s})
        assert group_time([slower, *jobs[1:]], machines).iteration_s >= before


@given(profiles, st.integers(1, 200), st.randoms(use_true_random=False))
def test_shares_are_at_most_one_and_do_not_depend_on_order_or_names(
    jobs: list[WorkProfile], machines: int, rng: random.Random
) -> None:
    other = [replace(one, job=f"other{number}") for number, one in enumerate(jobs)]
    rng.shuffle(other)
    time, again = group_time(jobs, machines), group_time(other, machines)

    assert 0 < time.busy_cpu <= 1 + 1e-12
    assert 0 < time.busy_net <= 1 + 1e-12
    assert again.iteration_s == pytest.approx(time.iteration_s)


def test_idle_machines_count_as_not_busy() -> None:
    time = group_time([job("a", 40, 1), job("b", 40, 1)], 4)

    assert busy_shares([(time, 4)], 8) == pytest.approx((0.5, 0.05))
