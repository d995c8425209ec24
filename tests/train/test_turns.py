"""Turns of jobs that share nodes, by real executors: order, deaths, and nonsense on both sockets."""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.training import alpha, node_queue, turn_server
from farside.agent.training.executor import Wanted, run
from farside.agent.training.group import GroupHost
from farside.agent.training.link import NONCE_BYTES, Link
from farside.agent.training.messages import (
    SPILLING_VERSION,
    VERSION,
    WORKER_BYTES_MAX,
    Beat,
    Granted,
    HasDone,
    HasProgress,
    Here,
    IsReady,
    JobHere,
    OfLink,
    Refused,
    Wants,
    from_worker,
    packet_of,
    to_worker,
    wire_of_use,
)
from farside.agent.training.subtask import INIT_COMP
from farside.agent.training.turn_server import TurnServer
from farside.errors import ConfigError, PeerError, RemoteProtocolError
from farside.training.loop import turns as taking
from farside.training.loop.turns import SharedNode
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.train.executors import Executor, executor, overlapping, two_nodes

KEY = b"k" * 32
NET = ("INIT_PUSH", "PULL", "PUSH")
CPU = ("INIT_COMP", "COMP")


@given(st.binary(max_size=2 * WORKER_BYTES_MAX))
def test_nonsense_from_a_worker_is_refused_and_nothing_worse(packet: bytes) -> None:
    for decode in (from_worker, to_worker):
        try:
            decode(packet)
        except RemoteProtocolError:
            pass


def ends() -> tuple[Link, Link]:
    """Both ends of a link, before the handshake."""
    return Link(KEY, nonce=b"a" * NONCE_BYTES, node="two", epoch=7), Link(KEY, nonce=b"b" * NONCE_BYTES)


def opened(member: Link, host: Link) -> None:
    while not (member.is_open and host.is_open):
        host.receive(member.to_send())
        member.receive(host.to_send())


@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_random_bytes_end_a_link_and_are_never_a_message(parts: list[bytes], is_open: bool) -> None:
    member, host = ends()
    if is_open:
        opened(member, host)
    try:
        for part in parts:
            assert host.receive(part) == []
    except (RemoteProtocolError, PeerError):
        pass


@given(st.data())
def test_messages_pass_a_link_however_they_are_cut_and_a_changed_byte_ends_it(data: st.DataObject) -> None:
    member, host = ends()
    opened(member, host)
    assert host.hello is not None
    assert (host.hello.node, host.hello.epoch) == ("two", 7)
    sent: list[OfLink] = [HasProgress(3, "0:a", 1, -3), Beat(), IsReady(3, "0:a", 5, 9)]
    for message in sent:
        member.send(message)
    raw = member.to_send()
    cut = data.draw(st.integers(0, len(raw)))
    if data.draw(st.booleans()):
        assert host.receive(raw[:cut]) + host.receive(raw[cut:]) == sent
        return
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = bytearray(raw)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert host.receive(bytes(changed)) in ([], sent[:1], sent[:2])  # a length that grew waits for more
    except (RemoteProtocolError, PeerError):
        pass


def test_a_link_with_another_key_or_version_is_refused_by_both_ends() -> None:
    member, host = ends()
    other = Link(b"o" * 32, nonce=b"c" * NONCE_BYTES)
    with pytest.raises(PeerError, match="another key"):
        other.receive(member.to_send())
    member, host = ends()
    host.receive(member.to_send())
    with pytest.raises(PeerError, match="does not prove"):
        Link(b"o" * 32, nonce=b"c" * NONCE_BYTES, node="two").receive(host.to_send())
    member, host = ends()
    opened(member, host)
    member.send(Beat())
    with pytest.raises(RemoteProtocolError, match="no code of the peer"):
        member.receive(member.to_send())  # reflected


def test_a_link_takes_the_longest_name_of_a_job_with_the_longest_number_of_a_user() -> None:
    member, host = ends()
    opened(member, host)
    sent: list[OfLink] = [JobHere(f"{2**32 - 1}:" + 128 * "\N{SNOWMAN}", 2)]
    member.send(sent[0])

    assert host.receive(member.to_send()) == sent


