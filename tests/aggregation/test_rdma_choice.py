"""Members and Aggregators choose RDMA or TCP; where no queue pair can be made a lane goes by TCP, and is counted."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from farside.agent.aggregator import pairing as pairing_module
from farside.agent.aggregator.door import (
    NONCE_BYTES,
    Answer,
    Attach,
    Caller,
    Feature,
    Hello,
    Invite,
    Pair,
    Refused,
    Welcome,
)
from farside.agent.aggregator.entrance import Entrance
from farside.agent.aggregator.jobs import Jobs
from farside.agent.aggregator.layout import Tensor
from farside.agent.aggregator.pairing import Pairing
from farside.agent.aggregator.plan import Run, job_key
from farside.errors import ConfigError, RemoteProtocolError
from farside.kmod_shim.engine.aggregation import Aggregator
from farside.training import queue_pair
from farside.training.queue_pair import RDMA, RdmaChoice

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")

BOTH = Feature.CODES | Feature.RDMA
KNOWN = Feature.CODES | Feature.APART
HELLO = Hello(1, "j", 0, b"k" * 8, b"n" * 32)
WELCOME = b"welcome"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have an RDMA device; nothing can be done with it."""
    monkeypatch.setattr(queue_pair, "rdma_devices", lambda: 1)
    monkeypatch.setattr(pairing_module, "rdma_devices", lambda: 1)


@pytest.mark.usefixtures("device")
def test_a_member_offers_rdma_by_tcp_alone_and_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RdmaChoice(None).features(0, is_shm=False) == BOTH
    assert RdmaChoice(None).features(0, is_shm=True) == Feature.NONE
    assert RdmaChoice("off").features(0, is_shm=False) == Feature.CODES
    monkeypatch.setenv(RDMA, "off")
    assert RdmaChoice(None).features(0, is_shm=False) == Feature.CODES


def test_a_machine_without_a_device_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pair, "rdma_devices", lambda: 0)
    monkeypatch.setattr(pairing_module, "rdma_devices", lambda: 0)

    assert RdmaChoice("auto").features(0, is_shm=False) == Feature.CODES
    assert Pairing(rdma="auto").features == KNOWN
    assert "no RDMA device here" in Pairing(rdma="auto").lacks


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("release", "offered"), [("5.11.0-49", Feature.CODES), ("5.12.1", BOTH), ("odd", Feature.CODES)]
)
def test_a_kernel_on_which_forks_take_pages_away_is_offered_none(
    release: str, offered: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = os.uname()
    changed = os.uname_result((names.sysname, names.nodename, release, names.version, names.machine))
    monkeypatch.setattr(os, "uname", lambda: changed)

    assert RdmaChoice("auto").features(0, is_shm=False) == offered


def test_another_word_than_auto_and_off_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RDMA, "yes")

    with pytest.raises(ConfigError, match="FARSIDE_AGGREGATION_RDMA: 'yes' is no choice; let it be auto or off"):
        RdmaChoice(None)


@pytest.mark.usefixtures("device")
def test_an_aggregator_that_could_not_be_paired_with_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = RdmaChoice("auto")

    choice.fell_back(0, "a test")

    assert choice.features(0, is_shm=False) == Feature.CODES
    assert choice.features(1, is_shm=False) == BOTH
    monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
    assert choice.features(0, is_shm=False) == BOTH


@pytest.mark.usefixtures("device")
def test_a_queue_pair_that_ends_at_once_is_not_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = RdmaChoice("auto")
    choice.lane_begins(0)
    choice.lane_ended(0)
    choice.lane_begins(1)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 10)
    choice.lane_ended(1)

    assert choice.features(0, is_shm=False) == Feature.CODES
    assert choice.features(1, is_shm=False) == BOTH


@pytest.mark.usefixtures("device")
def test_an_aggregator_may_be_told_to_use_none() -> None:
    assert Pairing(rdma="auto").features == KNOWN | Feature.RDMA
    assert Pairing(rdma="off").features == KNOWN
    assert Pairing(rdma="off").lacks == "off"


@pytest.mark.usefixtures("device")
def test_a_member_that_does_not_come_gets_a_lane_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing_module, "PAIR_LIMIT_S", 0.02)
    pairing = Pairing(rdma="auto")

    async def wait() -> object:
        with pairing.invited(HELLO) as invitation:
            return await pairing.made(invitation)

    assert asyncio.run(wait()) is None
    assert pairing.fallbacks == 1


@pytest.mark.usefixtures("device")
def test_a_queue_pair_that_can_not_be_made_means_a_lane_by_tcp() -> None:
    pairing = Pairing(rdma="auto")
    ours, theirs = socket.socketpair()

    async def wait() -> object:
        with pairing.invited(HELLO) as invitation:
            pairing.come(HELLO, Pair(invitation.number, 5), ours, WELCOME)
            theirs.close()
            return await pairing.made(invitation)

    assert asyncio.run(wait()) is None
    assert pairing.fallbacks == 1
    assert ours.fileno() == -1


