"""Members push and Aggregators update, by shared memory and inline: bit for bit what one process computes."""

import contextlib
import errno
import itertools
import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import (
    Aggregator,
    AggregatorEventKind,
    Chunk,
    DType,
    Hyper,
    Job,
    Member,
    Rule,
)
from tests.aggregation.rig import DEADLINE_S, JOB, Reference, Rig, gradient_of, make_job, start_of
from tests.support.waiting import until

ADAM = Hyper(lr=0.01)
SGD = Hyper(lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
HYPER = {Rule.SGD: SGD, Rule.ADAM: ADAM, Rule.ADAMW: Hyper(lr=0.01, weight_decay=0.05)}
ITERATIONS = 5
# Kinds of frames, as kmod_shim/engine/lane.h has them.
PUSH, RESULT = 2, 16


@contextlib.contextmanager
def running(job: Job, *, shm: list[bool] | bool, aggregators: int = 1) -> Iterator[Rig]:
    rig = Rig(job, shm=shm, hyper=HYPER.get(job.rule), aggregators=aggregators)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def assert_trains(rig: Rig, iterations: int = ITERATIONS) -> None:
    reference = Reference(rig.job, rig.hyper)
    for iteration in range(1, iterations + 1):
        rig.push(iteration)
        wanted = reference.step(iteration)
        for rank, found in enumerate(rig.wait(iteration)):
            assert found == wanted, f"rank {rank} differs after iteration {iteration}"


@pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])
@pytest.mark.parametrize("rule", list(Rule))
def test_every_member_gets_what_one_process_computes(rule: Rule, shm: bool) -> None:
    with running(make_job(rule), shm=shm) as rig:
        assert_trains(rig)


@pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])
@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        (Rule.SUM, DType.F16),
        (Rule.ADAM, DType.F16),
        (Rule.SUM, DType.F64),
        (Rule.SUM, DType.I32),
        (Rule.SUM, DType.I64),
    ],
)
def test_other_formats_are_aggregated_alike(rule: Rule, dtype: DType, shm: bool) -> None:
    with running(make_job(rule, dtype=dtype), shm=shm) as rig:
        assert_trains(rig)


@pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])
def test_four_members_on_two_aggregators_some_of_them_on_other_hosts(rule: Rule) -> None:
    with running(make_job(rule, members=4, chunks=9), shm=[True, False, True, False], aggregators=2) as rig:
        assert_trains(rig)


def test_one_member_alone_is_aggregated() -> None:
    with running(make_job(Rule.SGD, members=1), shm=True) as rig:
        assert_trains(rig)


@pytest.mark.parametrize("shm", [True, False, [True, False]], ids=["shm", "tcp", "both"])
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.SGD, Rule.ADAM])
def test_a_job_ends_bit_equal_though_its_aggregator_is_killed_in_every_iteration(
    rule: Rule, shm: list[bool] | bool
) -> None:
    with running(make_job(rule), shm=shm) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 2 * ITERATIONS + 1):
            rig.push(iteration)
            rig.kill(0)
            wanted = reference.step(iteration)
            assert rig.wait(iteration) == [wanted] * rig.job.members


@pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])
def test_a_job_ends_bit_equal_though_its_lanes_are_cut(rule: Rule, shm: bool) -> None:
    with running(make_job(rule), shm=shm, aggregators=2) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 2 * ITERATIONS + 1):
            rig.cut_all()
            rig.push(iteration)
            rig.cut_all()
            wanted = reference.step(iteration)
            assert rig.wait(iteration) == [wanted] * rig.job.members


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_a_first_update_that_is_broken_off_spoils_no_start(dtype: DType) -> None:
    with running(make_job(Rule.SGD, dtype=dtype), shm=True) as rig:
        # A killed Aggregator may have written any part of the results.
        for index in range(5):
            rig.members[0].result(index)[:7] = b"\1\2\3\4\5\6\7"
        rig.kill(0)
        assert_trains(rig)


def test_learning_rates_count_from_the_iteration_that_names_them() -> None:
    with running(make_job(Rule.SGD), shm=True) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 8):
            now = replace(rig.hyper, lr=0.1 / iteration)
            for member in rig.members:
                member.hyper(0, iteration, now)
            reference.hyper = now
            rig.push(iteration)
            # The numbers of this iteration go along with the pushes that are repeated.
            rig.kill(0)
            assert rig.wait(iteration) == [reference.step(iteration)] * 2


# ---- what is refused


@pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])
@pytest.mark.parametrize("departs", [0, 1])
def test_a_rank_whose_numbers_depart_from_rank_0s_while_it_trains_is_told(departs: int, shm: bool) -> None:
    """Only the first numbers were compared: a rank with others later got a model that it did not ask for."""
    with running(make_job(Rule.SGD), shm=shm) as rig:
        assert_trains(rig, 2)
        rig.members[departs].hyper(0, 3, replace(rig.hyper, lr=0.01))

        def train_on() -> None:
            # It is told with the result of iteration 3, and hears of it when it next has to sleep for one: on a machine
            # where results come while it looks for them that is after thousands.
            end_s, iterations = time.monotonic() + DEADLINE_S, itertools.count(3)
            while time.monotonic() < end_s:
                iteration = next(iterations)
                rig.push(iteration)
                rig.wait(iteration)

        with pytest.raises(EngineError) as caught:
            train_on()

    assert caught.value.errno == errno.EDOM


def test_numbers_that_change_at_all_ranks_in_one_iteration_are_the_same_numbers() -> None:
    with running(make_job(Rule.SGD), shm=True) as rig:
        reference = Reference(rig.job, rig.hyper)
        for iteration in range(1, 6):
            reference.hyper = replace(rig.hyper, lr=0.1 / iteration)
            # One rank says its numbers and pushes before the other has said any.
            for rank, member in enumerate(rig.members):
                member.hyper(0, iteration, reference.hyper)
                for index in range(len(rig.job.chunks)):
                    member.gradient(index, iteration)[:] = gradient_of(rig.job, rank, index, iteration).tobytes()
                member.push(0, len(rig.job.chunks), iteration)
            assert rig.wait(iteration) == [reference.step(iteration)] * 2


def test_a_push_ahead_of_its_time_is_refused() -> None:
    with running(make_job(Rule.SUM), shm=True) as rig:
        for iteration in (2, 9):
            with pytest.raises(EngineError) as caught:
                rig.members[0].push(0, 5, iteration)
            assert caught.value.errno == errno.EAGAIN
        rig.members[0].push(0, 5, 1)
        with pytest.raises(EngineError) as caught:
            rig.members[0].push(0, 5, 1)
        assert caught.value.errno == errno.EAGAIN


@pytest.mark.parametrize(
    "job",
    [
        Job(0, Rule.SUM, (Chunk(1),)),
        Job(65, Rule.SUM, (Chunk(1),)),
        Job(2, Rule.SUM, ()),
        Job(2, Rule.SUM, (Chunk(0),)),
        Job(2, Rule.SUM, (Chunk(262_145),)),
        Job(2, Rule.MEAN, (Chunk(1, DType.I64),)),
        Job(2, Rule.ADAM, (Chunk(1, DType.F64),)),
        Job(2, Rule.SUM, (Chunk(1, DType.F32, 64),)),
    ],
)
def test_a_job_out_of_bounds_is_refused_at_both_ends(job: Job) -> None:
    aggregator = Aggregator(1 << 20)
    for refused in (lambda: aggregator.add_job(JOB, job), lambda: Member(job, 0)):
        with pytest.raises(EngineError) as caught:
            refused()
        assert caught.value.errno == errno.EINVAL
    aggregator.close()


def test_a_job_beyond_the_memory_is_refused_and_leaves_none_taken() -> None:
    job = Job(2, Rule.ADAM, (Chunk(100_000),))
    aggregator = Aggregator(3_000_000)

    aggregator.add_job(1, job)
    aggregator.add_job(2, job)
    aggregator.own(1, 0, 1, 1)
    with pytest.raises(EngineError) as caught:
        aggregator.own(2, 0, 1, 1)
    assert caught.value.errno == errno.ENOMEM
    assert aggregator.stats(2).memory_bytes == 0
    aggregator.drop_job(1)
    aggregator.own(2, 0, 1, 1)

    aggregator.close()


def test_jobs_on_several_threads_share_one_budget_and_one_list_of_events() -> None:
    job = Job(1, Rule.SUM, (Chunk(100_000),) * 2)
    aggregator = Aggregator(3_000_000, threads=3)
    members = {}
    for number in range(3):
        aggregator.add_job(number, job)
        aggregator.own(number, 0, 2, 1)
    for number in range(2):
        theirs, ours = socket.socketpair()
        members[number] = Member(job, 0)
        members[number].start(0)
        members[number].own(0, 2, 0, 1)
        # Only one job's gradients have a place here.
        if number:
            with pytest.raises(EngineError) as caught:
                aggregator.attach(number, 0, theirs.fileno(), None)
            assert caught.value.errno == errno.ENOMEM
            aggregator.attach(number, 0, theirs.detach(), os.dup(members[number].region))
        else:
            aggregator.attach(number, 0, theirs.detach(), None)
        members[number].attach(0, ours.detach(), shm=bool(number))
    for member in members.values():
        member.push(0, 2, 1)
    for member in members.values():
        member.wait(0, 2, 1, 60)
        member.close()

    events = [until(aggregator.next_event, what="two ends of lanes") for _ in members]
    assert {event.job for event in events if event is not None} == {0, 1}
    aggregator.close()