def run_subtasks(turns: SharedNode, iterations: int, work: Callable[[int], None]) -> None:
    """A worker's whole life."""
    for position in [-2, -1, *range(3 * iterations)]:
        turns.ask(position)
        work(position)
        if position % 3 != 1:
            turns.done()
    turns.close()


def worker_process(path: Path, job: str, *, holds: bool = False) -> "subprocess.Popen[bytes]":
    """A worker as a process of its own; with ``holds`` it stops while it computes."""
    code = f"""
import sys, time
from farside.training.loop.turns import SharedNode
turns = SharedNode({str(path)!r}, job={job!r}, worker=0, workers=1)
for position in [-2, -1, *range(30000)]:
    turns.ask(position)
    if {holds} and position == 1:
        print("holds", flush=True)
        time.sleep(1000)
    if position % 3 != 1:
        turns.done()
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def ended(child: "subprocess.Popen[bytes]") -> None:
    """Kills a worker."""
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_job_that_computes_after_its_push_keeps_the_network_from_nobody(tmp_path: Path) -> None:
    with executor(tmp_path) as shared:
        pushes, waits = (SharedNode(str(shared.socket), job=name, worker=0, workers=1) for name in "ab")
        pushes.ask(-2)
        pushes.ask(-1)
        waits.ask(-2)
        waiter = threading.Thread(target=waits.ask, args=[-1], daemon=True)
        waiter.start()
        pushes.done()  # and asks for no pull
        waiter.join(timeout=30)

        assert not waiter.is_alive()
        assert (pushes.without, waits.without) == (0, 0)
        pushes.close()
        waits.close()


def test_two_jobs_of_a_node_neither_compute_nor_communicate_at_once(tmp_path: Path) -> None:
    with executor(tmp_path) as shared:
        children = [worker_process(shared.socket, name) for name in "ab"]
        until(lambda: len({row[0] for row in shared.trace()[400:] if row[6]}) == 2, what="turns of both")
        for child in children:
            ended(child)
        rows = shared.trace()
        assert {row[0] for row in rows if row[6]} == {f"{os.getuid()}:a", f"{os.getuid()}:b"}
        assert overlapping(rows, CPU) == overlapping(rows, NET) == []
        until(lambda: not shared.status()["jobs"], what="both jobs gone")


def test_a_killed_worker_frees_its_turn_and_a_killed_executor_stops_nobody(tmp_path: Path) -> None:
    with executor(tmp_path) as shared:
        holder = worker_process(shared.socket, "holder", holds=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        other = worker_process(shared.socket, "other")

        def place(job: str) -> str:
            return str(shared.status()["jobs"].get(f"{os.getuid()}:{job}", {}).get("place"))

        until(lambda: place("other") == "door", what="the other job at the door")
        ended(holder)
        until(lambda: shared.status()["jobs"].get(f"{os.getuid()}:other", {}).get("turns", 0) > 30, what="its turns")

        shared.kill()

        until(
            lambda: shared.status().get("jobs", {}).get(f"{os.getuid()}:other", {}).get("turns", 0) > 30, what="turns"
        )
        assert "another one is forked" in shared.log()
        assert other.poll() is None
        ended(other)


def said(path: Path, *packets: bytes) -> list[object]:
    """What an executor answers to these packets until it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(60)
        sock.connect(str(path))
        found: list[object] = []
        with contextlib.suppress(BrokenPipeError):  # it has hung up before the last one
            for packet in packets:
                sock.send(packet)
        while packet := sock.recv(WORKER_BYTES_MAX):
            found.append(to_worker(packet))
        return found