@pytest.mark.usefixtures("device")
def test_nobody_takes_the_place_of_one_who_was_invited() -> None:
    pairing = Pairing(rdma="auto")
    other = Hello(1, "other", 0, HELLO.key_id, HELLO.nonce)

    async def come() -> None:
        with ExitStack() as stack, pairing.invited(HELLO) as invitation:
            ends = [socket.socketpair() for _try in range(4)]
            for _ours, theirs in ends:
                stack.enter_context(theirs)
            for hello, number, (ours, _theirs) in (
                (HELLO, invitation.number + 1, ends[0]),
                (other, invitation.number, ends[1]),
            ):
                with pytest.raises(RemoteProtocolError, match="nobody was invited"):
                    pairing.come(hello, Pair(number, 5), ours, WELCOME)
                assert ours.fileno() == -1
            pairing.come(HELLO, Pair(invitation.number, 5), ends[2][0], WELCOME)
            assert ends[2][1].recv(100) == WELCOME
            with pytest.raises(RemoteProtocolError, match="too late"):
                pairing.come(HELLO, Pair(invitation.number, 5), ends[3][0], WELCOME)
            invitation.came.result()[0].close()

    asyncio.run(come())


# ---- members that are invited, and make no pair: who gets a lane once the time for one is over


class OpenDoor:
    """An Aggregator's entrance in this process, for members who are invited."""

    def __init__(self, engine: Aggregator) -> None:
        self.key = secrets.token_bytes(32)
        self.jobs = Jobs(engine, jobs_max=8, keep_s=60, memory_bytes=1 << 20, secrets=lambda: (self.key,))
        self.entrance = Entrance(engine, self.jobs, incarnation=1, pairing=Pairing(rdma="auto"))
        self.listener = socket.create_server(("127.0.0.1", 0))

    async def lane(
        self, rank: int, *, life: int, rule: str = "sum", meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Answer:
        """The last word to a member; ``meanwhile``: done when it has been invited."""
        request = Attach(
            number=0, rank=rank, members=2, rule=rule, tensors=(Tensor("a", 1000, "f32"),), life=life, has_region=False,
            runs=(Run(first=0, count=1, owner=0, epoch=1),),
        )  # fmt: skip
        caller = Caller(
            job_key(self.key, "j", 0), job="j", start=0, nonce=secrets.token_bytes(NONCE_BYTES), request=request,
            features=BOTH,
        )  # fmt: skip
        reader, writer = await asyncio.open_connection(*self.listener.getsockname())
        answer: Answer | None = None
        with contextlib.closing(writer):
            while not isinstance(answer, Welcome | Refused):
                writer.write(caller.to_send())
                answer = caller.receive(await reader.read(caller.needed))
                if isinstance(answer, Invite) and meanwhile is not None:
                    await meanwhile()
        return answer

    async def drop(self) -> None:
        """Lets its job go, as when the plan has it no longer."""
        (job,) = self.jobs
        self.jobs.drop(job, why="a test")


def hear(monkeypatch: pytest.MonkeyPatch, *lanes: Callable[[OpenDoor], Awaitable[Answer]]) -> list[Answer]:
    """What members hear that come at once."""
    monkeypatch.setattr(pairing_module, "PAIR_LIMIT_S", 0.2)
    engine = Aggregator(1 << 20)
    door = OpenDoor(engine)

    async def talk() -> list[Answer]:
        serving = asyncio.get_running_loop().create_task(door.entrance.accept(door.listener))
        found = await asyncio.gather(*(lane(door) for lane in lanes))
        serving.cancel()
        return list(found)

    with door.listener:
        found = asyncio.run(talk())
    engine.close()
    return found


@pytest.mark.usefixtures("device")
def test_two_members_of_a_job_that_only_sums_come_at_once_and_both_get_their_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = hear(monkeypatch, lambda door: door.lane(0, life=1), lambda door: door.lane(1, life=2))

    assert [(type(one), getattr(one, "has_rdma", None)) for one in found] == [(Welcome, False)] * 2


@pytest.mark.usefixtures("device")
def test_a_member_whose_job_was_let_go_while_it_waited_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = hear(monkeypatch, lambda door: door.lane(0, life=1, rule="sgd", meanwhile=door.drop))

    assert found == Refused("job j was let go while its queue pair was made", is_final=False)


@pytest.mark.usefixtures("device")
def test_a_member_whose_rank_came_anew_while_it_waited_has_lost_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    newer: list[Answer] = []

    async def come(door: OpenDoor) -> None:
        newer.append(await door.lane(0, life=2, rule="sgd"))

    (older,) = hear(monkeypatch, lambda door: door.lane(0, life=1, rule="sgd", meanwhile=lambda: come(door)))

    assert isinstance(newer[0], Welcome)
    assert isinstance(older, Refused)
    assert "another process of rank 0 has come since" in older.line
