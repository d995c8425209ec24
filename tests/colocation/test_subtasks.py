"""Equation 1 beside groups that are played subtask by subtask, by the nodes' own queues."""

import random
from statistics import median

import pytest

from farside.group_time import WorkProfile, group_time
from farside.scheduler.sim.colocation.subtasks import played_iterations_s
from tests.colocation.draws import drawn, on_one_machine


def test_most_groups_take_what_the_equation_says() -> None:
    errors = []
    for seed in range(12):
        rng = random.Random(seed)
        jobs, machines = drawn(rng.randint(2, 6), seed), rng.randint(4, 40)
        played = played_iterations_s(jobs, machines, rng, iterations=20)
        errors.append(group_time(jobs, machines).iteration_s / max(played.values()) - 1)

    assert abs(median(errors)) < 0.01
    assert max(errors) < 0.02, "no group is quicker than the equation allows"


def test_on_one_machine_every_group_takes_what_the_equation_says() -> None:
    errors = []
    for seed in range(12):
        rng = random.Random(seed)
        jobs = on_one_machine(drawn(rng.randint(2, 6), seed), rng.randint(4, 40))
        played = played_iterations_s(jobs, 1, rng, iterations=20)
        errors.append(group_time(jobs, 1).iteration_s / max(played.values()) - 1)

    assert max(map(abs, errors)) < 0.04, "twice the spread of a step"


def test_three_nodes_keep_one_order() -> None:
    jobs = [WorkProfile(job=name, work_machine_s=100.0, net_s=9.0) for name in "abc"]

    played = played_iterations_s(jobs, 10, random.Random(1), iterations=20, nodes=3, delay_s=0.01)

    assert max(played.values()) == pytest.approx(group_time(jobs, 10).iteration_s, rel=0.1)


def test_a_job_alone_takes_its_own_time() -> None:
    alone = [WorkProfile(job="a", work_machine_s=100.0, net_s=10.0)]

    assert played_iterations_s(alone, 10, random.Random(1), iterations=15)["a"] == pytest.approx(20, rel=0.02)
