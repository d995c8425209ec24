"""One chunk at an Aggregator: whatever fails in between, an update of (chunk, iteration) counts exactly once.

What is checked at every step stands in `chunk_model.py`: all members get the same result of a version; it is the update
of the version before by each member's gradient of that iteration; two members are at most one version apart; no
gradient is read that its member may have overwritten; and without further faults every chunk moves on.
"""

import os
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.chunk_model import World, load

SEEDS = st.integers(0, 2**32 - 1)
MOVES = {"begin_move": 0.02}
FAULTS = {"begin_move": 0.01, "reassign": 0.004, "cut_lane": 0.01, "kill_aggregator": 0.004}
STORM = {"begin_move": 0.03, "reassign": 0.02, "cut_lane": 0.04, "kill_aggregator": 0.02}
LONG_RUNS = 5000
usual = settings(max_examples=2 * int(os.environ.get("FARSIDE_EXAMPLES", "20")))


@pytest.fixture(scope="module")
def chunk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """chunk.c, compiled by itself."""
    return load(tmp_path_factory.mktemp("chunk"))


def play(chunk: Any, seed: int, faults: dict[str, float], *, sum_only: bool) -> World:
    """A job of 1 to 4 members and chunks; an AssertionError says what went wrong."""
    rng = random.Random(seed)
    world = World(
        chunk, rng, members=rng.randint(1, 4), chunks=rng.randint(1, 4), sum_only=sum_only, inline=rng.random() < 0.5
    )
    world.run(rng.randint(50, 800), faults)
    return world


@pytest.mark.parametrize("sum_only", [False, True], ids=["server", "sum-only"])
@usual
@given(seed=SEEDS)
def test_chunks_that_move_are_updated_once_an_iteration(chunk: Any, seed: int, sum_only: bool) -> None:
    world = play(chunk, seed, MOVES, sum_only=sum_only)

    assert world.updates == sum(held.version or 0 for held in world.members[0].chunks)


@pytest.mark.parametrize("sum_only", [False, True], ids=["server", "sum-only"])
@pytest.mark.parametrize("faults", [FAULTS, STORM], ids=["faults", "storm"])
@usual
@given(seed=SEEDS)
@example(seed=10634)  # another owner is named while the old one has an update due
def test_no_update_is_lost_whatever_aggregator_or_lane_dies(
    chunk: Any, faults: dict[str, float], seed: int, sum_only: bool
) -> None:
    world = play(chunk, seed, faults, sum_only=sum_only)

    assert not world.is_lost
    assert min(world.versions()) >= 3


@usual
@given(seed=SEEDS)
def test_a_member_that_came_anew_goes_on_from_the_last_complete_iteration(chunk: Any, seed: int) -> None:
    world = play(chunk, seed, {**MOVES, "cut_lane": 0.01, "kill_member": 0.004}, sum_only=False)

    # Until rank 0's first parameters have arrived, nobody else has any.
    assert not world.is_lost or 0 in world.versions()


@usual
@given(seed=SEEDS)
def test_what_member_and_aggregator_lose_together_is_told_and_never_made_up(chunk: Any, seed: int) -> None:
    play(chunk, seed, {**FAULTS, "kill_member": 0.004}, sum_only=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sum_only", [False, True], ids=["server", "sum-only"])
@settings(max_examples=LONG_RUNS)
@given(seed=SEEDS)
def test_no_update_is_lost_in_thousands_of_interleavings(chunk: Any, seed: int, sum_only: bool) -> None:
    assert not play(chunk, seed, FAULTS, sum_only=sum_only).is_lost
