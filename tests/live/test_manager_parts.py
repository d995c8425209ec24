"""A manager's processes, one of which has a fault of ours."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from farside.config import ManagerConfig
from farside.scheduler.manager.processes import Part, Parts


async def broken(config: ManagerConfig) -> None:
    raise KeyError("n0")


def test_a_part_with_a_fault_of_ours_says_which_and_is_started_again(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    said = ""

    async def read_on() -> None:
        nonlocal said
        while not caplog.messages or "KeyError" not in said:
            said += capfd.readouterr().err
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    async def run() -> int:
        parts = Parts(replace(ManagerConfig(), state_dir=tmp_path), {"api": Part(work=broken, hang_s=60.0)})
        async with asyncio.timeout(60):
            return await parts.run(beside=read_on())

    assert asyncio.run(run()) == 0
    assert "error   manager: unexpected fault part=api" in said
    assert "KeyError: 'n0'" in said
    assert caplog.messages[0] == "a process of the manager ended and is started again"
