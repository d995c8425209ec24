"""The relay of a node: members prove themselves, declare one model, and hear of plans; all by its real socket."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent import relay as relay_module
from farside.agent.aggregator.layout import DECLARATION_BYTES_MAX, WORKERS_OWN, Tensor, make_layout
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run
from farside.agent.relay import MODEL_RUNS_MAX, Relay, _few
from farside.agent.relay_protocol import (
    HEAD_BYTES,
    MEMBER_BYTES_MAX,
    Ask,
    Ticket,
    encoded,
    from_member,
    from_relay,
    length_of,
    proved_ticket,
    ticket_in,
    token_in,
    token_of,
)
from farside.errors import ConfigError, FarsideError, PeerError, RemoteProtocolError, Unavailable
from farside.training.relay_plan import SOCKET, TOKEN, RelayPlan
from tests.support.waiting import until

KEY = b"k" * 32
TENSORS = (Tensor("a", 100_000, "f32"), Tensor("b", 10, "f32"))
LAYOUT = make_layout(TENSORS)


def ticket(rank: int = 0, *, start: int = 1, uid: int | None = None) -> Ticket:
    return Ticket(job="7", start=start, rank=rank, members=2, uid=os.getuid() if uid is None else uid)


def plan(epoch: int = 5, *, digest: str = LAYOUT.digest, members: int = 2) -> JobPlan:
    return JobPlan(
        job="7", start=1, key=b"x" * 32, members=members, digest=digest,
        aggregators=(AggregatorAddress(number=0, unix="/a"),),
        runs=(Run(first=0, count=len(LAYOUT.chunks), owner=0, epoch=epoch),),
    )  # fmt: skip


class Served:
    """A relay in a thread of its own, as an agent has it in its loop."""

    def __init__(self, path: Path) -> None:
        self.told: list[m.Told] = []
        self.relay = Relay(path, KEY, self.told.append)
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        async with self.relay.serving():
            self._ready.set()
            await self._end.wait()

    def take(self, *plans: JobPlan) -> None:
        self._loop.call_soon_threadsafe(self.relay.take, plans)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def source(self, rank: int = 0, **more: Any) -> RelayPlan:
        return RelayPlan({SOCKET: str(self.path), TOKEN: token_of(ticket(rank, **more), KEY)})


@contextmanager
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "r.sock")
    try:
        yield one
    finally:
        one.end()


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except FarsideError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_members_declare_once_and_get_the_plan_when_there_is_one(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        asked = [
            in_thread(lambda rank=rank: relay.source(rank).plan(LAYOUT, rule="mean", after_epoch=0)) for rank in (0, 1)
        ]
        until(lambda: relay.told, what="the declaration")
        relay.take(plan())
        for thread, _ in asked:
            thread.join(60)

    assert [found for _, found in asked] == [[plan()], [plan()]]
    (told,) = relay.told
    model = msgspec.json.decode(told.raw, type=m.DeclaredModel)
    assert (told.service, told.job, told.start) == ("aggregator", "7", 1)
    assert (model.digest, model.rule, model.members) == (LAYOUT.digest, "mean", 2)
    assert sum(count * size for count, size in model.chunks) == sum(LAYOUT.sizes_bytes)


def test_a_member_that_has_a_plan_hears_of_the_next_one(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        relay.take(plan(5))
        source = relay.source()
        first = source.plan(LAYOUT, rule="mean", after_epoch=0)
        thread, found = in_thread(lambda: source.plan(LAYOUT, rule="mean", after_epoch=first.epoch))
        relay.take(plan(9))
        thread.join(60)

    assert (first.epoch, found[0].epoch) == (5, 9)


def test_another_model_on_the_same_node_is_refused_with_the_tensor_that_differs(tmp_path: Path) -> None:
    other = make_layout((TENSORS[0], Tensor("b", 11, "f32")))
    with served(tmp_path) as relay:
        thread, found = in_thread(lambda: relay.source(0).plan(LAYOUT, rule="mean", after_epoch=0))
        until(lambda: relay.told, what="the declaration")
        relay.take(plan())
        thread.join(60)

        with pytest.raises(PeerError) as refused:
            relay.source(1).plan(other, rule="mean", after_epoch=0)

    assert found == [plan()]
    assert "than another member on this node: tensor 'b': elements 11 here and 10 at" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_update_on_the_same_node_is_refused_as_that(tmp_path: Path) -> None:
    workers = make_layout((Tensor(WORKERS_OWN, len(TENSORS), "f32", 1), *TENSORS))
    with served(tmp_path) as relay:
        thread, _found = in_thread(lambda: relay.source(0).plan(LAYOUT, rule="sgd", after_epoch=0))
        until(lambda: relay.told, what="the declaration")
        relay.take(plan())
        thread.join(60)

        with pytest.raises(PeerError, match="update is 'worker' at rank 1 and 'server' at another member on this node"):
            relay.source(1).plan(workers, rule="mean", after_epoch=0)


def test_another_model_than_that_of_members_on_other_nodes_is_left_to_the_aggregators(tmp_path: Path) -> None:
    other = make_layout((TENSORS[0], Tensor("b", 11, "f32")))
    with served(tmp_path) as relay:
        thread, found = in_thread(lambda: relay.source(0).plan(other, rule="mean", after_epoch=0))
        until(lambda: relay.told, what="the declaration, which is the second one")
        relay.take(plan())
        thread.join(60)
        again = relay.source(0).plan(other, rule="mean", after_epoch=0)

        right = relay.source(1).plan(LAYOUT, rule="mean", after_epoch=0)

    assert [*found, again, right] == [plan()] * 3


def test_a_members_rule_and_number_must_be_the_jobs(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        thread, _ = in_thread(lambda: relay.source(0).plan(LAYOUT, rule="mean", after_epoch=0))
        until(lambda: relay.told, what="the declaration")
        relay.take(plan())
        thread.join(60)
        with pytest.raises(PeerError, match="wants 'sum', and another member on this node 'mean'"):
            relay.source(1).plan(LAYOUT, rule="sum", after_epoch=0)
        relay.take(plan(6, members=3))
        with pytest.raises(PeerError, match="the plan is of 3 members, and there are 2"):
            relay.source(1).plan(LAYOUT, rule="mean", after_epoch=5)


def test_a_token_of_another_user_or_another_node_gets_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        relay.take(plan())
        with pytest.raises(PeerError, match=f"of uid {os.getuid() + 1}, and uid {os.getuid()} shows it"):
            relay.source(uid=os.getuid() + 1).plan(LAYOUT, rule="mean", after_epoch=0)
        forged = RelayPlan({SOCKET: str(relay.path), TOKEN: token_of(ticket(), b"o" * 32)})
        with pytest.raises(PeerError, match="not of this node"):
            forged.plan(LAYOUT, rule="mean", after_epoch=0)


def test_a_start_that_is_over_ends_whoever_waits_for_its_plan(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        relay.take(plan())
        thread, found = in_thread(lambda: relay.source().plan(LAYOUT, rule="mean", after_epoch=5))
        until(lambda: relay.relay.waiting, what="the question")
        relay.take()
        thread.join(60)

    assert isinstance(found[0], PeerError)
    assert "is over" in str(found[0])


def test_an_agent_that_comes_again_answers_who_has_waited(tmp_path: Path) -> None:
    source = RelayPlan({SOCKET: str(tmp_path / "r.sock"), TOKEN: token_of(ticket(), KEY)})
    thread, found = in_thread(lambda: source.plan(LAYOUT, rule="mean", after_epoch=0))
    with served(tmp_path) as relay:
        until(lambda: relay.told, what="the declaration")
    with served(tmp_path) as relay:
        until(lambda: relay.told, what="the declaration to the next agent")
        relay.take(plan())
        thread.join(60)

    assert found == [plan()]


def test_a_source_that_is_closed_waits_no_more(tmp_path: Path) -> None:
    source = RelayPlan({SOCKET: str(tmp_path / "none"), TOKEN: token_of(ticket(), KEY)})
    thread, found = in_thread(lambda: source.plan(LAYOUT, rule="mean", after_epoch=0))

    source.close()
    thread.join(60)

    assert isinstance(found[0], Unavailable)


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(str(path))
    return sock


def test_a_user_without_a_token_holds_few_connections_and_keeps_no_member_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "USER_CONNECTIONS_MAX", 4)
    with served(tmp_path) as relay:
        relay.take(plan())
        strangers = [connected(relay.path) for _ in range(8)]

        assert [one.recv(1) for one in strangers[:4]] == [b""] * 4
        assert relay.source().plan(LAYOUT, rule="mean", after_epoch=0) == plan()
        for one in strangers:
            one.close()


def test_messages_that_do_not_end_take_little_memory_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "USER_BYTES_MAX", MEMBER_BYTES_MAX)
    monkeypatch.setattr(relay_module, "MESSAGE_LIMIT_S", 1.0)
    head = MEMBER_BYTES_MAX.to_bytes(HEAD_BYTES, "little")
    with served(tmp_path) as relay:
        relay.take(plan())
        first, second = connected(relay.path), connected(relay.path)
        first.sendall(head)
        second.sendall(head)

        assert (first.recv(1), second.recv(1)) == (b"", b"")
        assert relay.source().plan(LAYOUT, rule="mean", after_epoch=0) == plan()
        too_long = connected(relay.path)
        too_long.sendall((MEMBER_BYTES_MAX + 1).to_bytes(HEAD_BYTES, "little"))
        assert b"bytes, not" in too_long.recv(1000)
        for one in (first, second, too_long):
            one.close()


def test_a_declaration_of_the_greatest_length_is_taken(tmp_path: Path) -> None:
    layout = make_layout([Tensor(f"{number:08d}", 100, "f32", shape=(10, 10)) for number in range(65_500)])
    assert len(encoded(Ask(token="", digest="", rule="mean", tensors=layout.tensors))) > DECLARATION_BYTES_MAX
    with served(tmp_path) as relay:
        relay.take(plan(digest=layout.digest))

        assert relay.source().plan(layout, rule="mean", after_epoch=0).digest == layout.digest


def test_a_start_that_ended_before_it_had_a_plan_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MEMBERS_HELD_MAX", 2)
    with served(tmp_path) as relay:

        def has_told(count: int) -> bool:
            return len(relay.told) == count

        for start in (2, 3):
            source = relay.source(start=start)
            thread, _ = in_thread(lambda one=source: one.plan(LAYOUT, rule="mean", after_epoch=0))
            until(partial(has_told, start - 1), what="the declaration")
            source.close()
            thread.join(60)

        with pytest.raises(PeerError, match="too many jobs"):
            relay.source(start=4).plan(LAYOUT, rule="mean", after_epoch=0)
        monkeypatch.setattr(relay_module, "FORGET_S", 0.0)
        source = relay.source(start=4)
        thread, _ = in_thread(lambda: source.plan(LAYOUT, rule="mean", after_epoch=0))
        until(partial(has_told, 3), what="the declaration of the third start")
        source.close()
        thread.join(60)


def test_times_are_those_of_the_slowest_member_over_its_last_hundred_iterations(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        relay.take(plan())
        for rank, took_s in ((0, 0.1), (1, 0.3)):
            source = relay.source(rank)
            for iteration in range(1000, 1160):
                source.measured(iteration, 9.0 if iteration < 1050 else took_s)
            source.close()
        until(
            lambda: relay.relay.readings() == (m.MemberReading(job="7", start=1, iterations=160, iteration_s=0.3),),
            what="the reading",
        )


def test_a_process_of_no_job_is_told_so_in_one_line() -> None:
    for environment in ({}, {SOCKET: "/x", TOKEN: "a/b"}):
        with pytest.raises(ConfigError) as refused:
            RelayPlan(environment)
        assert "\n" not in str(refused.value)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_by_both_ends(data: bytes) -> None:
    for read in (token_in, from_member, from_relay):
        with suppress(RemoteProtocolError):
            read(data)
    with suppress(RemoteProtocolError):
        length_of(data[:4])


@given(st.text(max_size=60), st.binary(max_size=40))
def test_a_token_says_what_it_was_made_of_and_only_to_who_made_it(text: str, key: bytes) -> None:
    made = token_of(ticket(), KEY)

    assert token_in(encoded(Ask(token=made, digest="", rule="mean"))[HEAD_BYTES:]) == made
    assert proved_ticket(made, KEY, os.getuid()) == ticket_in(made) == ticket()
    for token in (text, f"{made[:-1]}x", f"{text}.{made}"):
        with pytest.raises(RemoteProtocolError):
            proved_ticket(token, KEY, os.getuid())
    if key != KEY:
        with pytest.raises(RemoteProtocolError):
            proved_ticket(made, key, os.getuid())


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 1 << 20)), min_size=1, max_size=3000))
def test_a_model_of_many_runs_is_told_in_few(runs: list[tuple[int, int]]) -> None:
    few = _few(runs)

    assert len(few) <= MODEL_RUNS_MAX
    assert sum(count for count, _ in few) == sum(count for count, _ in runs)
    total = sum(count * size for count, size in runs)
    assert total - 4 * sum(count for count, _ in runs) <= sum(count * size for count, size in few) <= total
