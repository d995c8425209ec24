"""Iterations, model size and the largest tensor, found again in what a process sent."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.messages import ProfileFigures
from farside.agent.profile import ring
from farside.agent.profile.ring import Event
from farside.agent.profile.summarise import summarise
from farside.scheduler.model_zoo import MODELS, Model
from tests.profile.trace import MIB, Training, events_of


def told(events: list[Event]) -> ProfileFigures:
    found = summarise(events)
    assert not found.problem
    return found


def tensors_like(model: Model) -> list[int]:
    """Its largest tensor, its number of tensors, its size: the rest is even, with a bias beside each weight."""
    pairs = max(1, model.tensors // 2)
    rest = (model.model_bytes - model.largest_tensor_bytes) // pairs - 2048
    return [size for _ in range(pairs) for size in (rest, 2048)] + [model.largest_tensor_bytes]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("servers", [1, 3])
def test_the_skew_of_each_model_of_the_paper_is_found_again(model: Model, servers: int) -> None:
    training = Training(tensors=tensors_like(model), iterations=6, servers=servers, cut=0.1, heartbeat_s=1.0)

    found = told(events_of(training, Random(1)))

    assert found.largest_bytes / found.sent_bytes == pytest.approx(model.skew, abs=0.01)
    assert found.sent_bytes == pytest.approx(sum(training.tensors), rel=0.001)


@given(
    tensors=st.lists(st.integers(2 * 1024, 64 * MIB), min_size=1, max_size=40),
    iterations=st.integers(6, 14),
    servers=st.integers(1, 4),
    cut=st.sampled_from([0.0, 0.3]),
    heartbeat_s=st.sampled_from([0.0, 0.5]),
    broadcast=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_what_an_iteration_sends_is_found_whatever_the_noise(
    tensors: list[int],
    iterations: int,
    servers: int,
    cut: float,
    heartbeat_s: float,
    broadcast: bool,
    seed: int,
) -> None:
    training = Training(
        tensors=tensors,
        iterations=iterations,
        servers=servers,
        cut=cut,
        heartbeat_s=heartbeat_s,
        broadcast=broadcast,
    )

    found = told(events_of(training, Random(seed)))

    assert found.sent_bytes == pytest.approx(sum(tensors), rel=0.01, abs=200)
    assert found.iteration_s == pytest.approx(0.2, rel=0.2)


@given(
    size=st.integers(4 * 1024, 64 * MIB),
    parts=st.lists(st.floats(0.95, 1.05), min_size=1, max_size=40),
    broadcast=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_tensors_that_are_nearly_equal_are_no_iteration_each(
    size: int, parts: list[float], broadcast: bool, seed: int
) -> None:
    tensors = [int(size * part) for part in parts]

    found = told(events_of(Training(tensors=tensors, iterations=6, broadcast=broadcast), Random(seed)))

    assert found.sent_bytes == pytest.approx(sum(tensors), rel=0.01)


def in_turn(seed: int, iterations: int) -> list[Event]:
    """As gloo's two threads send two buckets, each in equal parts: in another order each time."""
    order, now_ns, events = Random(seed), 10**9, list[Event]()
    for _ in range(iterations):
        now_ns += order.randrange(15_000_000, 30_000_000)
        sizes = [MIB] * 12 + [200_000] * 4
        order.shuffle(sizes)
        for size in sizes:
            now_ns += order.randrange(50_000, 3_000_000)
            events.append(Event(now_ns, 1, size, False, False))
    return events


def test_several_iterations_are_seldom_taken_for_one_where_threads_send_in_turn() -> None:
    """Two in a hundred of these orders look like two; by messages of one kind alone, nineteen in twenty did."""
    found = [told(in_turn(seed, iterations=8 + seed % 33)).sent_bytes for seed in range(40)]

    assert found.count(12 * MIB + 800_000) >= 38


@given(
    powers=st.lists(st.integers(11, 26), min_size=2, unique=True), servers=st.integers(1, 3), seed=st.integers(0, 2**32)
)
def test_the_largest_tensor_is_found_where_no_two_are_alike(powers: list[int], servers: int, seed: int) -> None:
    tensors = [1 << power for power in powers]

    found = told(events_of(Training(tensors=tensors, servers=servers, cut=0.3), Random(seed)))

    assert found.largest_bytes == pytest.approx(max(tensors), rel=0.01, abs=200)


def test_a_tensor_that_goes_in_pieces_is_one() -> None:
    tensors = [300_000, 4_000, 40 * MIB, 4_000, 2 * MIB, 900]

    found = told(events_of(Training(tensors=tensors, chunk_bytes=MIB), Random(2)))

    assert found.largest_bytes == pytest.approx(40 * MIB, rel=0.01)
    assert found.sent_bytes == sum(tensors)


def test_alike_halves_of_an_iteration_are_told_apart_by_the_pause() -> None:
    found = told(events_of(Training(tensors=[5 * MIB, 5 * MIB], iterations=10), Random(3)))

    assert found.iteration_s == pytest.approx(0.2, rel=0.1)
    assert found.sent_bytes == 10 * MIB


