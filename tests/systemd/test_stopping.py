"""`farside unit stop`, which our blockdev unit runs before its SIGTERM."""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from farside import admin
from tests.support.programs import Outcome, outcome
from tests.support.sandbox import farside

UNIT = "farside-blockdev@swap0.service"


class Blockdev:
    """As much of one as is told to keep its server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._served = AsyncExitStack()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(60)

    async def _serve(self) -> None:
        await self._served.enter_async_context(admin.serve(self.path, {"keep": self._keep}))

    async def _keep(self, _: Mapping[str, object]) -> object:
        self.kept += 1
        return {}

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._served.aclose(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def blockdev(tmp_path: Path) -> Iterator[Blockdev]:
    made = Blockdev(tmp_path / "admin.sock")
    yield made
    made.close()


def stop(blockdev: Blockdev, jobs: str) -> tuple[Outcome, str]:
    """Runs it where `systemctl list-jobs` says that; returns what systemctl was called with, too."""
    folder = blockdev.path.parent
    program = folder / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/called\n[ "$1" != list-jobs ] || cat <<"END"\n{jobs}\nEND\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = outcome(
        ["env", f"PATH={path}", *farside("unit", "stop", UNIT, "--socket", str(blockdev.path), "--swap-unit", "s")]
    )
    return done, (folder / "called").read_text()


@pytest.mark.parametrize("job", ["restart", "try-restart"])
def test_a_restart_keeps_the_server_and_leaves_swap_on(blockdev: Blockdev, job: str) -> None:
    done, called = stop(blockdev, f"12 other.service stop running\n14 {UNIT} {job} running")

    assert (done.status, blockdev.kept) == (0, 1)
    assert "stop s" not in called


@pytest.mark.parametrize("jobs", [f"14 {UNIT} stop running", "12 other.service restart running", ""])
def test_a_stop_ends_the_swap_unit_first(blockdev: Blockdev, jobs: str) -> None:
    done, called = stop(blockdev, jobs)

    assert (done.status, blockdev.kept) == (0, 0)
    assert "stop s" in called
