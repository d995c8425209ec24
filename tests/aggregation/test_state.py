"""Parameters and optimizer state of a running job: fetched, given to a start, and joined by members that come anew."""

import errno
from typing import Any

import numpy as np
import pytest

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import DType, Hyper, Job, Rule
from tests.aggregation.rig import ARRAYS, DEADLINE_S, Reference, Rig, gradient_of, make_job
from tests.support.waiting import until

HYPER = {Rule.SGD: Hyper(lr=0.1, momentum=0.9), Rule.ADAM: Hyper(lr=0.01)}
WAYS = pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])


def trained(job: Job, reference: Reference, rig: Rig, iterations: range) -> None:
    for iteration in iterations:
        rig.push(iteration)
        wanted = reference.step(iteration)
        assert rig.wait(iteration) == [wanted] * job.members


def assert_state(rig: Rig, reference: Reference, version: int) -> list[tuple[Any, ...]]:
    """Every member can have it, and it is what one process has."""
    found: list[tuple[Any, ...]] = []
    for member in rig.members:
        found = member.fetch(0, len(rig.job.chunks), version, DEADLINE_S)
        for index, arrays in enumerate(found):
            wanted = reference.masters[index][: ARRAYS[rig.job.rule]]
            assert [array.tobytes() for array in arrays] == [array.tobytes() for array in wanted]
    return found


@WAYS
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("rule", [Rule.SGD, Rule.ADAM])
def test_a_job_goes_on_from_the_state_that_another_one_had(rule: Rule, dtype: DType, shm: bool) -> None:
    job = make_job(rule, dtype=dtype)
    reference = Reference(job, HYPER[rule])
    rig = Rig(job, shm=shm, hyper=HYPER[rule], aggregators=2)
    try:
        rig.start()
        trained(job, reference, rig, range(1, 4))
        state = assert_state(rig, reference, 3)
        results = [bytes(rig.members[0].result(index)) for index in range(5)]
    finally:
        rig.close()

    rig = Rig(job, shm=shm, hyper=HYPER[rule], aggregators=2)
    try:
        rig.start(version=3, parameters=results, state=state)
        # The state of a start is still at rank 0 when its owner dies before the first update.
        rig.kill(0)
        assert_state(rig, reference, 3)
        trained(job, reference, rig, range(4, 7))
        assert_state(rig, reference, 6)
    finally:
        rig.close()


@WAYS
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("rule", [Rule.SGD, Rule.ADAM])
def test_members_that_all_come_anew_in_mid_iteration_go_on_from_the_last_whole_one(
    rule: Rule, moves: bool, shm: bool
) -> None:
    job = make_job(rule)
    reference = Reference(job, HYPER[rule])
    rig = Rig(job, shm=shm, hyper=HYPER[rule], aggregators=2)
    try:
        rig.start()
        trained(job, reference, rig, range(1, 3))
        if moves:
            rig.move(0, 1)
            rig.watch_moves()
        for rank, member in enumerate(rig.members):
            for index in (0, 3):
                member.gradient(index, 3)[:] = gradient_of(job, rank, index, 3).tobytes()
                member.push(index, 1, 3)
        for member in rig.members:
            for index in (0, 3):
                member.wait(index, 1, 3, DEADLINE_S)
        for rank in range(job.members):
            rig.replace(rank)

        wanted = [array.astype(np.float32).tobytes() for array, *_ in reference.masters]
        assert rig.wait(2) == [wanted] * job.members
        assert [member.version(0, 5) for member in rig.members] == [2, 2]
        # On new lanes they stay there, though owners have gone on.
        rig.cut_all()
        assert_state(rig, reference, 2)
        assert rig.wait(2) == [wanted] * job.members
        rig.members[0].hyper(0, 3, rig.hyper)
        trained(job, reference, rig, range(3, 6))
        assert_state(rig, reference, 5)
    finally:
        rig.close()


def test_state_is_refused_where_there_is_none_or_where_it_does_not_fit() -> None:
    job = make_job(Rule.SUM)
    rig = Rig(job, shm=True)
    try:
        rig.start()
        with pytest.raises(EngineError) as caught:
            rig.members[0].fetch(0, 5, 0, 1)
        assert caught.value.errno == errno.EINVAL
    finally:
        rig.close()
    rig = Rig(make_job(Rule.SGD), shm=True, hyper=HYPER[Rule.SGD])
    try:
        with pytest.raises(ValueError, match="state of 1 chunks, and the job has 5"):
            rig.members[0].start(0, [()])
        with pytest.raises(ValueError, match="chunk 0: 2 arrays of 1000 float32 are needed"):
            rig.members[0].start(0, [(b"",)] * 5)
        rig.start()
        for version, pushes in ((1, False), (0, True)):
            if pushes:
                rig.members[0].push(0, 5, 1)
            with pytest.raises(EngineError) as caught:
                rig.members[0].fetch(0, 5, version, 1)
            assert caught.value.errno == errno.EAGAIN
        with pytest.raises(EngineError) as caught:
            rig.members[0].start(0)
        assert caught.value.errno == errno.EINVAL
    finally:
        rig.close()


def test_a_fetch_goes_on_when_lanes_are_cut_and_its_owner_dies() -> None:
    job = make_job(Rule.ADAM)
    reference = Reference(job, HYPER[Rule.ADAM])
    rig = Rig(job, shm=False, hyper=HYPER[Rule.ADAM])
    try:
        rig.start()
        for iteration in range(1, 6):
            trained(job, reference, rig, range(iteration, iteration + 1))
            rig.cut_all()
            if iteration % 2:
                rig.kill(0)
            assert_state(rig, reference, iteration)
            until(lambda: rig.aggregators[0].stats(7).lanes == 2, what="both members to be there")
    finally:
        rig.close()
