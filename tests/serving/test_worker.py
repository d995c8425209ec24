"""A worker and its fronts over TCP on loopback, with real executors."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from farside.agent.lost_peer import PEER_LOST_S
from farside.agent.serving.executor import Executor, start_executor
from farside.agent.serving.handle import BatchDone, ExecutorEnded, ExecutorHandle, ServeError
from farside.agent.serving.kept import KEPT_S
from farside.agent.serving.life import PREPARE_S
from farside.agent.serving.model import runtimes
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Device
from farside.agent.serving.partition.whole import WholeDriver
from farside.agent.serving.remote import Address, RemoteExecutor, RemotePart, connect, start_remote_executor
from farside.agent.serving.wire import Open
from farside.agent.serving.worker import CONNECTIONS_MAX, STRANGERS_MAX, Worker
from farside.agent.serving.worker_line import connect_worker
from farside.serve.profile.folder import Fingerprint
from farside.serve.site import RemoteSite
from tests.serving.executors import answers, arenas, children, small_models
from tests.serving.test_changing_devices import until_so
from tests.support.waiting import DEADLINE_S

PART = RemotePart("whole", Device(cores=(min(os.sched_getaffinity(0)),)), 100)


def one_key() -> tuple[bytes, ...]:
    return (b"k" * 32,)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFile, ...]:
    return small_models(tmp_path_factory.mktemp("models"), ("mlp", "lstm"))


@contextlib.asynccontextmanager
async def listening(*, kept_s: float = KEPT_S) -> AsyncIterator[Address]:
    worker = Worker(one_key, {"whole": WholeDriver()}, kept_s=kept_s)
    server = await asyncio.start_server(worker.connected, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Address(host, port, one_key)
    finally:
        server.close()
        await server.wait_closed()
        await worker.end_kept()


class Front:
    """An executor at a worker, and what it has told."""

    executor: RemoteExecutor

    def __init__(self) -> None:
        self._done: asyncio.Queue[BatchDone] = asyncio.Queue()
        self._ended: asyncio.Queue[ExecutorEnded] = asyncio.Queue()

    async def start(
        self, address: Address, models: tuple[ModelFile, ...], part: RemotePart = PART, prepare_s: float = PREPARE_S
    ) -> RemoteExecutor:
        self.executor = await start_remote_executor(
            address, part, models, self._done.put_nowait, self._ended.put_nowait,
            p99_s={model.name: DEADLINE_S for model in models}, prepare_s=prepare_s,
        )  # fmt: skip
        return self.executor

    async def done(self) -> BatchDone:
        return await asyncio.wait_for(self._done.get(), DEADLINE_S)

    async def ended(self) -> ExecutorEnded:
        return await asyncio.wait_for(self._ended.get(), DEADLINE_S)


def tried(test: Callable[[Address], Awaitable[None]], *, kept_s: float = KEPT_S) -> None:
    others = children()

    async def run() -> None:
        async with listening(kept_s=kept_s) as address:
            await test(address)
        while children() != others:  # executors end with their worker
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def is_lost(executor: RemoteExecutor) -> None:
    executor._writer.transport.abort()


@pytest.mark.parametrize("give_up", [is_lost, RemoteExecutor.kill, partial(RemoteExecutor.close, within_s=DEADLINE_S)])
def test_a_worker_loads_no_further_for_a_front_that_has_gone_or_given_up(
    models: tuple[ModelFile, ...],
    monkeypatch: pytest.MonkeyPatch,
    give_up: Callable[[RemoteExecutor], Awaitable[None] | None],
) -> None:
    others = children()

    async def never_ready(*arguments: Any, **said: Any) -> Executor:
        return await start_executor(*arguments, **said, program=("-c", "import signal; signal.pause()"))

    async def test(address: Address) -> None:
        wanted = Open(
            driver=PART.driver, device=PART.device, part_pct=100, models=models, prepare_s=10 * DEADLINE_S,
        )  # fmt: skip
        executor = RemoteExecutor(*await connect(address), address.name, wanted, print, print)
        await until_so(lambda: children() != others)
        if (ending := give_up(executor)) is not None:
            await ending

        await until_so(lambda: children() == others)
        with pytest.raises(ServeError):
            await executor.ready()

    monkeypatch.setattr("farside.agent.serving.worker.start_executor", never_ready)
    monkeypatch.setattr("farside.agent.serving.handle.HELLO_S", 10 * DEADLINE_S)
    tried(test)


def test_batches_go_to_another_host_and_come_back_as_they_would_here(
    models: tuple[ModelFile, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected_s: list[Mapping[str, float]] = []

    def expect(executor: Executor, p99_s: Mapping[str, float]) -> None:
        expected_s.append(p99_s)
        ExecutorHandle.expect(executor, p99_s)

    async def test(address: Address) -> None:
        front = Front()
        executor = await front.start(address, models)
        monkeypatch.setattr(Executor, "expect", expect)
        given = np.random.default_rng(1).standard_normal((3, *models[1].inputs[0].shape), dtype=np.float32)
        executor.slot_inputs("lstm", 1)["input"][:3] = given
        executor.run(1, "mlp", 1, 0)
        executor.run(2, "lstm", 3, 1)

        assert executor.in_flight == (1, 2)
        assert [(one.batch, one.problem) for one in (await front.done(), await front.done())] == [(1, ""), (2, "")]
        expected = answers(models[1], {"input": given})["output"]
        np.testing.assert_allclose(executor.slot_outputs("lstm", 1)["output"][:3], expected, rtol=1e-5, atol=1e-6)
        assert await executor.resize(100, {"mlp": 2.0, "lstm": 3.0})
        assert not await executor.resize(50, {"mlp": 4.0, "lstm": 6.0})
        assert executor.limit_s == {"mlp": 6.0, "lstm": 9.0}
        assert expected_s == [{"mlp": 2.0, "lstm": 3.0}], "the worker counts batches as hung by the new size, too"
        await executor.close()
        assert await front.ended() == ExecutorEnded(line="", lost=())

    tried(test)


def test_an_executor_has_as_long_to_be_ready_at_its_worker_as_its_front_says(
    models: tuple[ModelFile, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[float]()

    async def started(*arguments: Any, **said: Any) -> Executor:
        told.append(said["prepare_s"])
        return await start_executor(*arguments, **said)

    async def test(address: Address) -> None:
        executor = await Front().start(address, models, prepare_s=300.0)
        await executor.close()

    monkeypatch.setattr("farside.agent.serving.worker.start_executor", started)
    tried(test)

    assert told == [300.0]


def test_an_executor_that_dies_at_its_worker_is_told_with_what_was_lost(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        front = Front()
        executor = await front.start(address, models)
        (pid,) = children() - others
        os.kill(int(pid), signal.SIGSTOP)
        executor.run(4, "mlp", 1, 0)
        os.kill(int(pid), signal.SIGKILL)
        ended = await front.ended()

        assert ended.line.endswith(": its process was killed by SIGKILL")
        assert ended.lost == (4,)

    tried(test)


def test_an_executor_whose_worker_does_not_answer_a_resize_ends(
    models: tuple[ModelFile, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(address: Address) -> None:
        is_over = asyncio.Event()

        async def stands_still(executor: Executor, part_pct: int, p99_s: object) -> bool:
            return await is_over.wait()

        monkeypatch.setattr(Executor, "resize", stands_still)
        monkeypatch.setattr("farside.agent.serving.remote.RESIZE_S", 0.05)
        front = Front()
        executor = await front.start(address, models)

        assert not await executor.resize(50)
        assert not executor.is_ready
        assert (await front.ended()).line.endswith(": a part was not resized within 0.05 s")
        is_over.set()

    tried(test)


def test_a_front_notices_a_worker_whose_machine_is_gone(models: tuple[ModelFile, ...]) -> None:
    async def test(address: Address) -> None:
        executor = await Front().start(address, models)
        line = executor._writer.get_extra_info("socket")

        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * PEER_LOST_S
        await executor.close()

    tried(test)


def test_a_lost_executor_and_what_its_worker_had_for_it_are_forgotten_before_any_garbage_collection(
    models: tuple[ModelFile, ...],
) -> None:
    others = children()

    async def test(address: Address) -> None:
        mapped = arenas()
        gc.disable()
        try:
            front = Front()
            known = weakref.ref(await front.start(address, models))
            assert arenas() == mapped + 1
            await front.executor.close()
            del front
            assert known() is None
            await until_so(lambda: children() == others and arenas() == mapped)
        finally:
            gc.enable()

    tried(test)


def kept_by(front: Front, others: set[str]) -> str:
    """Its front is gone, as by kill -9; the number of its executor's process."""
    (pid,) = children() - others
    front.executor._writer.transport.abort()
    return pid