@pytest.mark.parametrize("threads", [0, 65])
def test_a_number_of_threads_out_of_bounds_is_refused(threads: int) -> None:
    with pytest.raises(EngineError) as caught:
        Aggregator(1 << 20, threads=threads)
    assert caught.value.errno == errno.EINVAL


def test_a_region_that_could_shrink_or_is_too_short_is_refused() -> None:
    job = make_job(Rule.SUM)
    aggregator, one, other = Aggregator(1 << 20), *socket.socketpair()
    aggregator.add_job(JOB, job)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 1 << 20)
    short = Member(Job(2, Rule.SUM, (Chunk(1),)), 0)

    for region, why in ((unsealed, errno.EPERM), (short.region, errno.EINVAL)):
        with pytest.raises(EngineError) as caught:
            aggregator.attach(JOB, 0, one.fileno(), region)
        assert caught.value.errno == why
    for rank, number, why in ((2, JOB, errno.EINVAL), (0, 99, errno.ENOENT)):
        with pytest.raises(EngineError) as caught:
            aggregator.attach(number, rank, one.fileno(), None)
        assert caught.value.errno == why

    short.close()
    aggregator.close()
    os.close(unsealed)
    one.close()
    other.close()


FRAME = struct.Struct("<IHHIIQQQII")
MAGIC, HAVE, PUSH = 0x31415246, 1, 2


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 48,
        FRAME.pack(MAGIC, 99, 0, 0, 0, 1, 1, 0, 0, 0),
        FRAME.pack(MAGIC, PUSH, 0, 9, 0, 1, 1, 0, 0, 0),
        FRAME.pack(MAGIC, PUSH, 0, 0, 5, 1, 1, 0, 0, 0) + b"\0" * 5,
        FRAME.pack(MAGIC, PUSH, 0, 0, 2**31, 1, 1, 0, 0, 0),
        FRAME.pack(MAGIC, PUSH, 0, 0, 0, 1, 1, 0, 0, 0),
        FRAME.pack(MAGIC, HAVE, 0, 0, 0, 2**63, 1, 0, 0, 0),
        FRAME.pack(MAGIC, HAVE, 0, 0, 0, 0, 1, 0, 0, 7),
        FRAME.pack(MAGIC, 4, 0, 0, 8, 1, 1, 0, 0, 0) + b"\0" * 8,
    ],
)
def test_nonsense_ends_its_own_lane_and_no_others(sent: bytes) -> None:
    with running(make_job(Rule.SUM), shm=True) as rig:
        aggregator = rig.aggregators[0]
        aggregator.add_job(8, make_job(Rule.SUM))
        aggregator.own(8, 0, 5, 1)
        theirs, ours = socket.socketpair()
        aggregator.attach(8, 1, theirs.detach(), None)

        ours.sendall(sent)
        ours.settimeout(60)
        while ours.recv(4096):
            pass
        event = aggregator.next_event()

        assert event is not None
        assert (event.kind, event.job, event.rank, event.error) == (AggregatorEventKind.LANE_ENDED, 8, 1, errno.EPROTO)
        assert_trains(rig)
        ours.close()


def test_random_bytes_of_a_member_harm_no_other_job() -> None:
    rng = random.Random(1)
    with running(make_job(Rule.SGD), shm=False) as rig:
        rig.aggregators[0].add_job(8, make_job(Rule.ADAM))
        rig.aggregators[0].own(8, 0, 5, 1)
        for attempt in range(60):
            theirs, ours = socket.socketpair()
            rig.aggregators[0].attach(8, attempt % 2, theirs.detach(), None)
            frames = b"".join(
                FRAME.pack(
                    MAGIC, rng.choice((1, 2, 3, 4, 5)), rng.randrange(16), rng.randrange(6), 0, rng.randrange(4),
                    rng.randrange(3), 0, 0, 0,
                )
                for _ in range(20)
            )  # fmt: skip
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.sendall(frames + rng.randbytes(200))
            ours.close()
        assert_trains(rig)


