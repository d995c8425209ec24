"""An order by nice values: jobs are lowered and never raised."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.slurm.action import SetNice
from farside.scheduler.slurm.decide import decide
from farside.scheduler.slurm.engine import Engine, Mode
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.nice import LEAST, lowered
from tests.slurm.made import TRAITS, FakeSlurm, running, snapshot, waiting, ways

jobs = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 500)), max_size=40)
FULL = (running(1, ("gn1", 4)), running(2, ("gn2", 4)))


def after(current: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """As Slurm does: what the nice value grows by, the priority falls by."""
    found = list(current)
    for at, nice in lowered(current):
        priority, before = current[at]
        found[at] = priority - (nice - before), nice
    return found


@given(jobs)
def test_nobody_is_raised_and_nobody_falls_below_the_least(current: list[tuple[int, int]]) -> None:
    for (priority, nice), (then, lower) in zip(current, after(current), strict=True):
        assert LEAST <= then <= priority
        assert lower >= nice


@given(st.lists(st.tuples(st.integers(1000, 20_000), st.integers(0, 500)), max_size=40))
def test_where_there_is_room_priorities_fall_strictly_and_then_nothing_is_left_to_do(
    current: list[tuple[int, int]],
) -> None:
    found = [priority for priority, _ in after(current)]

    assert all(above > below for above, below in pairwise(found))
    assert lowered(after(current)) == ()


def test_an_order_that_is_there_already_costs_nothing() -> None:
    assert lowered([(900, 0), (899, 5), (10, 0)]) == ()


def test_where_all_have_the_least_priority_nothing_can_be_done() -> None:
    assert lowered([(1, 0), (1, 0), (1, 0)]) == ()


def test_only_the_owner_s_jobs_are_lowered_and_only_as_far_as_needed() -> None:
    seen = snapshot(
        *FULL, waiting(3, 4, limit_s=3600, priority=1000), waiting(4, 4, limit_s=60, priority=1000),
        waiting(5, 4, limit_s=60, priority=1000, user="bob"),
    )  # fmt: skip

    decision = decide(seen, Memory(), TRAITS, ways(seen, policy="srsf", is_by_nice=True, owner="ann"))

    (only,) = decision.actions
    assert isinstance(only, SetNice)
    assert (only.job_id, only.nice > 0) == ("3", True)


@pytest.mark.parametrize("other", ["gate", "preempt"])
def test_nice_goes_with_neither_gate_nor_preempt(other: str, tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "partitions": "gpu", "order_by": "nice", "state_dir": str(tmp_path / "state"),
        "admin_socket": str(tmp_path / "s.sock"), other: True,
    }  # fmt: skip

    with pytest.raises(ConfigError, match="nice goes with neither gate nor preempt"):
        Engine(load_config(SlurmConfig, (), told), Mode.RUN, FakeSlurm(snapshot()))


def test_an_engine_by_nice_leaves_the_priorities_of_those_in_front_alone(tmp_path: Path) -> None:
    told = {
        "partitions": "gpu", "order_by": "nice", "policy": "srsf", "state_dir": str(tmp_path / "state"),
        "admin_socket": str(tmp_path / "s.sock"),
    }  # fmt: skip
    slurm = FakeSlurm(
        snapshot(*FULL, waiting(3, 4, limit_s=3600, priority=1000), waiting(4, 4, limit_s=60, priority=1000))
    )
    engine = Engine(load_config(SlurmConfig, (), told), Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s)

    asyncio.run(engine.turn())
    first = {job.job_id: job.priority for job in slurm.seen.jobs}
    asyncio.run(engine.turn())

    assert first["4"] == 1000 > first["3"]
    assert len(slurm.done) == 1
