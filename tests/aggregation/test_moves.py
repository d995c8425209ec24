"""Chunks that move between Aggregators while their job trains: its results are those of one process, bit for bit."""

import contextlib
import errno
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorEventKind, Chunk, DType, Hyper, Job, Rule
from tests.aggregation.rig import DEADLINE_S, JOB, Place, Reference, Rig, make_job
from tests.support.waiting import until

HYPER = {Rule.SGD: Hyper(lr=0.1, momentum=0.9), Rule.ADAM: Hyper(lr=0.01)}
RULES = [Rule.SUM, Rule.SGD, Rule.ADAM]
WAYS = pytest.mark.parametrize("shm", [True, False], ids=["shm", "tcp"])


class Training:
    """A rig, and what one process computes beside it."""

    def __init__(self, job: Job, *, shm: bool, aggregators: int = 2) -> None:
        self.rig = Rig(job, shm=shm, hyper=HYPER.get(job.rule), aggregators=aggregators)
        self.reference = Reference(job, self.rig.hyper)
        self.iteration = 0

    def begin(self) -> None:
        """An iteration's gradients go out."""
        self.iteration += 1
        self.rig.push(self.iteration)

    def end(self) -> None:
        """Its results are everywhere, and right."""
        wanted = self.reference.step(self.iteration)
        for rank, found in enumerate(self.rig.wait(self.iteration)):
            assert found == wanted, f"rank {rank} differs after iteration {self.iteration}"

    def step(self) -> None:
        self.begin()
        self.end()

    def step_until_moved(self, count: int) -> None:
        """Trains on until so many moves are over: each needs an iteration, and then one more to be known."""
        last = self.iteration + 50
        while self.rig.moved < count:
            assert self.iteration < last, f"{self.rig.moved} of {count} moves are over"
            self.step()


@contextlib.contextmanager
def training(job: Job, *, shm: bool, aggregators: int = 2) -> Iterator[Training]:
    made = Training(job, shm=shm, aggregators=aggregators)
    try:
        made.rig.start()
        yield made
    finally:
        made.rig.close()


@WAYS
@pytest.mark.parametrize("rule", RULES)
def test_a_job_is_equal_bit_for_bit_while_every_chunk_moves_to_and_fro_ten_times(rule: Rule, shm: bool) -> None:
    with training(make_job(rule), shm=shm) as job:
        chunks = len(job.rig.job.chunks)
        for turn in range(1, 11):
            for index in range(chunks):
                job.rig.move(index, 1 - job.rig.places[index].owner)
            job.step_until_moved(turn * chunks)
        assert all(place.owner == index % 2 for index, place in enumerate(job.rig.places))
        job.step()


@WAYS
def test_narrow_formats_move_with_their_wide_masters(shm: bool) -> None:
    with training(make_job(Rule.ADAM, dtype=DType.F16), shm=shm) as job:
        for turn in range(1, 4):
            for index in range(5):
                job.rig.move(index, 1 - job.rig.places[index].owner)
            job.step_until_moved(5 * turn)
        job.step()


@WAYS
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])
@pytest.mark.parametrize("dies", ["owner", "next owner", "both"])
def test_a_move_whose_end_dies_before_its_commit_costs_nothing(rule: Rule, shm: bool, dies: str) -> None:
    with training(make_job(rule, members=3), shm=shm, aggregators=3) as job:
        rng = random.Random(dies)
        for _ in range(6):
            job.step()
            index = rng.randrange(5)
            if job.rig.places[index].next_owner is None:
                job.rig.move(index, (job.rig.places[index].owner + 1) % 3)
            place = job.rig.places[index]
            if rng.random() < 0.5:
                job.rig.watch_moves()
            job.begin()
            if dies != "next owner":
                job.rig.kill(place.owner)
            if dies != "owner":
                job.rig.kill(place.next_owner or 0)
            job.end()
        job.step()


