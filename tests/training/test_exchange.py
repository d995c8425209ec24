"""Iterations of members without PyTorch: what is pushed when, and that results are those of one process."""

import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.aggregator.layout import Layout, Tensor, make_layout
from farside.kmod_shim.engine.aggregation import DType, Rule, reduce
from farside.training.exchange import Exchange, Refilled, runs_of
from farside.training.region_place import RegionPlaces
from tests.training.local_session import LocalJob

TENSORS = (
    Tensor("embedding", 300_000, "f32"),
    Tensor("bias", 10, "f32"),
    Tensor("weight", 70_001, "f32"),
    Tensor("scale", 3_000, "f32"),
)


class Recorder:
    """A session that keeps the pushes, and has every result at once."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.pushed: list[int] = []
        self.calls = 0
        self.absent: set[int] = set()
        self.waits: list[tuple[int, int, int]] = []

    def push(self, first: int, count: int, iteration: int, *, absent: bool = False) -> None:
        self.calls += 1
        self.absent.update(range(first, first + count) if absent else ())
        self.pushed.extend(range(first + count - 1, first - 1, -1))

    def wait(self, first: int, count: int, version: int) -> None:
        self.waits.append((first, count, version))


@st.composite
def tensors_in_some_order(draw: st.DrawFn) -> tuple[list[Tensor], list[int]]:
    counts = draw(st.lists(st.sampled_from([1, 7, 5_000, 20_000, 70_000, 140_000]), min_size=1, max_size=12))
    order = draw(st.permutations(range(len(counts))))
    return [Tensor(f"t{number}", count, "f32") for number, count in enumerate(counts)], list(order)


@given(tensors_in_some_order())
def test_chunks_leave_in_descending_order_whatever_order_gradients_come_in(
    case: tuple[list[Tensor], list[int]],
) -> None:
    tensors, order = case
    session = Recorder(make_layout(tensors))
    exchange = Exchange(session, version=4)

    for tensor in order:
        exchange.begin(tensor)
        exchange.fill(tensor)
    exchange.finish()

    assert session.pushed == list(range(len(session.layout.chunks) - 1, -1, -1))
    assert exchange.version == 5
    assert exchange.all_stale() == list(range(len(tensors)))


def test_many_complete_chunks_leave_with_one_call() -> None:
    session = Recorder(make_layout([Tensor("large", 1 << 20, "f32")]))
    exchange = Exchange(session, version=0)

    exchange.begin(0)
    exchange.fill(0)

    assert (session.calls, len(session.pushed)) == (1, 16)


def test_chunks_of_which_no_tensor_has_a_gradient_are_pushed_as_such() -> None:
    session = Recorder(make_layout(TENSORS))  # embedding: chunks 0 to 4; bias and scale: 5; weight: 6 and 7
    exchange = Exchange(session, version=0)
    absent = {1, 2}
    assert exchange.sharing(absent) == [1]
    assert exchange.sharing({1, 2, 3}) == []

    for tensor in range(4):
        exchange.begin(tensor)
        exchange.fill(tensor, is_absent=tensor in absent)
    exchange.finish()

    assert session.pushed == list(range(7, -1, -1))
    assert session.absent == {6, 7}


def test_nothing_is_put_in_place_before_every_result_of_the_iteration_before_is_there() -> None:
    session = Recorder(make_layout(TENSORS))
    exchange = Exchange(session, version=7)

    exchange.begin(2)

    assert session.waits == [(0, len(session.layout.chunks), 7)]


def test_a_second_gradient_of_an_iteration_is_refused_before_it_is_put_in_place() -> None:
    exchange = Exchange(Recorder(make_layout(TENSORS)), version=0)
    exchange.begin(2)
    exchange.fill(2)

    with pytest.raises(Refilled) as refused:
        exchange.begin(2)

    assert refused.value.tensor == 2


def test_a_tensor_is_behind_until_its_result_has_arrived() -> None:
    session = Recorder(make_layout(TENSORS))
    exchange = Exchange(session, version=0)
    for tensor in range(len(TENSORS)):
        exchange.begin(tensor)
        exchange.fill(tensor)
    exchange.finish()
    session.waits.clear()

    exchange.wait([0, 3])
    exchange.arrived([0, 3])

    assert all(version == 1 for _first, _count, version in session.waits)
    assert exchange.stale(range(4)) == [1, 2]
    assert exchange.has_stale
    exchange.arrived([1, 2])
    assert not exchange.has_stale


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_numbers(numbers: set[int]) -> None:
    runs = runs_of(numbers)

    assert {number for first, count in runs for number in range(first, first + count)} == numbers
    assert sum(count for _first, count in runs) == len(numbers)


@pytest.fixture
def local_job() -> Iterator[LocalJob]:
    job = LocalJob(members=2)
    yield job
    job.close()


def test_two_members_whose_gradients_come_in_other_orders_get_the_mean(local_job: LocalJob) -> None:
    iterations = 5
    results: dict[int, list[bytes]] = {}

    def train(rank: int) -> None:
        session = local_job.session(rank, "mean", TENSORS)
        session.connect()
        session.wait(0, len(session.layout.chunks), 0)
        places = RegionPlaces(session.layout, session.member)
        exchange = Exchange(session, version=0)
        order = random.Random(rank)
        kept: list[bytes] = []
        for iteration in range(1, iterations + 1):
            for tensor in order.sample(range(len(TENSORS)), len(TENSORS)):
                exchange.begin(tensor)
                gradient = gradient_of(rank, tensor, iteration)
                np.frombuffer(places.gradients(iteration)[tensor], np.float32)[:] = gradient
                exchange.fill(tensor)
            exchange.finish()
            stale = exchange.all_stale()
            exchange.wait(stale)
            exchange.arrived(stale)
            kept.extend(bytes(place) for place in places.results)
        results[rank] = kept

    threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    wanted = []
    for iteration in range(1, iterations + 1):
        for tensor, one in enumerate(TENSORS):
            output = np.zeros(one.count, np.float32)
            reduce(Rule.MEAN, DType.F32, [gradient_of(rank, tensor, iteration) for rank in (0, 1)], [output])
            wanted.append(output.tobytes())
    assert results[0] == wanted
    assert results[1] == wanted


def gradient_of(rank: int, tensor: int, iteration: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    rng = np.random.default_rng(100 * iteration + 10 * tensor + rank)
    return rng.normal(size=TENSORS[tensor].count).astype(np.float32)