def test_a_front_that_comes_back_gets_its_executor_and_no_answer_to_what_the_last_one_asked(
    models: tuple[ModelFile, ...],
) -> None:
    others = children()

    async def test(address: Address) -> None:
        first, second = Front(), Front()
        executor = await first.start(address, models)
        pid = kept_by(first, others)
        os.kill(int(pid), signal.SIGSTOP)
        again = asyncio.ensure_future(second.start(address, models, prepare_s=PREPARE_S + 1))
        ended = await first.ended()
        assert ended.line.endswith(": the connection was lost")
        os.kill(int(pid), signal.SIGCONT)
        executor = await again

        assert str(executor.pid) == pid
        given = np.ones((2, *models[0].inputs[0].shape), np.float32)
        executor.slot_inputs("mlp", 0)["input"][:2] = given
        executor.run(9, "mlp", 2, 0)
        assert (await second.done()).batch == 9
        expected = answers(models[0], {"input": given})["output"]
        np.testing.assert_allclose(executor.slot_outputs("mlp", 0)["output"][:2], expected, rtol=1e-5, atol=1e-6)
        await executor.close()

    tried(test)


def test_what_a_lost_front_had_asked_for_is_answered_to_nobody(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        first, second = Front(), Front()
        executor = await first.start(address, models)
        (pid,) = children() - others
        os.kill(int(pid), signal.SIGSTOP)
        executor.run(4, "mlp", 1, 0)
        executor.run(5, "lstm", 1, 0)
        line = await connect_worker(address)  # what was written before is there once this is
        kept_by(first, others)
        assert (await first.ended()).lost == (4, 5)
        again = asyncio.ensure_future(second.start(address, models))
        await asyncio.wait([again], timeout=0.1)
        os.kill(int(pid), signal.SIGCONT)
        executor = await again

        assert str(executor.pid) == pid
        executor.run(4, "mlp", 1, 0)
        assert (await second.done()).batch == 4
        await executor.close()
        assert (await second.ended()).lost == ()
        line.close()

    tried(test)


def test_an_executor_that_hangs_is_handed_to_no_front_and_another_one_starts(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        first, second = Front(), Front()
        executor = await first.start(address, models)
        (pid,) = children() - others
        os.kill(int(pid), signal.SIGSTOP)
        executor.run(4, "mlp", 1, 0)
        (await connect_worker(address)).close()
        kept_by(first, others)
        executor = await second.start(address, models)

        assert str(executor.pid) != pid
        await executor.close()
        while pid in children():
            await asyncio.sleep(0.01)

    tried(test)


def test_an_executor_of_other_models_or_one_that_its_front_has_killed_is_not_taken_over(
    models: tuple[ModelFile, ...],
) -> None:
    others = children()

    async def test(address: Address) -> None:
        first, second, third = Front(), Front(), Front()
        await first.start(address, models)
        pid = kept_by(first, others)
        assert str((await second.start(address, models[:1])).pid) != pid
        second.executor.kill()
        await second.ended()
        while children() != others | {pid}:
            await asyncio.sleep(0.01)
        await third.start(address, models[:1])
        await third.executor.close()

    tried(test)


def test_a_kept_executor_that_the_front_does_not_ask_for_ends_in_time(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        front = Front()
        await front.start(address, models)
        kept_by(front, others)
        gone = asyncio.ensure_future(until_so(lambda: children() == others))
        done, _ = await asyncio.wait([gone], timeout=0.5)
        assert not done, "no front is there, so it may still come"
        line = await connect_worker(address)
        await gone
        line.close()

    tried(test, kept_s=0.1)


def test_fronts_that_come_and_die_again_give_a_kept_executor_no_more_time(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        front = Front()
        await front.start(address, models)
        kept_by(front, others)
        while children() != others:  # more often than an executor's time is long
            (await connect_worker(address)).close()
            await asyncio.sleep(0.01)

    tried(test, kept_s=1.0)


def test_of_executors_that_are_more_than_a_front_has_the_oldest_end(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        pids = list[str]()
        for wanted in (models, models[:1], models[1:]):
            front = Front()
            await front.start(address, wanted)
            pids.append(kept_by(front, others | set(pids)))
        while children() != others | set(pids[1:]):
            await asyncio.sleep(0.01)

    tried(test)


def test_a_front_with_another_key_gets_no_executor(models: tuple[ModelFile, ...]) -> None:
    others = children()

    async def test(address: Address) -> None:
        with pytest.raises(ServeError, match="it has hung up on each key"):
            await Front().start(address._replace(current_keys=lambda: (b"o" * 32,)), models)
        assert children() <= others

    tried(test)


def test_an_executor_is_had_by_any_key_of_the_front_that_its_worker_has(models: tuple[ModelFile, ...]) -> None:
    async def test(address: Address) -> None:
        executor = await Front().start(address._replace(current_keys=lambda: (b"n" * 32, *one_key())), models)
        await executor.close()

    tried(test)


@pytest.mark.parametrize(
    ("changes", "part", "line"),
    [
        ({"sha256": "0" * 64}, PART, "is not the file that the front has; copy the front's file here"),
        ({"path": "/absent/mlp.onnx"}, PART, "/absent/mlp.onnx: No such file or directory"),
        ({}, PART._replace(part_pct=40), "has no part of 40 %"),
        ({}, PART._replace(driver="mps"), "there is no device driver mps here"),
    ],
)
def test_what_a_worker_does_not_have_is_refused_with_its_reason(
    models: tuple[ModelFile, ...], changes: dict[str, object], part: RemotePart, line: str
) -> None:
    async def test(address: Address) -> None:
        with pytest.raises(ServeError, match=line):
            await Front().start(address, (msgspec.structs.replace(models[0], **changes),), part)

    tried(test)


def test_a_worker_with_another_version_of_a_framework_than_the_profiles_starts_nothing(
    models: tuple[ModelFile, ...],
) -> None:
    ours = runtimes(["onnxruntime"])["onnxruntime"]
    others = children()

    def profiled(onnxruntime: str) -> Fingerprint:
        name = WholeDriver().identity(PART.device).name
        versions = {"onnxruntime": onnxruntime, "pytorch": "of no account: no model needs it"}
        return Fingerprint(driver="whole", name=name, cores=PART.device.cores, memory_mb=1, runtimes=versions)

    async def start(site: RemoteSite) -> ExecutorHandle:
        return await site.start(100, models, print, print, p99_s={}, prepare_s=PREPARE_S, prepare_pct=100)

    async def test(address: Address) -> None:
        line = f"onnxruntime here has version {ours}, and the profile was measured with 0.1; install 0.1 here"
        with pytest.raises(ServeError, match=line):
            await start(RemoteSite(address, "whole", PART.device, profiled("0.1")))
        assert children() <= others
        for same in (profiled(ours), None):
            await (await start(RemoteSite(address, "whole", PART.device, same))).close()

    tried(test)


def test_strangers_that_hold_on_keep_no_front_out_and_the_oldest_makes_room() -> None:
    async def test(address: Address) -> None:
        strangers = [await asyncio.open_connection(address.host, address.port) for _ in range(STRANGERS_MAX)]
        line = await connect_worker(address)

        assert await strangers[0][0].read() == b"", "it has made room"
        assert not strangers[-1][0].at_eof()
        assert line.is_up
        line.close()
        for _, writer in strangers:
            writer.close()

    tried(test)


def test_fronts_have_so_many_connections_at_most() -> None:
    async def test(address: Address) -> None:
        lines = [await connect_worker(address) for _ in range(CONNECTIONS_MAX)]
        one_more = await connect_worker(address)
        while one_more.is_up:
            await asyncio.sleep(0.01)

        assert all(line.is_up for line in lines)
        for line in lines:
            line.close()

    tried(test)


def test_a_worker_that_is_not_there_is_named(models: tuple[ModelFile, ...]) -> None:
    async def run() -> None:
        async with listening() as address:
            pass
        with pytest.raises(ServeError, match=f"worker 127.0.0.1:{address.port}: "):
            await Front().start(address, models)

    asyncio.run(run())