@WAYS
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])
def test_lanes_that_are_cut_while_chunks_move_lose_nothing(rule: Rule, shm: bool) -> None:
    with training(make_job(rule), shm=shm) as job:
        for turn in range(1, 4):
            for index in range(5):
                job.rig.move(index, 1 - job.rig.places[index].owner)
            while job.rig.moved < 5 * turn:
                job.rig.cut_bulks()
                job.begin()
                job.rig.watch_moves()
                job.rig.cut_bulks()
                job.rig.cut_all()
                job.end()


@WAYS
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.ADAM])
def test_an_owner_that_is_named_while_training_goes_on_from_what_members_have(rule: Rule, shm: bool) -> None:
    with training(make_job(rule), shm=shm, aggregators=3) as job:
        for turn in range(6):
            job.step()
            for index in range(5):
                job.rig.reassign(index, (index + turn) % 3)
            job.begin()
            for index in range(0, 5, 2):
                job.rig.reassign(index, (index + turn + 1) % 3)
            job.end()


def test_frames_ahead_of_the_plan_wait_for_it() -> None:
    with training(make_job(Rule.ADAM), shm=True) as job:
        job.step()
        rig = job.rig
        rig.epoch += 1
        rig.places[0] = Place(owner=1, epoch=rig.epoch)
        for member in rig.members:
            member.own(0, 1, 1, rig.epoch)
        job.begin()
        for member in rig.members:
            for index in (2, 4):
                member.wait(index, 1, job.iteration, DEADLINE_S)
            with pytest.raises(EngineError) as caught:
                member.wait(0, 1, job.iteration, 0.05)
            assert caught.value.errno == errno.ETIMEDOUT
        rig.announce()
        job.end()


def test_a_lane_that_is_ahead_of_the_plan_for_too_long_ends_and_the_member_comes_again() -> None:
    with training(make_job(Rule.SUM), shm=True) as job:
        job.step()
        rig = job.rig
        rig.epoch += 1
        rig.places[0] = Place(owner=1, epoch=rig.epoch)
        rig.members[0].own(0, 1, 1, rig.epoch)
        job.begin()
        event = until(rig.aggregators[1].next_event, what="the lane to end")
        assert event is not None
        assert (event.kind, event.rank) == (AggregatorEventKind.LANE_ENDED, 0)
        assert event.error == errno.ETIMEDOUT
        rig.announce()
        job.end()


def test_words_older_than_the_last_change_nothing() -> None:
    with training(make_job(Rule.SGD), shm=True) as job:
        old = [list(job.rig.places)]
        for turn in range(1, 4):
            for index in range(5):
                job.rig.move(index, 1 - job.rig.places[index].owner)
            old.append(list(job.rig.places))
            job.step_until_moved(5 * turn)
            newest = job.rig.places
            for job.rig.places in (*old, newest):
                job.rig.announce()
            job.step()


def test_memory_of_chunks_that_have_moved_on_is_given_back() -> None:
    with training(make_job(Rule.ADAM), shm=False) as job:
        one, other = job.rig.aggregators
        job.step()
        whole = one.stats(JOB).memory_bytes + other.stats(JOB).memory_bytes
        for index in range(5):
            if job.rig.places[index].owner == 0:
                job.rig.move(index, 1)
        job.step_until_moved(3)
        job.step()

        until(lambda: one.stats(JOB).memory_bytes == 0, what="the memory to be given back")
        assert other.stats(JOB).memory_bytes == whole


def test_no_more_leaves_with_one_update_than_members_can_wait_for() -> None:
    """Chunks of 512 KiB with their momentum: of the twenty here sixteen may leave at a time."""
    with training(Job(2, Rule.SGD, (Chunk(1 << 16),) * 40), shm=True) as job:
        for index in range(0, 40, 2):
            job.rig.move(index, 1)
        job.step()
        job.step()
        assert job.rig.aggregators[0].stats(JOB).updates == 20 + 4
        job.step_until_moved(20)
        job.step()


