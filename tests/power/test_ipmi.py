"""ipmitool against OpenIPMI's simulator of a BMC."""

import asyncio
import contextlib
import dataclasses
import socket
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farside.errors import ConfigError, PeerError
from farside.scheduler.power.driver.ipmi import SENDS, IpmiDriver, first_wait_s
from farside.scheduler.power.state import Power
from tests.power.bmc import PASSWORD, USER, ipmi_sim, password_file, slow_relay
from tests.support.ports import free_port
from tests.support.programs import need


def driver(folder: Path, port: int) -> IpmiDriver:
    return IpmiDriver(node="node7", host="127.0.0.1", port=port, user=USER, password_file=password_file(folder))


def test_a_bmc_is_switched_and_asked(tmp_path: Path) -> None:
    async def story(bmc: IpmiDriver) -> list[Power]:
        said = [await bmc.status()]
        for action in (bmc.off, bmc.on, bmc.soft_off):
            await action()
            said.append(await bmc.status())
        return said

    with ipmi_sim(tmp_path) as (port, _):
        said = asyncio.run(story(driver(tmp_path, port)))

    assert said == [Power.ON, Power.OFF, Power.ON, Power.OFF]


def test_a_bmc_without_dcmi_has_no_reading(tmp_path: Path) -> None:
    with ipmi_sim(tmp_path) as (port, _):
        assert asyncio.run(driver(tmp_path, port).reading_w()) is None


def test_a_wrong_password_is_an_error_that_does_not_tell_it(tmp_path: Path) -> None:
    with ipmi_sim(tmp_path) as (port, _):
        bmc = driver(tmp_path, port)
        password_file(tmp_path, "not-that-word")

        with pytest.raises(PeerError, match="node7: power on by") as found:
            asyncio.run(bmc.on())

    assert "not-that-word" not in str(found.value)


def test_a_silent_bmc_is_given_up_in_time(tmp_path: Path) -> None:
    need("ipmitool")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        bmc = dataclasses.replace(driver(tmp_path, silent.getsockname()[1]), limit_s=0.5)

        with pytest.raises(PeerError, match="node7: no answer from"):
            asyncio.run(bmc.status())


def test_the_password_stands_in_no_process_list(tmp_path: Path) -> None:
    need("ipmitool")

    async def look(bmc: IpmiDriver) -> list[str]:
        call = asyncio.ensure_future(bmc.status())
        deadline_s = time.monotonic() + 60
        shown: list[str] = []
        while "ipmitool" not in shown and time.monotonic() < deadline_s:
            await asyncio.sleep(0)
            shown = []
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):  # another test's, that nobody has waited for
                    shown += child.cmdline()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return shown

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        shown = asyncio.run(look(driver(tmp_path, silent.getsockname()[1])))

    assert "ipmitool" in shown
    assert PASSWORD not in " ".join(shown)


@pytest.mark.parametrize(("mode", "reason"), [(0o644, "others can read"), (None, "No such file")])
def test_a_password_file_must_be_there_and_ours_alone(tmp_path: Path, mode: int | None, reason: str) -> None:
    bmc = driver(tmp_path, free_port(socket.SOCK_DGRAM))
    if mode is None:
        bmc.password_file.unlink()
    else:
        bmc.password_file.chmod(mode)

    with pytest.raises(ConfigError, match=reason):
        asyncio.run(bmc.on())


@given(st.floats(12.0, 120.0))
@example(20.0)
def test_ipmitool_waits_for_a_slow_bmc_for_most_of_the_limit_and_no_longer(limit_s: float) -> None:
    waits_s = sum(first_wait_s(limit_s) + again for again in range(SENDS))

    assert limit_s / 2 <= waits_s <= limit_s
    assert limit_s != 20.0 or waits_s == 18


def test_a_bmc_that_takes_its_time_for_its_first_answer_is_waited_for(tmp_path: Path) -> None:
    with ipmi_sim(tmp_path) as (port, _), slow_relay(port, wakes_in_s=4.5) as slow:
        bmc = dataclasses.replace(driver(tmp_path, slow), limit_s=12.0)

        assert asyncio.run(bmc.status()) is Power.ON
