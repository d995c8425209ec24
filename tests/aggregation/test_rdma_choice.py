"""Members and Aggregators choose RDMA or TCP; where no queue pair can be made a lane goes by TCP, and is counted."""

import asyncio
import os
import socket
from contextlib import ExitStack

import pytest

from farside.agent.aggregator import pairing as pairing_module
from farside.agent.aggregator.door import Feature, Hello, Pair
from farside.agent.aggregator.pairing import Pairing
from farside.errors import ConfigError, RemoteProtocolError
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
    monkeypatch.setattr(queue_pair.os, "uname", lambda: changed)

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
    monkeypatch.setattr(queue_pair.time, "monotonic", lambda: float("inf"))
    assert choice.features(0, is_shm=False) == BOTH


@pytest.mark.usefixtures("device")
def test_a_queue_pair_that_ends_at_once_is_not_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = RdmaChoice("auto")
    choice.lane_begins(0)
    choice.lane_ended(0)
    choice.lane_begins(1)
    now_s = queue_pair.time.monotonic()
    monkeypatch.setattr(queue_pair.time, "monotonic", lambda: now_s + 10)
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
