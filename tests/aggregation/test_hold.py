"""Results that wait until a member asks, gradients that nobody has, and numbers that differ."""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import DType, Hyper, Rule
from tests.aggregation.rig import ARRAYS, DEADLINE_S, JOB, Reference, Rig, gradient_of, make_job
from tests.support.waiting import until

HYPER = {Rule.SGD: Hyper(lr=0.1, momentum=0.9), Rule.ADAM: Hyper(lr=0.01)}
WAYS = pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])
RULES = pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])


@contextlib.contextmanager
def holding(rule: Rule, *, shm: bool, aggregators: int = 1) -> Iterator[Rig]:
    job = replace(make_job(rule), hold=True)
    rig = Rig(job, shm=shm, hyper=HYPER.get(rule), aggregators=aggregators)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


@WAYS
@RULES
def test_a_result_goes_to_whoever_has_asked_for_it(rule: Rule, shm: bool) -> None:
    with holding(rule, shm=shm) as rig:
        wanted = Reference(rig.job, rig.hyper).step(1)
        one, other = rig.members
        rig.push(1)
        for member in rig.members:
            member.wait_taken(0, 5, 1, DEADLINE_S)
        until(lambda: rig.aggregators[0].stats(JOB).updates == 5, what="all updates")
        assert [member.version(0, 5) for member in rig.members] == [0, 0]

        one.ask(0, 5, 1)
        one.wait(0, 5, 1, DEADLINE_S)
        assert [member.version(0, 5) for member in rig.members] == [1, 0]
        other.ask(1, 2, 1)
        other.wait(1, 2, 1, DEADLINE_S)
        assert other.version(0, 1) == 0
        other.ask(0, 5, 1)
        assert rig.wait(1) == [wanted, wanted]


@WAYS
@RULES
def test_who_asks_before_the_others_have_pushed_gets_the_result_when_it_is_there(rule: Rule, shm: bool) -> None:
    with holding(rule, shm=shm) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 4):
            wanted = reference.step(iteration)
            for rank, member in enumerate(rig.members):
                for index in range(5):
                    member.gradient(index, iteration)[:] = gradient_of(rig.job, rank, index, iteration).tobytes()
                member.push(0, 5, iteration)
                member.ask(0, 5, iteration)
            assert rig.wait(iteration) == [wanted, wanted]


@WAYS
@RULES
@pytest.mark.parametrize("breaks", ["lanes", "aggregator", "moves"])
def test_results_that_are_held_outlive_what_breaks(rule: Rule, shm: bool, breaks: str) -> None:
    with holding(rule, shm=shm, aggregators=2) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 9):
            wanted = reference.step(iteration)
            if breaks == "moves":
                for index, place in enumerate(rig.places):
                    if place.next_owner is None:
                        rig.move(index, 1 - place.owner)
            rig.push(iteration)
            if iteration % 2:
                rig.members[0].ask(0, 5, iteration)
            if breaks == "lanes":
                rig.cut_all()
            elif breaks == "aggregator":
                rig.kill(iteration // 2 % 2)
            rig.watch_moves()
            for member in rig.members:
                member.ask(0, 5, iteration)
            assert rig.wait(iteration) == [wanted, wanted]
        assert breaks != "moves" or rig.moved


def test_asking_for_what_was_not_pushed_is_refused() -> None:
    with holding(Rule.SUM, shm=True) as rig:
        for call in (rig.members[0].ask, rig.members[0].wait_taken):
            with pytest.raises(EngineError) as caught:
                call(0, 5, 1)
            assert caught.value.errno == errno.EAGAIN
    rig = Rig(make_job(Rule.SUM), shm=True)
    try:
        for call in (rig.members[0].ask, rig.members[0].wait_taken):
            with pytest.raises(EngineError) as caught:
                call(0, 5, 1)
            assert caught.value.errno == errno.EINVAL
    finally:
        rig.close()


@WAYS
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("rule", [Rule.SGD, Rule.ADAM])
def test_a_chunk_for_which_nobody_has_a_gradient_keeps_parameters_and_state(
    rule: Rule, dtype: DType, shm: bool
) -> None:
    job = make_job(rule, dtype=dtype)
    rig = Rig(job, shm=shm, hyper=HYPER[rule])
    try:
        rig.start()
        reference = Reference(job, rig.hyper)
        rig.push(1)
        assert rig.wait(1) == [reference.step(1)] * 2
        before = [bytes(rig.members[0].result(index)) for index in range(5)]
        for member in rig.members:
            for index in range(5):
                member.gradient(index, 2)[:] = bytes(job.chunks[index].size_bytes)
            member.push(0, 5, 2, absent=True)
        # It counts for the pushes that are repeated, too.
        rig.kill(0)

        assert rig.wait(2) == [before] * 2
        for index, arrays in enumerate(rig.members[1].fetch(0, 5, 2, DEADLINE_S)):
            kept = reference.masters[index][: ARRAYS[rule]]
            assert [array.tobytes() for array in arrays] == [array.tobytes() for array in kept]
        # One member that has a gradient is enough for an update.
        for rank, member in enumerate(rig.members):
            for index in range(5):
                gradient = gradient_of(job, rank, index, 3)
                member.gradient(index, 3)[:] = gradient.tobytes()
            member.push(0, 5, 3, absent=rank == 0)
        assert rig.wait(3) == [reference.step(3)] * 2
    finally:
        rig.close()


@pytest.mark.parametrize("first", [0, 1])
def test_a_member_whose_learning_rate_is_not_rank_0s_is_told(first: int) -> None:
    rig = Rig(make_job(Rule.SGD), shm=True, hyper=HYPER[Rule.SGD])
    try:
        rig.start()
        for rank in (first, 1 - first):
            rig.members[rank].hyper(0, 2, Hyper(lr=0.1 if rank else 0.2))
        with pytest.raises(EngineError) as caught:
            rig.members[1].wait(0, 5, 1, DEADLINE_S)
        assert caught.value.errno == errno.EDOM
    finally:
        rig.close()
