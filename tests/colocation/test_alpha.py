"""Hill climbing on a group's iteration: what is on the disk, and what comes from peers."""

import itertools
import random
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent.training import alpha
from farside.agent.training.alpha import Keep, Left, Spilling, Use, first_share, step
from farside.group_time import ReadCost

GB = 10**9
Curve = Callable[[Mapping[str, Keep]], float]


def played(curve: Curve, begin: Mapping[str, Keep], iterations: int, *, noise: float = 0.0, seed: int = 1,
           input_bytes: int = GB, other_bytes: int = 0, limit_bytes: int = 0,
           more: Mapping[str, Any] | None = None) -> tuple[dict[str, Keep], list[dict[str, Keep]]]:  # fmt: skip
    """Jobs that do what they are told: what they keep at the end, and after each iteration."""
    rng, state = random.Random(seed), Spilling()
    keeps, seen = dict(begin), list[dict[str, Keep]]()
    for _ in range(iterations):
        iteration_s = curve(keeps) * max(0.0, rng.gauss(1, noise))
        now = dict(keeps)
        for job, keep in now.items():
            used = other_bytes + round((1 - keep.spilled) * input_bytes)
            use = Use(
                job=job, spilled=keep.spilled, iteration_s=iteration_s, comp_s=iteration_s / 3, net_s=iteration_s / 9,
                input_bytes=input_bytes, used_bytes=used, limit_bytes=limit_bytes, **(more or {}),
            )  # fmt: skip
            state, told = step(state, use)
            keeps |= told
        seen.append(dict(keeps))
    return keeps, seen


def bowl(places: Mapping[str, float], steepness: float = 3.0) -> Curve:
    """An iteration that is shortest where each job keeps its own share."""
    return lambda keeps: 1 + steepness * sum((keeps[job].spilled - place) ** 2 for job, place in places.items())


@pytest.mark.parametrize("place", [0.2, 0.45, 0.8])
def test_a_job_is_within_5_percent_of_the_best_share_after_15_windows(place: float) -> None:
    curve = bowl({"a": place})

    costs = [
        curve(played(curve, {"a": Keep(spilled=0.5)}, 60, noise=0.03, seed=seed)[0]) for seed in range(20)
    ]  # fmt: skip

    assert median(costs) <= 1.05


def test_a_step_that_is_drowned_by_noise_is_followed_by_a_longer_one() -> None:
    # All on the disk is worst, and every third iteration is a quarter longer: a step of 10 % gains less than that.
    state, spilled, seen = Spilling(), 1.0, list[float]()
    for number in range(60):
        iteration_s = (0.05 + 0.6 * spilled) * (1.25 if number % 3 == 0 else 1.0)
        use = Use(job="a", spilled=spilled, iteration_s=iteration_s, input_bytes=GB)
        state, told = step(state, use)
        spilled = told["a"].spilled if told else spilled
        seen.append(spilled)

    assert 0.85 < max(share for share in seen if share < 1) < 1
    assert seen[-1] == 0


def test_who_has_gone_further_in_vain_goes_back_to_where_it_was_and_settles() -> None:
    # It varies by more than any share changes.
    _, seen = played(lambda _keeps: 1.0, {"a": Keep(spilled=0.5)}, 400, noise=0.1, seed=3)

    assert len({one["a"] for one in seen[300:]}) == 1


def test_two_unlike_jobs_do_better_than_with_the_best_common_share() -> None:
    curve = bowl({"a": 0.1, "b": 0.9})
    common = min(curve({"a": Keep(spilled=n / 20), "b": Keep(spilled=n / 20)}) for n in range(21))

    keeps, _ = played(curve, {"a": Keep(spilled=0.5), "b": Keep(spilled=0.5)}, 150, noise=0.03)

    assert curve(keeps) < 0.8 * common
    assert keeps["a"].spilled < 0.4 < 0.6 < keeps["b"].spilled


def test_who_has_settled_changes_nothing_and_tries_again_where_the_cost_moves() -> None:
    curve, height = bowl({"a": 0.4}), [1.0]

    def moving(keeps: Mapping[str, Keep]) -> float:
        height.append(1.0 if len(height) < 200 else 1.5)
        return height[-1] * curve(keeps)

    _, seen = played(moving, {"a": Keep(spilled=0.5)}, 220)

    settled = seen[198]
    assert all(one == settled for one in seen[100:198])
    assert settled["a"].spilled == pytest.approx(0.4, abs=0.1)
    assert any(one != settled for one in seen[200:])