def test_what_nobody_can_go_on_from_is_told_to_all_members() -> None:
    job = make_job(Rule.ADAM)
    rig = Rig(job, shm=True, hyper=ADAM)
    try:
        rig.start()
        rig.push(1)
        rig.wait(1)
        # Rank 1 comes anew, and with it goes the state of the chunks that it keeps; the Aggregator has gone, too.
        rig.members[1].close()
        rig.kill(0)
        rig.replace(1)
        for member in rig.members:
            with pytest.raises(EngineError) as caught:
                member.wait(0, 5, 2, 60)
            assert caught.value.errno == errno.ESTALE
        events = list(iter(rig.aggregators[0].next_event, None))
        assert AggregatorEventKind.LOST in {event.kind for event in events}
    finally:
        rig.close()


def test_a_member_that_came_anew_gets_the_parameters_from_the_aggregator() -> None:
    job = make_job(Rule.ADAM)
    rig = Rig(job, shm=True, hyper=ADAM)
    try:
        rig.start()
        reference = Reference(job, rig.hyper)
        rig.push(1)
        rig.wait(1)
        wanted = reference.step(1)
        rig.replace(1)

        assert rig.wait(1) == [wanted] * 2
        for iteration in (2, 3):
            rig.push(iteration)
            assert rig.wait(iteration) == [reference.step(iteration)] * 2
    finally:
        rig.close()


def test_a_result_that_is_given_again_leaves_alone_what_the_member_has_on_this_host() -> None:
    """A push may be answered late, when the member has gone on at another owner: its newer result stays."""
    job = make_job(Rule.SGD, members=1, chunks=1)
    with contextlib.closing(Aggregator(1 << 20)) as aggregator, contextlib.closing(Member(job, 0)) as member:
        aggregator.add_job(JOB, job)
        aggregator.plan(JOB, 0, 1, me=0, owner=0, epoch=1)
        with contextlib.ExitStack() as open_ends:
            theirs, its_end, ours, our_end = (
                open_ends.enter_context(end) for end in (*socket.socketpair(), *socket.socketpair())
            )
            member.result(0)[:] = start_of(job, 0).tobytes()
            member.start(0, None)
            member.own(0, 1, 0, 1)
            member.hyper(0, 1, Hyper(lr=0.1))
            aggregator.attach(JOB, 0, theirs.detach(), os.dup(member.region))
            member.attach(0, ours.detach(), shm=True)
            member.gradient(0, 1)[:] = gradient_of(job, 0, 0, 1).tobytes()
            member.push(0, 1, 1)
            pushed = carry(our_end, its_end, until_kind=PUSH)
            carry(our_end, its_end, until_kind=RESULT)
            member.wait(0, 1, 1, DEADLINE_S)

            newer = bytes(len(member.result(0)))
            member.result(0)[:] = newer
            its_end.sendall(pushed)
            given = carry(our_end, its_end, until_kind=RESULT)

            assert bytes(member.result(0)) == newer
            assert len(given) > 48, "it did not come by the lane"


