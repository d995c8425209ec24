"""Lanes that fail in the middle of frames, at both ends: every result stays that of one process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorEventKind, Member, Rule
from farside.kmod_shim.engine.binding import Fault
from tests.aggregation.rig import Reference, Rig, make_job
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

ITERATIONS = 8
# Of frames that a member sends, and an Aggregator: a prime number, so that each kind of frame is hit.
EVERY = 23


@contextmanager
def training(rule: Rule, *, shm: bool, aggregators: int = 1) -> Iterator[Rig]:
    """A job that has begun."""
    rig = Rig(make_job(rule), shm=shm, aggregators=aggregators)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def all_moved(rig: Rig) -> bool:
    """Whether all chunks are where they were sent to, after another look."""
    rig.watch_moves()
    return rig.moved == len(rig.job.chunks)


def spoil(rig: Rig, kind: Fault, every: int, delay_us: int = 0) -> None:
    """Faults of all lanes."""
    ends: tuple[Member | Aggregator, ...] = (*rig.members, *rig.aggregators)
    for end in ends:
        end.fault_set(kind, every, delay_us)


def ended_lanes(rig: Rig) -> int:
    """Lanes whose ends nobody has been told of so far."""
    return sum(
        event.kind is AggregatorEventKind.LANE_ENDED
        for aggregator in rig.aggregators
        for event in iter(aggregator.next_event, None)
    )


def train(rig: Rig, iterations: int = ITERATIONS) -> None:
    """Each result is that of one process."""
    reference = Reference(rig.job, rig.hyper)
    for iteration in range(1, iterations + 1):
        rig.push(iteration)
        expected = reference.step(iteration)
        assert rig.wait(iteration) == [expected] * rig.job.members


@pytest.mark.parametrize("shm", [True, False])
@pytest.mark.parametrize("kind", [Fault.DISCONNECT, Fault.SHORT, Fault.ERROR, Fault.CORRUPT])
@pytest.mark.parametrize("rule", [Rule.MEAN, Rule.ADAM])
def test_a_lane_that_fails_in_any_way_loses_nothing(rule: Rule, kind: Fault, shm: bool) -> None:
    with training(rule, shm=shm) as rig:
        spoil(rig, kind, EVERY)

        train(rig)


def test_faults_are_those_that_were_asked_for() -> None:
    with training(Rule.SGD, shm=False) as rig:
        ended_lanes(rig)
        rig.members[0].fault_set(Fault.CORRUPT, 2)
        rig.push(1)
        until(lambda: ended_lanes(rig), what="a lane that ends")
        assert rig.aggregators[0].stats(7).wrong_codes > 0
        rig.members[0].fault_set(Fault.CORRUPT, 0)

        rig.wait(1)


@pytest.mark.parametrize("shm", [True, False])
def test_slow_lanes_change_nothing(shm: bool) -> None:
    with training(Rule.ADAM, shm=shm, aggregators=2) as rig:
        spoil(rig, Fault.DELAY, 3, 500)

        train(rig, 3)
        assert ended_lanes(rig) == 0


def test_what_hangs_goes_on_when_its_lane_has_been_made_anew() -> None:
    with training(Rule.SGD, shm=False) as rig:
        for aggregator in rig.aggregators:
            aggregator.fault_set(Fault.HANG, 4)
        rig.push(1)
        until(lambda: rig.aggregators[0].stats(7).updates == len(rig.job.chunks), what="the updates")
        for aggregator in rig.aggregators:
            aggregator.fault_set(Fault.HANG, 0)

        rig.cut_all()

        assert rig.wait(1) == [Reference(rig.job, rig.hyper).step(1)] * rig.job.members


@pytest.mark.parametrize("kind", [Fault.DISCONNECT, Fault.SHORT, Fault.CORRUPT])
def test_chunks_move_by_lanes_that_fail(kind: Fault) -> None:
    with training(Rule.ADAM, shm=False, aggregators=2) as rig:
        reference = Reference(rig.job, rig.hyper)
        spoil(rig, kind, EVERY)
        for iteration in range(1, ITERATIONS + 1):
            if iteration == 2:
                for index in range(len(rig.job.chunks)):
                    rig.move(index, 1 - rig.places[index].owner)
            rig.push(iteration)
            assert rig.wait(iteration) == [reference.step(iteration)] * rig.job.members
        spoil(rig, kind, 0)
        until(lambda: all_moved(rig), what="the moves' ends")