def test_nonsense_at_the_socket_is_refused_and_others_go_on(tmp_path: Path) -> None:
    with executor(tmp_path) as shared:
        here = packet_of(Here(VERSION, "a", 0, 1, -2, True))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as good:
            good.settimeout(60)
            good.connect(str(shared.socket))
            good.send(packet_of(Here(VERSION, "good", 0, 1, -2, True)))
            cases: list[tuple[tuple[bytes, ...], str]] = [
                ((b"\xc1",), "can't be understood"),
                ((b"x" * 600,), "a message of 513 bytes came; 512 are allowed"),
                ((packet_of(Wants(0)),), "Wants came before Here"),
                ((packet_of(Here(9, "a", 0, 1, -2, True)),), "version 9 of the protocol; this is 2"),
                ((packet_of(Here(VERSION, "a", 3, 2, -2, True)),), "worker 3 of 2"),
                ((here, here), "Here came twice"),
                ((here, packet_of(Wants(-2)), packet_of(Wants(7))), "it asks for 7 at -2"),
                ((here, packet_of(Beat())), "can't be understood"),
            ]
            for packets, line in cases:
                answers = said(shared.socket, *packets)
                assert isinstance(answers[-1], Refused), (packets, answers)
                assert line in answers[-1].line
            holder = worker_process(shared.socket, "a", holds=True)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holds\n"
            assert "this node has a worker of that job" in str(said(shared.socket, here)[-1])
            ended(holder)
            assert said(shared.socket) == []  # says nothing, and is hung up
            good.send(packet_of(Wants(-2)))
            answer = to_worker(good.recv(WORKER_BYTES_MAX))
            while isinstance(answer, Beat):
                answer = to_worker(good.recv(WORKER_BYTES_MAX))
            assert isinstance(answer, Granted)
        assert shared.status()["hung_up"] == len(cases) + 1


@contextlib.contextmanager
def turn_server_at(path: Path) -> Iterator[TurnServer]:
    """A server of this event loop, on a node that is alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        server = TurnServer(listener, lambda server: GroupHost(server.told, node="n", nodes=frozenset("n")))
        with contextlib.closing(server):
            yield server


async def connected(stack: contextlib.ExitStack, path: Path) -> socket.socket:
    """A worker's connection, until the stack ends."""
    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, str(path))
    return sock


def test_a_worker_whose_words_nobody_can_reckon_with_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reckoned(state: alpha.Spilling, event: alpha.Use | alpha.Left | alpha.Silent) -> alpha.Answer:
        if isinstance(event, alpha.Use) and event.job.endswith(":bad"):
            raise ZeroDivisionError("float division by zero")
        return steps(state, event)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            stack.enter_context(turn_server_at(tmp_path / "x.sock"))
            workers = []
            for name in ("bad", "good"):
                sock = await connected(stack, tmp_path / "x.sock")
                for message in (Here(SPILLING_VERSION, name, 0, 1, -2, False), wire_of_use(use)):
                    await loop.sock_sendall(sock, packet_of(message))
                workers.append(sock)
            await loop.sock_sendall(workers[1], packet_of(Wants(-2)))
            async with asyncio.timeout(60):
                answers = [to_worker(await loop.sock_recv(sock, WORKER_BYTES_MAX)) for sock in workers]
        assert isinstance(answers[0], Refused)
        assert "float division by zero" in answers[0].line
        assert isinstance(answers[1], Granted)

    use, steps = alpha.Use(job="", spilled=0.5, iteration_s=1.0), alpha.step
    monkeypatch.setattr(alpha, "step", reckoned)
    asyncio.run(scene())


@pytest.mark.parametrize("works", [True, False])
def test_a_user_whose_process_holds_turns_without_work_goes_on_without_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    clock = itertools.count(0, 1_000_000_000 if works else 0)
    monkeypatch.setattr(turn_server, "processor_time_ns", lambda _pid: next(clock))
    monkeypatch.setattr(turn_server, "IDLE_FROM_S", 0.0)
    monkeypatch.setattr(node_queue, "IDLE_MOST_S", 1e-9)

    async def scene() -> list[bool]:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            stack.enter_context(turn_server_at(tmp_path / "x.sock"))
            sock = await connected(stack, tmp_path / "x.sock")
            await loop.sock_sendall(sock, packet_of(Here(VERSION, "job", 0, 1, INIT_COMP, True)))
            leases = list[bool]()
            for position in (INIT_COMP, INIT_COMP + 1):
                await loop.sock_sendall(sock, packet_of(Wants(position)))
                async with asyncio.timeout(60):
                    granted = to_worker(await loop.sock_recv(sock, WORKER_BYTES_MAX))
                assert isinstance(granted, Granted)
                leases.append(granted.lease_s is not None)
                await loop.sock_sendall(sock, packet_of(HasDone(position)))
        return leases

    assert asyncio.run(scene()) == [True, works]


