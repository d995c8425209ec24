"""`farside blockdev` made fit to be swapped to, as far as this machine lets anybody; the rest runs in a guest."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside import admin
from farside.errors import PeerError
from farside.kmod_shim.guard import PR_SET_IO_FLUSHER
from farside.kmod_shim.guard_check import unlocked
from tests.blockdev.test_process import PAGE, Process

LIMIT_S = 60.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.close()


def loose(pid: int) -> set[str]:
    """Memory of the process that may be swapped out."""
    return {mapped.name for mapped in unlocked(Path(f"/proc/{pid}/smaps").read_text())}


def may_lock() -> bool:
    """Whether mlockall is allowed, in a process of its own: this one goes on unlocked."""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).mlockall(7))"
    return subprocess.run(["/usr/bin/python3", "-c", code], check=False).returncode == 0


def test_a_device_is_guarded_by_a_successor_under_its_clients(process: Process) -> None:
    process.start()
    client = process.client()
    client.write(0, b"a" * PAGE)
    first = process.status()["server_pid"]

    second = admin.call(process.admin, "guard", timeout_s=LIMIT_S)["server_pid"]

    told = process.until_another_serves(first)
    assert told["server_pid"] == second
    assert b"\0guarded\0" in Path(f"/proc/{second}/cmdline").read_bytes()
    assert client.read(0, PAGE) == b"a" * PAGE
    if may_lock():
        client.write(PAGE, b"b" * PAGE)
        assert (loose(second), loose(told["supervisor_pid"])) == (set(), set())


def test_a_guarded_device_is_guarded_once(process: Process) -> None:
    process.start()
    first = admin.call(process.admin, "guard", timeout_s=LIMIT_S)["server_pid"]

    assert admin.call(process.admin, "guard", timeout_s=LIMIT_S)["server_pid"] == first


def test_who_comes_after_a_guarded_server_is_guarded_too(process: Process) -> None:
    process.start()
    first = admin.call(process.admin, "guard", timeout_s=LIMIT_S)["server_pid"]
    spare = process.until_spare()

    second = admin.call(process.admin, "replace", timeout_s=LIMIT_S)["server_pid"]

    assert b"\0guarded\0" in Path(f"/proc/{second}/cmdline").read_bytes()
    assert second not in (first, spare)


def test_settings_may_forbid_it(tmp_path: Path) -> None:
    process = Process(tmp_path, pressure_guard="off")
    try:
        process.start()

        with pytest.raises(PeerError, match="pressure_guard is 'off'"):
            admin.call(process.admin, "guard", timeout_s=LIMIT_S)
    finally:
        process.close()


def test_a_device_that_must_be_guarded_and_can_not_be_does_not_start(tmp_path: Path) -> None:
    if ctypes.CDLL(None).prctl(PR_SET_IO_FLUSHER, 0, 0, 0, 0) == 0:
        pytest.skip("this process may use PR_SET_IO_FLUSHER, so that it can be guarded")
    process = Process(tmp_path, pressure_guard="start")

    ended = subprocess.run(process.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    process.close()

    assert ended.returncode == 2
    assert "pressure_guard = 'start': PR_SET_IO_FLUSHER: Operation not permitted" in ended.stderr.splitlines()[-1]