def test_full_memory_goes_to_the_disk_at_once_and_is_never_tried_again() -> None:
    # An iteration is shorter the more is in memory, and there is room for half of the input.
    curve: Curve = lambda keeps: 1 + keeps["a"].spilled  # noqa: E731

    _, seen = played(curve, {"a": Keep(spilled=0.1)}, 100, limit_bytes=GB, other_bytes=GB // 2)

    shares = [one["a"].spilled for one in seen]
    assert shares[0] == pytest.approx(0.6)
    assert min(shares) == pytest.approx(0.6)


def test_where_memory_has_no_room_for_more_each_step_is_tried_once() -> None:
    curve: Curve = lambda keeps: 1 + keeps["a"].spilled  # noqa: E731

    _, seen = played(curve, {"a": Keep(spilled=0.6)}, 60, limit_bytes=GB, other_bytes=GB // 2)

    shares = [one["a"].spilled for one in seen]
    tried = [now for before, now in itertools.pairwise(shares) if now > before]
    assert tried == pytest.approx([0.7, 0.65, 0.625])
    assert shares[-1] == pytest.approx(0.6)


def test_a_job_that_has_all_in_memory_and_does_not_wait_for_it_is_let_alone() -> None:
    _, seen = played(bowl({"a": 0.7}), {"a": Keep()}, 60)

    assert {one["a"] for one in seen} == {Keep()}


def test_a_slow_disk_is_helped_by_a_peer_and_a_fast_one_is_not() -> None:
    peer = ReadCost(bytes_s=GB)
    flat: Curve = lambda _keeps: 3.0  # noqa: E731
    helped: Curve = lambda keeps: 3.0 if not keeps["a"].by_peer else 1.5  # noqa: E731
    slow = {"disk": ReadCost(bytes_s=GB / 10), "peer": peer}
    fast = {"disk": ReadCost(bytes_s=10 * GB), "peer": peer}
    begin = {"a": Keep(spilled=0.5)}

    assert 0 < played(helped, begin, 12, more=slow)[0]["a"].by_peer <= 1
    assert played(flat, begin, 12, more=fast)[0]["a"].by_peer == 0
    assert played(flat, begin, 12, more={"disk": ReadCost(bytes_s=GB / 10)})[0]["a"].by_peer == 0


MB = 10**6
COMPUTING_S, SLOW_DISK, PEER = 0.13, 50 * MB, 150 * MB


def reloading(iterations: int, disk_rate: Callable[[float], float]) -> list[float]:
    """The share that a job reads from a peer after each iteration: of 32 MB, at what a disk and a peer deliver.

    ``disk_rate``: what a read of the disk shows, by the bytes that are read from it in an iteration.
    """
    state, by_peer, seen = Spilling(), 0.0, list[float]()
    disk_bytes = peer_bytes = 0.0
    for _ in range(iterations):
        from_peer = by_peer * 32 * MB
        iteration_s = max(COMPUTING_S, (32 * MB - from_peer) / SLOW_DISK, from_peer / PEER)
        disk_bytes, peer_bytes = disk_bytes + 32 * MB - from_peer, peer_bytes + from_peer
        use = Use(
            job="a", spilled=0.5, iteration_s=iteration_s, comp_s=COMPUTING_S, input_bytes=64 * MB,
            disk=ReadCost(bytes_s=disk_rate(32 * MB - from_peer)), peer=ReadCost(bytes_s=PEER),
            wait_s=iteration_s - COMPUTING_S, disk_bytes=round(disk_bytes), peer_bytes=round(peer_bytes),
        )  # fmt: skip
        state, told = step(state, use)
        by_peer = told["a"].by_peer if told else by_peer
        seen.append(by_peer)
    return seen


def test_a_disk_that_is_quick_while_little_is_read_from_it_is_not_gone_back_to() -> None:
    # As the kernel's limits do: a tenth of a second's bytes come at once.
    seen = reloading(90, lambda from_disk: SLOW_DISK if from_disk > 0.1 * SLOW_DISK + 10 * MB else GB)

    moved = next(number for number, by_peer in enumerate(seen) if by_peer > 0)
    assert moved < 12
    assert min(seen[moved:]) > 0.6


def test_what_a_disk_was_seen_to_deliver_is_believed_less_by_and_by_and_then_it_is_tried_again() -> None:
    # Nobody else reads from the disk any more, which shows in what is read alone.
    state, by_peer, moves, at = Spilling(), 0.0, list[int](), 0
    disk_bytes = peer_bytes = 0
    for number in range(1200):
        iteration_s = 0.64 if number < 12 else 0.2
        disk_bytes += round((1 - by_peer) * 32 * MB)
        peer_bytes += round(by_peer * 32 * MB)
        use = Use(
            job="a", spilled=0.5, iteration_s=iteration_s, comp_s=0.05, net_s=0.1, input_bytes=64 * MB,
            disk=ReadCost(bytes_s=SLOW_DISK if number < 12 else GB), peer=ReadCost(bytes_s=PEER),
            wait_s=iteration_s - 0.05 if number < 12 else 0.0, disk_bytes=disk_bytes, peer_bytes=peer_bytes,
        )  # fmt: skip
        state, told = step(state, use)
        if told and told["a"].by_peer != by_peer:
            by_peer, at = told["a"].by_peer, number
            moves.append(at)

    assert moves[0] < 12
    assert any(at > 100 for at in moves[1:])


def test_places_that_make_no_iteration_shorter_are_as_before_and_stay_four_times_as_long() -> None:
    # What single reads show says that the peer would help; it does not.
    changes, state, by_peer = list[tuple[int, bool]](), Spilling(), 0.0
    for number in range(300):
        use = Use(
            job="a", spilled=0.5, iteration_s=3.0, comp_s=1.0, input_bytes=GB, disk=ReadCost(bytes_s=GB / 10),
            peer=ReadCost(bytes_s=GB),
        )  # fmt: skip
        state, told = step(state, use)
        if told and told["a"].by_peer != by_peer:
            by_peer = told["a"].by_peer
            changes.append((number, by_peer > 0))

    assert [is_there for _, is_there in changes[:5]] == [True, False, True, False, True]
    tried = [number for number, is_there in changes if is_there]
    back = [number for number, is_there in changes if not is_there]
    assert [gone - there for there, gone in zip(tried, back, strict=False)][:2] == [5, 5]  # two dropped, a window
    assert 40 <= tried[1] - back[0] < 60
    assert 160 <= tried[2] - back[1] < 180


def test_a_disk_that_jobs_share_is_taken_to_deliver_what_it_delivers_to_all_of_them() -> None:
    # Each job reads 16 MB in 0.96 s, at half of the disk's rate, and the network is what they wait for.
    state = Spilling()
    told: Mapping[str, Keep] = {}
    for number in range(12):
        for job in "ab":
            use = Use(
                job=job, spilled=0.5, iteration_s=0.96, comp_s=0.1, net_s=0.48, input_bytes=32_000_000,
                disk=ReadCost(bytes_s=17e6), peer=ReadCost(bytes_s=8e6), disk_bytes=number * 16_000_000,
            )  # fmt: skip
            state, more = step(state, use)
            told = {**told, **more}

    assert {keep.by_peer for keep in told.values()} == {0.0}


def test_a_peer_is_taken_to_deliver_what_has_come_from_it_and_not_what_was_asked_of_it() -> None:
    # A tenth of what is asked comes: the peer is full, and is slower than it was.
    state, told, by_peer = Spilling(), list[Keep](), 0.0
    for number in range(40):
        use = Use(
            job="a", spilled=0.5, iteration_s=5.0 if not by_peer else 4.7 if by_peer > 0.5 else 4.5, comp_s=1.0,
            input_bytes=GB, disk=ReadCost(bytes_s=GB / 10), peer=ReadCost(bytes_s=GB if number < 8 else GB / 20),
            disk_bytes=number * 450_000_000, peer_bytes=number * 50_000_000,
        )  # fmt: skip
        state, more = step(state, use)
        told += more.values()
        by_peer = told[-1].by_peer if told else 0.0

    assert max(keep.by_peer for keep in told) > 0.7
    assert told[-1].by_peer == pytest.approx(1 / 3, abs=0.02)
    assert len({keep.by_peer for keep in told if keep.by_peer}) == 2  # the same is not said again and again


def test_a_small_slow_reader_does_not_make_its_neighbour_move_to_a_peer() -> None:
    state = Spilling()
    told: Mapping[str, Keep] = {}
    for number in range(12):
        for job, spilled, rate in (("large", 0.5, GB), ("small", 0.001, GB / 1000)):
            use = Use(
                job=job, spilled=spilled, iteration_s=3.0, comp_s=0.8, input_bytes=GB, disk=ReadCost(bytes_s=rate),
                peer=ReadCost(bytes_s=2 * GB), disk_bytes=round(number * spilled * GB),
            )  # fmt: skip
            state, more = step(state, use)
            told = {**told, **more}

    assert {keep.by_peer for keep in told.values()} == {0.0}


def test_a_job_that_says_it_spills_nothing_of_nothing_is_reckoned_with() -> None:
    cost, state = ReadCost(bytes_s=1.0), Spilling()
    for _ in range(12):
        state, told = step(state, Use(job="a", spilled=0.5, iteration_s=0.0, disk=cost, peer=cost))
        assert all(keep.by_peer == 0 for keep in told.values())


def test_a_peer_that_comes_while_a_share_is_tried_is_used_when_that_is_judged() -> None:
    state, by_peer = Spilling(), list[float]()
    for number in range(10):
        peer = ReadCost(bytes_s=GB) if number > 4 else None
        use = Use(
            job="a", spilled=0.5, iteration_s=3.0, comp_s=1.0, input_bytes=GB, disk=ReadCost(bytes_s=GB / 10), peer=peer
        )  # fmt: skip
        state, told = step(state, use)
        by_peer += [keep.by_peer for keep in told.values()]

    assert by_peer[0] == 0  # the share that was tried
    assert by_peer[1] > 0


@given(
    st.lists(
        st.one_of(
            st.builds(Left, job=st.sampled_from("abc")),
            st.builds(
                Use, job=st.sampled_from("abc"), spilled=st.floats(0, 1), iteration_s=st.floats(0, 1e3),
                comp_s=st.floats(0, 1e3), net_s=st.floats(0, 1e3), stall_s=st.floats(0, 1e3),
                input_bytes=st.integers(0, GB), used_bytes=st.integers(0, 2 * GB), limit_bytes=st.integers(0, GB),
                disk=st.none() | st.builds(ReadCost, bytes_s=st.floats(1, 1e12), cpu_s_byte=st.floats(0, 1)),
                peer=st.none() | st.builds(ReadCost, bytes_s=st.floats(1, 1e12), cpu_s_byte=st.floats(0, 1)),
                disk_bytes=st.integers(0, 9 * GB), peer_bytes=st.integers(0, 9 * GB),
            ),
        ),
        max_size=60,
    )
)  # fmt: skip
@settings(max_examples=60)
def test_shares_stay_shares_whatever_jobs_say_and_only_those_on_the_node_are_told(events: list[Use | Left]) -> None:
    state, there = Spilling(), set[str]()
    for event in events:
        state, told = step(state, event)
        there = there | {event.job} if isinstance(event, Use) else there - {event.job}
        assert set(told) <= set(state.jobs) == there
        assert all(0 <= keep.spilled <= 1 and 0 <= keep.by_peer <= 1 for keep in told.values())
        assert state.trial is None or state.trial.job in there


def test_a_job_begins_with_what_its_memory_has_room_for() -> None:
    assert first_share(input_bytes=GB, other_bytes=0, limit_bytes=0) == 0
    assert first_share(input_bytes=GB, other_bytes=GB // 10, limit_bytes=GB) == pytest.approx(0.2)
    assert first_share(input_bytes=GB, other_bytes=2 * GB, limit_bytes=GB) == 1
    assert first_share(input_bytes=GB, other_bytes=0, limit_bytes=9 * GB) == 0


def test_a_job_that_is_silent_makes_others_words_pile_up_to_a_bound_and_is_left_out_in_the_end() -> None:
    state = Spilling()
    told: Mapping[str, Keep] = {}
    state, _ = alpha.step(state, Use(job="silent", spilled=0.5, iteration_s=1.0))
    for _ in range(10 * alpha.USES_MAX):
        state, _ = alpha.step(state, Use(job="a", spilled=0.5, iteration_s=1.0))
    assert len(state.jobs["a"].uses) == alpha.USES_MAX
    assert state.trial is None

    state, _ = alpha.step(state, alpha.Silent(job="silent"))
    for _ in range(alpha.DROPPED + alpha.WINDOW):
        state, told = alpha.step(state, Use(job="a", spilled=0.5, iteration_s=1.0))

    assert list(told) == ["a"], "it tries another share"


def test_a_job_that_was_silent_is_not_waited_for_again_and_its_memory_does_not_get_full() -> None:
    state, _ = alpha.step(Spilling(), Use(job="silent", spilled=0.5, iteration_s=1.0))
    state, _ = alpha.step(state, alpha.Silent(job="silent"))

    state, told = alpha.step(
        state, Use(job="silent", spilled=0.5, iteration_s=1.0, input_bytes=100, used_bytes=100, limit_bytes=100)
    )

    assert told["silent"].spilled == pytest.approx(0.6)
    assert not state.jobs
    state, _ = alpha.step(state, Left(job="silent"))
    assert alpha.step(state, Use(job="silent", spilled=0.5, iteration_s=1.0))[0].jobs