def test_a_job_that_says_nothing_of_its_input_any_more_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> list[bool]:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(turn_server_at(tmp_path / "x.sock"))
            sock = await connected(stack, tmp_path / "x.sock")
            use = alpha.Use(job="", spilled=0.5, iteration_s=1.0)
            for message in (Here(SPILLING_VERSION, "job", 0, 1, INIT_COMP, True), wire_of_use(use), Wants(INIT_COMP)):
                await loop.sock_sendall(sock, packet_of(message))
            async with asyncio.timeout(60):
                await loop.sock_recv(sock, WORKER_BYTES_MAX)
            server.leave_silent_out()
            found = [bool(server.spilling.jobs)]
            monkeypatch.setattr(turn_server, "SILENT_S", -1.0)
            server.leave_silent_out()
            found.append(bool(server.spilling.jobs))
        return found

    assert asyncio.run(scene()) == [True, False]


def test_connections_that_are_refused_make_one_line_a_minute(tmp_path: Path) -> None:
    with executor(tmp_path) as node:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(str(node.socket))
                sock.send(b"\xff nonsense")
                assert isinstance(to_worker(sock.recv(WORKER_BYTES_MAX)), Refused)
        log = node.log()

    assert log.count("a worker goes on without turns") == 1


def test_who_finds_no_executor_goes_on_without(tmp_path: Path) -> None:
    turns = SharedNode(str(tmp_path / "none"), job="a", worker=0, workers=1)
    seen: list[int] = []

    run_subtasks(turns, 2, seen.append)

    assert seen == [-2, -1, *range(6)]
    assert turns.without == 8


def test_a_group_of_two_nodes_takes_turns_and_is_whole_again_after_its_synchroniser_died(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    with executor(tmp_path, *first, name="one") as one, executor(tmp_path, *second, name="two") as two:
        until(lambda: not two.status()["is_apart"] and not one.status()["is_apart"], what="a group of two")

        def workers(node: Executor, rank: int) -> list[SharedNode]:
            return [SharedNode(str(node.socket), job=name, worker=rank, workers=2) for name in "ab"]

        shared = [workers(one, 0), workers(two, 1)]
        jobs = [
            lambda node=node, job=job: run_subtasks(shared[node][job], 15, lambda _position: None)
            for node in (0, 1)
            for job in (0, 1)
        ]
        threads = [threading.Thread(target=job) for job in jobs]
        # Four connections of one process: an executor takes one of each job and process, so that each pair is two.
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)

        for node in (one, two):
            assert {row[0] for row in node.trace() if row[6]} == {f"{os.getuid()}:a", f"{os.getuid()}:b"}
            assert overlapping(node.trace(), NET) == []
        assert overlapping(one.trace(), CPU) == overlapping(two.trace(), CPU) == []

        one.kill()

        until(lambda: one.status() and not one.status()["is_apart"], what="the group is whole again")
        until(lambda: not two.status()["is_apart"], what="the other node too")


