"""A worker as the task of a lease: it ends when it is told to, once its front has left, or when no front needs it."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from farside.agent.serving.handle import ServeError
from farside.agent.serving.lease_task import run_lease
from farside.agent.serving.partition.whole import WholeDriver
from farside.agent.serving.remote import Address, NoCommonKey
from farside.agent.serving.worker_line import connect_worker
from farside.cli.keygen import add_key, make_key, retire_key
from farside.daemon.control.keys import KeyRing, read_keys
from tests.serving.executors import small_models
from tests.serving.front import in_loop
from tests.serving.test_worker import Front, one_key
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S, text_of, until


async def takes_fronts(address: Address) -> bool:
    try:
        (await connect_worker(address)).close()
    except ServeError:
        return False
    return True


@in_loop
async def test_a_worker_that_no_front_needs_ends_and_one_with_a_front_stays() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", listener.getsockname()[1], one_key)
    task = asyncio.ensure_future(run_lease(listener, one_key, {"whole": WholeDriver()}, alone_s=2.5))
    line = await connect_worker(address)

    done, _ = await asyncio.wait([task], timeout=4.0)
    assert not done
    assert line.is_up
    line.close()
    async with asyncio.timeout(DEADLINE_S):
        await task


@in_loop
async def test_a_worker_that_has_another_key_is_none() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    task = asyncio.ensure_future(run_lease(listener, one_key, {}, alone_s=DEADLINE_S))

    with pytest.raises(ServeError, match=f"worker 127.0.0.1:{port}: "):
        await connect_worker(Address("127.0.0.1", port, lambda: (b"o" * 32,)))
    task.cancel()
    await asyncio.wait([task])


def test_a_key_is_changed_in_the_files_of_front_and_worker_without_a_gap(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make_key(ours)
    shutil.copy2(ours, theirs)
    before = read_keys(ours)
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "farside", "serve", "worker", "--key-file", str(theirs)]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--listen", f"tcp:127.0.0.1:{port}"], stderr=out)

    async def test() -> list[bool]:
        address = Address("127.0.0.1", port, KeyRing(ours).current)
        async with asyncio.timeout(DEADLINE_S):
            while not await takes_fronts(address):
                await asyncio.sleep(0.01)
        add_key(ours)
        taken = [await takes_fronts(address)]
        shutil.copy2(ours, theirs)
        taken.append(await takes_fronts(address._replace(current_keys=lambda: before)))
        retire_key(ours)
        taken.append(await takes_fronts(address))
        shutil.copy2(ours, theirs)
        taken.append(await takes_fronts(address))
        with pytest.raises(NoCommonKey):
            await connect_worker(address._replace(current_keys=lambda: before))
        return taken

    try:
        assert asyncio.run(test()) == [True] * 4
    finally:
        process.kill()
        process.wait()


def test_a_lease_that_is_told_to_end_does_so_when_its_executors_have(tmp_path: Path) -> None:
    (file,) = small_models(tmp_path, ("mlp",))
    make_key(tmp_path / "key")
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FARSIDE_READY": f"{tmp_path}/r"}
    command = [sys.executable, "-m", "farside", "serve", "worker", "--key-file", str(tmp_path / "key")]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stderr=out)
    until(lambda: text_of(tmp_path / "r") or process.poll() is not None, what="it is ready")
    assert process.poll() is None, text_of(log)

    async def test() -> None:
        address = Address("127.0.0.1", port, lambda: read_keys(tmp_path / "key"))
        line, front = await connect_worker(address), Front()
        executor = await front.start(address, (file,))
        os.kill(executor.pid, 0)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            while await takes_fronts(address):
                await asyncio.sleep(0.01)
        executor.run(1, "mlp", 1, 0)
        assert (await front.done()).problem == ""
        await executor.close()
        line.close()

    asyncio.run(test())
    assert process.wait(DEADLINE_S) == 0


def test_a_worker_without_a_job_has_to_be_told_where_to_listen(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    told = subprocess.run(
        [sys.executable, "-m", "farside", "serve", "worker", "--key-file", str(tmp_path / "key")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert told.returncode == 2
    assert told.stderr.strip().endswith(
        "this process is no task of a job, so nothing says where it listens; give --listen"
    )