def test_a_long_break_in_between_does_not_hide_the_iterations() -> None:
    events = events_of(Training(tensors=[5 * MIB, 5 * MIB], iterations=10), Random(3))
    late = [event._replace(at_ns=event.at_ns + (30 * 10**9 if at > 9 else 0)) for at, event in enumerate(events)]

    assert told(late).iteration_s == pytest.approx(0.2, rel=0.1)


def test_a_server_that_is_read_from_is_told_by_what_is_read() -> None:
    sent = events_of(Training(tensors=[8 * MIB, MIB]), Random(4))
    events = [one for event in sent for one in (event._replace(bytes=64), event._replace(is_read=True))]

    assert told(events).sent_bytes == 9 * MIB


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "sent nothing"),
        ([Event(at * 10**9, 1, 4096, False, False) for at in range(3)], "no 3 iterations"),
        ([Event(at * 10_000, 1, 65_536, False, False) for at in range(2000)], "no training does"),
        ([Event(at * 10**9, 1, 40, False, False) for at in range(100)], "too few for a model"),
        ([Event(at * 10**7, 1, 1000 + at**3, False, False) for at in range(200)], "no 3 iterations"),
    ],
)
def test_it_says_why_it_can_not_tell(events: list[Event], words: str) -> None:
    found = summarise(events)

    assert found.problem
    assert words in found.problem


@given(
    st.lists(
        st.builds(
            Event, st.integers(0, 2**64 - 1), st.integers(0, 65535), st.integers(0, 2**44 - 1), st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_nothing_that_a_job_could_have_written_breaks_it(events: list[Event]) -> None:
    found = summarise(sorted(events))

    assert found.problem or 0 < found.largest_bytes <= found.sent_bytes


def test_a_checkpoint_after_every_third_iteration_makes_three_no_one() -> None:
    events = events_of(Training(tensors=[5 * MIB, MIB], iterations=30), Random(5))
    late = [event._replace(at_ns=event.at_ns + at // 6 * 5 * 10**9) for at, event in enumerate(events)]

    found = told(late)

    assert (found.sent_bytes, found.largest_bytes) == (6 * MIB, 5 * MIB)


def ring_of(buckets: Sequence[int], workers: int, rank: int, iterations: int) -> list[Event]:
    """What a worker sends to its neighbour: each bucket in equal segments of at most 1 MiB, as gloo's ring has it."""
    now_ns, found = 10**9, []
    for _ in range(iterations):
        now_ns += 150_000_000
        for bucket in buckets:
            now_ns += 8_000_000  # computing the next gradients
            segments = -(-bucket // (workers * MIB)) * workers
            size = -(-bucket // segments // 4) * 4
            sizes = [size] * (segments - 1) + [bucket - size * (segments - 1)]
            begin = rank * segments // workers  # its own part first
            rotated = [*sizes[begin:], *sizes[:begin]]
            for part in [*rotated, *rotated][: 2 * segments * (workers - 1) // workers]:
                now_ns += 400_000
                found.append(Event(now_ns - 9_000, 1, 48, False, False))
                found.append(Event(now_ns, 1, part + 48, False, False))
    return found


@pytest.mark.parametrize(("rank", "workers"), [(0, 2), (1, 2), (0, 4), (2, 4)])
@pytest.mark.parametrize(
    ("buckets", "skew"),
    [
        ((16_388_000, 67_125_248, 411_058_176, 25_300_000, 25_100_000, 8_000_000), 0.743),  # VGG16
        ((8_196_000, 26_300_000, 25_900_000, 25_400_000, 12_000_000), 0.27),  # ResNet50
    ],
)
def test_an_all_reduce_in_segments_shows_its_largest_bucket(
    buckets: tuple[int, ...], skew: float, workers: int, rank: int
) -> None:
    found = told(ring_of(buckets, workers, rank, iterations=9)[-ring.EVENTS + 1 :])

    assert found.largest_bytes / found.sent_bytes == pytest.approx(skew, abs=0.02)
    assert found.sent_bytes == pytest.approx(2 * (workers - 1) / workers * sum(buckets), rel=0.01)


def test_segments_that_go_in_another_order_each_time_are_one_tensor() -> None:
    """Of examples/train.py over gloo, as it was recorded."""
    orders = ((1204, 1192, 1204, 1204), (1204, 1204, 1192, 1204), (1192, 1204, 1204, 1204), (1204, 1204, 1204, 1192))
    random, now_ns, events = Random(6), 10**9, []
    for _ in range(60):
        now_ns += random.randrange(21_000_000, 70_000_000)
        sizes = [48, 48, *orders[random.randrange(4)], 48, 48, 52]
        for size in sizes:
            now_ns += random.randrange(4_000, 2_000_000)
            events.append(Event(now_ns, 4, size, False, False))
            if random.random() < 0.5 and size > 100:
                events.append(Event(now_ns + 1_000, 4, 48, False, False))

    found = told(events)

    assert found.iterations in range(57, 61)
    assert found.largest_bytes == 4804
