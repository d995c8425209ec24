"""The keeper of a manager's processes, with parts that have a fault."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import DEADLINE_S, until

PROGRAM = """
import asyncio, sys, time
from dataclasses import replace
from pathlib import Path
from farside.config import ManagerConfig
from farside.errors import ConfigError
from farside.log import start_logging
from farside.scheduler.manager.processes import Part, Parts

async def sound(config): await asyncio.Event().wait()
async def broken(config): raise KeyError("n0")
async def misconfigured(config): raise ConfigError("listen: is taken")
async def hanging(config):
    await asyncio.sleep(0)
    time.sleep(60)

async def loading(config):
    await asyncio.sleep(0)
    time.sleep(2.5)
    print("loaded", file=sys.stderr, flush=True)
    await asyncio.sleep(2.5)
    time.sleep(60)

HANG_S, LOAD_S = {"hanging": 1.5, "loading": 1.5}, {"loading": 60.0}
works = {
    name: Part(work=globals()[name], hang_s=HANG_S.get(name, 60.0), load_s=LOAD_S.get(name, 0.0))
    for name in sys.argv[2:]
}
start_logging("info")
sys.exit(Parts(replace(ManagerConfig(), state_dir=Path(sys.argv[1])), works).run())
"""


@contextmanager
def running(folder: Path, *works: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *works]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if words in line:
            return said
    raise AssertionError(said)


def pids(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "manager.json").read_text())["pids"]
    return found


def test_a_part_with_a_fault_of_ours_says_which_and_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path, "broken") as process:
        said = said_until(process, "a process of the manager ended and is started again")
        said_until(process, "KeyError: 'n0'")
        process.terminate()
        assert process.wait(DEADLINE_S) == 0

    assert "error   manager: unexpected fault part=broken" in said
    assert "KeyError: 'n0'" in said
    assert not (tmp_path / "manager.json").exists()


def test_a_part_that_cannot_be_configured_ends_all_with_its_exit_code(tmp_path: Path) -> None:
    with running(tmp_path, "sound", "misconfigured") as process:
        assert "listen: is taken" in said_until(process, "ends part=misconfigured")
        assert process.wait(DEADLINE_S) == 2


def test_a_part_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path, "hanging") as process:
        said_until(process, "a process of the manager hangs and is killed part=hanging")
        assert "exit_code=-9" in said_until(process, "ended and is started again part=hanging")


def test_a_part_may_load_for_longer_than_it_may_hang(tmp_path: Path) -> None:
    with running(tmp_path, "loading") as process:
        assert "is killed" not in said_until(process, "loaded")
        said_until(process, "a process of the manager hangs and is killed part=loading")


def test_parts_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, "sound") as process:
        until((tmp_path / "manager.json").exists, what="the first part")
        part = pids(tmp_path)["sound"]
        pidfd = os.pidfd_open(part)
        process.kill()
        until(lambda: is_gone(pidfd), what="the end of the part")
        os.close(pidfd)


def test_a_part_that_was_killed_is_started_again_and_the_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path, "sound", "broken") as process:
        until((tmp_path / "manager.json").exists, what="the first part")
        first = pids(tmp_path)["sound"]
        said_until(process, "part=broken")
        assert pids(tmp_path)["sound"] == first
        os.kill(first, signal.SIGKILL)
        until(lambda: pids(tmp_path)["sound"] != first, what="another process")


def is_gone(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False
