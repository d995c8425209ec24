"""Codes of frames' heads: who sits between a member and its Aggregator can end their lane, and nothing else."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from farside.agent.aggregator.door import Caller
from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorEventKind, Job, Member, Rule
from farside.training import member as member_module
from tests.aggregation.rig import AGGREGATOR_KEYS, DEADLINE_S, JOB, MEMBER_KEYS, Rig, make_job, tcp_pair
from tests.aggregation.service import service, source, training
from tests.support.ports import free_port
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

HEAD_BYTES = 56
CHUNK_AT, VERSION_AT = 8, 16


def heads_of_a_member(job: Job) -> list[bytes]:
    """What it says first on its lane: for each chunk which version it holds."""
    one, other = tcp_pair()
    member = Member(job, 1)
    with one:
        member.start(0)
        member.own(0, len(job.chunks), 0, 1)
        member.attach(0, other.detach(), shm=False, keys=MEMBER_KEYS)
        said = one.recv(len(job.chunks) * HEAD_BYTES, socket.MSG_WAITALL)
    member.close()
    return [said[at : at + HEAD_BYTES] for at in range(0, len(said), HEAD_BYTES)]


def with_bit(head: bytes, at: int) -> bytes:
    """A head with one bit changed."""
    return head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :]


FORGERIES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "another chunk": lambda heads: [heads[0], with_bit(heads[1], CHUNK_AT)],
    "another version": lambda heads: [heads[0], with_bit(heads[1], VERSION_AT)],
    "another code": lambda heads: [heads[0], with_bit(heads[1], HEAD_BYTES - 1)],
    "repeated": lambda heads: [heads[0], heads[0]],
    "left out": lambda heads: [heads[0], heads[2]],
    "changed places": lambda heads: [heads[1], heads[0]],
    "made up without a code": lambda heads: [heads[0][:48], heads[1][:48]],
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_head_that_its_sender_did_not_send_there_ends_the_lane_and_is_counted(forgery: str) -> None:
    job = make_job(Rule.SUM)
    rig = Rig(job, shm=True)
    try:
        rig.start()
        aggregator = rig.aggregators[0]
        aggregator.add_job(8, job)
        aggregator.own(8, 0, len(job.chunks), 1)
        theirs, ours = tcp_pair()
        aggregator.attach(8, 1, theirs.detach(), None, keys=AGGREGATOR_KEYS)

        with ours:
            ours.sendall(b"".join(FORGERIES[forgery](heads_of_a_member(job))))
            ours.settimeout(DEADLINE_S)
            with suppress(ConnectionResetError):
                while ours.recv(4096):
                    pass
        event = until(aggregator.next_event, what="the lane's end")
        assert event is not None

        assert (event.kind, event.job, event.error) == (AggregatorEventKind.LANE_ENDED, 8, errno.EBADMSG)
        stats = aggregator.stats(8)
        assert (stats.wrong_codes, stats.lanes, stats.uncoded_lanes) == (1, 0, 0)
        rig.push(1)
        rig.wait(1)
        assert aggregator.stats(JOB).wrong_codes == 0
    finally:
        rig.close()


def test_a_member_ends_a_lane_whose_heads_are_not_its_aggregators() -> None:
    job = make_job(Rule.SUM)
    member = Member(job, 0)
    member.start(0)
    member.own(0, len(job.chunks), 0, 1)
    one, other = tcp_pair()
    with one:
        member.attach(0, other.detach(), shm=False, keys=MEMBER_KEYS)

        one.sendall(heads_of_a_member(job)[0])  # its own key's: heads of one direction are none of the other's

        assert member.wait_lane(DEADLINE_S) == 0
    member.close()


def test_a_lane_that_ends_in_the_middle_of_a_head_counts_as_closed() -> None:
    job = make_job(Rule.SUM)
    rig = Rig(job, shm=False)
    try:
        aggregator = rig.aggregators[0]
        theirs, ours = tcp_pair()
        aggregator.attach(JOB, 1, theirs.detach(), None, keys=AGGREGATOR_KEYS)

        with ours:
            ours.sendall(heads_of_a_member(job)[0] + b"\0" * 30)
        event = until(aggregator.next_event, what="the lane's end")
        assert event is not None

        assert event.error in (errno.EPIPE, errno.ECONNRESET)
        assert aggregator.stats(JOB).wrong_codes == 0
    finally:
        rig.close()


def test_keys_of_another_length_are_refused() -> None:
    job = make_job(Rule.SUM)
    member = Member(job, 0)
    one, other = tcp_pair()
    with one, other, pytest.raises(ValueError, match="32 bytes, not 16"):
        member.attach(0, other.fileno(), shm=False, keys=b"k" * 16)
    member.close()


def test_a_member_of_the_version_before_trains_without_codes_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(*words: Any, features: Any, **more: Any) -> Caller:
        return Caller(*words, **more)

    with service(tmp_path, tcp_port=free_port()) as one:
        plans = [source(tmp_path, [one.tcp], rank) for rank in (0, 1)]
        with training(plans, "sgd") as job:
            job.step()
            (told,) = one.status()["jobs"]
            assert (told["lanes"], told["lanes_without_codes"]) == (2, 0)

        monkeypatch.setattr(member_module, "Caller", before)
        with training([source(tmp_path, [one.tcp], rank, job="before") for rank in (0, 1)], "sgd") as job:
            job.step()
            told = next(found for found in one.status()["jobs"] if found["job"] == "before")
            assert (told["lanes"], told["lanes_without_codes"]) == (2, 2)


def test_a_lane_that_is_taken_by_nobody_stays_its_callers() -> None:
    aggregator = Aggregator(1 << 20)
    one, other = tcp_pair()
    with one, other:
        with pytest.raises(EngineError):
            aggregator.attach(99, 0, one.fileno(), None, keys=AGGREGATOR_KEYS)
        one.sendall(b"x")
    aggregator.close()