def test_executors_make_change_and_leave_a_group_while_jobs_run(tmp_path: Path) -> None:
    listens = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    key = msgspec.to_builtins(bytes(range(32)))

    def grouped(epoch: int, *names: str) -> None:
        """The two are a group, the one that is named first has its synchroniser."""
        where = listens[int(names[0]) - 1]
        order = {"epoch": epoch, "nodes": names, "synchronizer": where, "key": key}
        for name, node in nodes.items():
            node.join(order | {"node": name})
        until(lambda: all(node.status()["group"] == epoch for node in nodes.values()), what=f"group {epoch}")
        until(lambda: not any(node.status()["is_apart"] for node in nodes.values()), what=f"group {epoch} whole")

    def with_turns() -> list[int]:
        return [sum(row[6] for row in node.trace()) for node in nodes.values()]

    def has_more(had: list[int]) -> bool:
        return all(now > was + 20 for now, was in zip(with_turns(), had, strict=True))

    def run(job: str, rank: int) -> None:
        turns = SharedNode(str(nodes[f"{rank + 1}"].socket), job=job, worker=rank, workers=2)
        for position in itertools.count(INIT_COMP):
            turns.ask(position)
            turns.done()
            if over.wait(0.002):
                break
        turns.close()

    over = threading.Event()
    with contextlib.ExitStack() as stack:
        nodes = {
            name: stack.enter_context(executor(tmp_path, "--group-listen", where, name=name))
            for name, where in zip("12", listens, strict=True)
        }
        grouped(1, "1", "2")
        # Two connections of one process at each node: of each job and process an executor takes one.
        threads = [threading.Thread(target=run, args=(job, rank)) for job in "ab" for rank in (0, 1)]
        for thread in threads:
            thread.start()
        until(lambda: min(with_turns()) > 20, what="turns of both nodes")
        for epoch, names in ((2, "21"), (3, "12")):
            grouped(epoch, *names)
            had = with_turns()
            until(partial(has_more, had), what="more turns")
        nodes["2"].kill()  # who replaces it knows of no group until it is told again
        until(lambda: nodes["2"].status() and nodes["2"].status()["group"] == 0, what="another executor")
        grouped(3, "1", "2")
        for node in nodes.values():
            node.join(None)
        until(lambda: not any(node.status()["is_apart"] for node in nodes.values()), what="two nodes by themselves")
        over.set()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        traces = [node.trace() for node in nodes.values()]

    assert [overlapping(rows, CPU) for rows in traces] == [overlapping(rows, NET) for rows in traces] == [[], []]


def test_an_executor_that_can_t_be_in_a_group_says_why(tmp_path: Path) -> None:
    first, _ = two_nodes(tmp_path)
    order = {"epoch": 1, "node": "a", "nodes": ["a", "b"], "synchronizer": "h:1", "key": "A" * 43 + "="}
    with executor(tmp_path) as alone, executor(tmp_path, *first, name="one") as given_one:
        for node, told, line in (
            (alone, order, "--group-listen"),
            (alone, order | {"node": "c"}, "nodes: names each once"),
            (alone, order | {"synchronizer": "h"}, "group: "),
            (alone, order | {"key": "AA"}, "group: "),
            (given_one, order, "its group was given to it"),
        ):
            with pytest.raises(PeerError, match=line):
                node.join(told)
        assert alone.status()["group"] == 0


@pytest.mark.parametrize(
    ("given_", "line"),
    [
        ({"synchronizer": "h:1", "group_listen": "h:1"}, "--synchronizer and --group-listen exclude each other"),
        ({"nodes": ("a", "b"), "synchronizer": "h:1"}, "--nodes and --synchronizer exclude each other"),
        ({"nodes": ("a", "b"), "node": "c"}, r"--nodes: names this node \('c'\) first"),
        ({"nodes": ("a", "b"), "node": "a"}, "--nodes and --group-listen belong together"),
        ({"synchronizer": "foo"}, "--synchronizer foo: "),
        ({"synchronizer": "h:1"}, "a group of several nodes needs --key-file"),
    ],
)
def test_an_executor_whose_options_do_not_fit_says_why(tmp_path: Path, given_: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        run(Wanted(socket=tmp_path / "s", admin_socket=tmp_path / "a", **given_))


def test_a_worker_waits_in_silence_once_and_not_before_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "QUIET_S", 3600.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "x.sock"))
        listener.listen()
        listener.setblocking(False)
        turns = SharedNode(str(tmp_path / "x.sock"), job="job", worker=0, workers=1)

        for position in (-2, -1, 0, 1):
            turns.ask(position)
            turns.done()

        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert turns.without == 4

        monkeypatch.setattr(taking, "QUIET_S", 0.0)
        turns = SharedNode(str(tmp_path / "x.sock"), job="job", worker=0, workers=1)
        for position in (-2, -1):
            turns.ask(position)
        for _ in range(2):
            listener.accept()[0].close()