def test_what_is_said_of_a_move_stands_until_its_commit() -> None:
    with training(make_job(Rule.SGD), shm=True) as job:
        rig = job.rig
        for index in (0, 2):
            rig.move(index, 1)
        job.rig.watch_moves()
        epochs = {index: rig.places[index].next_epoch for index in (0, 2)}
        for _ in range(2):
            job.begin()
            for member in rig.members:
                member.wait(0, 5, job.iteration, DEADLINE_S)
            job.reference.step(job.iteration)
        said = {(event.kind, event.chunk, event.count, event.epoch) for event in rig.aggregators[1].told(JOB)}
        assert said == {
            (kind, index, 1, epochs[index])
            for kind in (AggregatorEventKind.COPIED, AggregatorEventKind.PUSHED)
            for index in (0, 2)
        }
        rig.watch_moves()
        assert rig.moved == 2
        assert rig.aggregators[1].told(JOB) == ()
        job.step()


@pytest.mark.parametrize(
    "place",
    [
        {"me": 0, "owner": 0, "epoch": 0},
        {"me": 64, "owner": 0, "epoch": 1},
        {"me": 0, "owner": 64, "epoch": 1},
        {"me": 0, "owner": 0, "epoch": 2, "next_owner": 64, "next_epoch": 3},
        {"me": 0, "owner": 0, "epoch": 2, "next_owner": 1, "next_epoch": 2},
    ],
)
def test_a_plan_that_can_not_be_is_refused(place: dict[str, int]) -> None:
    aggregator = Aggregator(1 << 20)
    aggregator.add_job(JOB, make_job(Rule.SUM))
    with pytest.raises(EngineError) as caught:
        aggregator.plan(JOB, 0, 5, **place)
    assert caught.value.errno == errno.EINVAL
    aggregator.close()


def test_random_bytes_from_another_aggregator_end_their_lane_alone() -> None:
    rng = random.Random(1)
    with training(make_job(Rule.ADAM), shm=True) as job:
        for attempt in range(60):
            ours, theirs = socket.socketpair()
            attach = job.rig.aggregators[0].attach_next if attempt % 2 else job.rig.aggregators[0].attach_previous
            attach(JOB, 5, theirs.detach())
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.sendall(b"".join(frame(rng) for _ in range(20)) + rng.randbytes(200))
            ours.close()
        job.step()


def frame(rng: random.Random) -> bytes:
    """A head that is sound but for what it says."""
    kind, flags, chunk = rng.choice((32, 33, 34, 2)), rng.choice((0, 32)), rng.randrange(6)
    numbers = rng.randrange(4), rng.randrange(4), rng.randrange(2)
    return struct.pack("<IHHIIQQQII", 0x31415246, kind, flags, chunk, rng.choice((0, 0, 12288)), *numbers, 0, 0)


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=12)
@given(seed=SEEDS)
def test_whatever_moves_dies_and_breaks_each_update_counts_once(seed: int) -> None:
    play(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(seed=SEEDS)
def test_each_update_counts_once_in_a_thousand_interleavings(seed: int) -> None:
    play(seed)


def play(seed: int) -> None:
    """A job through eight iterations of all that can happen; an AssertionError says what went wrong."""
    rng = random.Random(seed)
    rule = rng.choice(RULES)
    with training(make_job(rule, members=rng.randint(1, 3), chunks=4), shm=rng.random() < 0.5, aggregators=3) as job:
        for _ in range(8):
            disturb(job.rig, rng)
            job.begin()
            disturb(job.rig, rng)
            job.end()


def disturb(rig: Rig, rng: random.Random) -> None:
    """Nothing, or something of what may happen at any moment."""
    for _ in range(rng.choice((0, 1, 1, 3))):
        what = rng.choices(("move", "reassign", "cut", "cut bulks", "kill", "watch"), (8, 1, 1, 1, 1, 3))[0]
        index = rng.randrange(len(rig.job.chunks))
        if what == "move" and rig.places[index].next_owner is None:
            rig.move(index, rng.choice([number for number in range(3) if number != rig.places[index].owner]))
        elif what == "reassign":
            rig.reassign(index, rng.randrange(3) if rig.places[index].next_owner is None else rig.places[index].owner)
        elif what == "cut":
            rig.cut_all()
        elif what == "cut bulks":
            rig.cut_bulks()
        elif what == "kill":
            rig.kill(rng.randrange(3))
        elif what == "watch":
            rig.watch_moves()