def test_what_a_former_owner_still_sends_does_not_come_over_the_result_of_the_next() -> None:
    job = Job(1, Rule.SUM, (Chunk(1 << 14),))
    count = job.chunks[0].count
    with contextlib.closing(Member(job, 0)) as member, contextlib.ExitStack() as open_ends:
        former, its_end, following, other_end = (
            open_ends.enter_context(end) for end in (*socket.socketpair(), *socket.socketpair())
        )
        member.start(0, None)
        member.own(0, 1, 0, 1)
        member.attach(0, its_end.detach(), shm=False)
        member.gradient(0, 1)[:] = np.full(count, 1, np.float32).tobytes()
        member.push(0, 1, 1)
        first = result_frame(count, 1.0, version=1, epoch=1)
        former.sendall(first[: len(first) // 2])

        member.own(0, 1, 1, 2)
        member.attach(1, other_end.detach(), shm=False)
        following.sendall(result_frame(count, 1.0, version=1, epoch=2))
        member.wait(0, 1, 1, DEADLINE_S)
        member.gradient(0, 2)[:] = np.full(count, 2, np.float32).tobytes()
        member.push(0, 1, 2)
        following.sendall(result_frame(count, 2.0, version=2, epoch=2))
        member.wait(0, 1, 2, DEADLINE_S)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            former.sendall(first[len(first) // 2 :])
        assert bytes(member.result(0)) == np.full(count, 2, np.float32).tobytes()


def result_frame(count: int, value: float, *, version: int, epoch: int) -> bytes:
    """What an owner sends after an update (kmod_shim/engine/lane.h)."""
    payload = np.full(count, value, np.float32).tobytes()
    return struct.pack("<IHHIIQQQII", 0x31415246, RESULT, 0, 0, len(payload), version, epoch, 0, 0, 0) + payload


def carry(one: socket.socket, other: socket.socket, *, until_kind: int) -> bytes:
    """Hands frames on in both directions until one of this kind has passed, which is returned whole."""
    kind, frame = None, b""
    while kind != until_kind:
        ready, _, _ = select.select([one, other], [], [], DEADLINE_S)
        assert ready, f"no frame of kind {until_kind} has come"
        head = ready[0].recv(48, socket.MSG_WAITALL)
        _, kind, _, _, payload_bytes = struct.unpack_from("<IHHII", head)
        frame = head + (ready[0].recv(payload_bytes, socket.MSG_WAITALL) if payload_bytes else b"")
        (other if ready[0] is one else one).sendall(frame)
    return frame


def test_counters_say_who_is_waited_for() -> None:
    with running(make_job(Rule.SUM), shm=True) as rig:
        rig.members[1].push(0, 5, 1)
        until(lambda: rig.aggregators[0].stats(JOB).waits_for == 0, what="rank 0 to be waited for")
        rig.members[0].push(0, 5, 1)
        rig.wait(1)

        stats = rig.aggregators[0].stats(JOB)

        assert (stats.updates, stats.lanes, stats.waits_for) == (5, 2, 2)
        assert stats.pushed_bytes == stats.result_bytes == 2 * sum(chunk.size_bytes for chunk in rig.job.chunks)


def test_counters_say_what_chunks_of_different_sizes_cost() -> None:
    before_ns = time.process_time_ns()
    with running(make_job(Rule.SGD), shm=True) as rig:
        for iteration in (1, 2):
            rig.push(iteration)
            rig.wait(iteration)
        stats = rig.aggregators[0].stats(JOB)
        sizes = [2 * chunk.size_bytes for chunk in rig.job.chunks]

    assert 0 < stats.busy_ns < time.process_time_ns() - before_ns
    assert stats.size_squares == 2 * sum(size**2 for size in sizes)
    assert min(sizes) * stats.busy_ns < stats.size_times < max(sizes) * stats.busy_ns


def test_a_lane_begins_with_its_greeting_unless_it_is_refused() -> None:
    job = make_job(Rule.SUM)
    aggregator = Aggregator(1 << 20)
    aggregator.add_job(JOB, job)
    aggregator.own(JOB, 0, 5, 1)
    theirs, ours = socket.socketpair()
    ours.settimeout(60)
    short = Member(Job(2, Rule.SUM, (Chunk(1),)), 0)
    with pytest.raises(EngineError):
        aggregator.attach(JOB, 0, theirs.fileno(), short.region, b"welcome")
    aggregator.attach(JOB, 0, theirs.detach(), None, b"welcome")

    ours.sendall(FRAME.pack(MAGIC, HAVE, 0, 0, 0, 0, 1, 0, 0, 0))
    aggregator.close()

    assert b"".join(iter(lambda: ours.recv(4096), b""))[:7] == b"welcome"
    short.close()
    ours.close()


def test_what_is_served_and_what_is_held_is_known() -> None:
    rig = Rig(make_job(Rule.ADAM), shm=True, hyper=ADAM)
    try:
        assert rig.aggregators[0].stats(JOB).serves is None
        assert rig.members[1].version(0, 5) is None
        rig.start()
        rig.push(1)
        rig.wait(1)
        assert rig.aggregators[0].stats(JOB).serves == 1
        assert rig.members[1].version(0, 5) == 1
    finally:
        rig.close()


def test_the_start_of_rank_0_is_everybodys() -> None:
    with running(make_job(Rule.SGD, members=3), shm=[True, False, True]) as rig:
        wanted = [start_of(rig.job, index).tobytes() for index in range(5)]
        assert rig.wait(0) == [wanted] * 3


def test_gradients_of_a_rank_differ_so_that_equal_results_mean_something() -> None:
    job = make_job(Rule.SUM)

    assert not np.array_equal(gradient_of(job, 0, 0, 1), gradient_of(job, 1, 0, 1))
    assert not np.array_equal(gradient_of(job, 0, 0, 1), gradient_of(job, 0, 0, 2))
