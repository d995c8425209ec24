"""sushy against sushy-tools' emulator, and against a small BMC with what the emulator lacks."""

import asyncio
import builtins
import dataclasses
import logging
import socket
import sys
from pathlib import Path

import pytest

from farside.errors import PeerError, Unavailable
from farside.scheduler.power.driver.redfish import RedfishDriver
from farside.scheduler.power.state import Power
from tests.power.bmc import PASSWORD, USER, password_file, redfish_emulator, small_redfish
from tests.support.waiting import until


def driver(folder: Path, url: str) -> RedfishDriver:
    pytest.importorskip("sushy", reason="not installed: sushy")
    return RedfishDriver(node="node7", url=url, user=USER, password_file=password_file(folder))


def test_a_bmc_is_switched_and_asked(tmp_path: Path) -> None:
    with redfish_emulator(tmp_path) as url:
        bmc = driver(tmp_path, url)
        assert asyncio.run(bmc.status()) is Power.ON

        asyncio.run(bmc.off())
        until(lambda: asyncio.run(bmc.status()) is Power.OFF, what="the fake system is off", deadline_s=30.0)
        asyncio.run(bmc.on())
        until(lambda: asyncio.run(bmc.status()) is Power.ON, what="the fake system is on", deadline_s=30.0)


def test_power_is_read_where_the_bmc_measures_it(tmp_path: Path) -> None:
    with small_redfish([]) as url:
        assert asyncio.run(driver(tmp_path, url).reading_w()) == 812.5


def test_a_power_that_is_changing_is_unknown(tmp_path: Path) -> None:
    with small_redfish([]) as url:
        assert asyncio.run(driver(tmp_path, url).status()) is Power.UNKNOWN


def test_a_bmc_without_graceful_shutdown_gets_its_button_pressed(tmp_path: Path) -> None:
    orders: list[str] = []
    with small_redfish(orders) as url:
        asyncio.run(driver(tmp_path, url).soft_off())

    assert orders == ["PushPowerButton"]


def test_a_system_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with small_redfish([]) as url:
        bmc = dataclasses.replace(driver(tmp_path, url), system="/redfish/v1/Systems/9")

        with pytest.raises(PeerError, match="node7: status by") as found:
            asyncio.run(bmc.status())

    assert "\n" not in str(found.value)


def test_a_silent_bmc_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        bmc = dataclasses.replace(driver(tmp_path, url), limit_s=1.0)

        with pytest.raises(PeerError, match="node7"):
            asyncio.run(bmc.on())


def test_a_bmc_that_is_slow_at_its_first_answer_is_waited_for(tmp_path: Path) -> None:
    orders: list[str] = []
    with small_redfish(orders, wakes_in_s=4.5) as url:
        bmc = dataclasses.replace(driver(tmp_path, url), limit_s=20.0)  # a fifth of it is less than that

        asyncio.run(bmc.on())

    assert orders == ["On"]


def test_no_log_line_holds_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    orders: list[str] = []
    with small_redfish(orders) as url:
        asyncio.run(driver(tmp_path, url).on())

    assert orders == ["On"]
    assert PASSWORD not in caplog.text


def test_without_sushy_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object, **rest: object) -> object:
        if name == "sushy":
            raise ImportError(name)
        return real(name, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "sushy", raising=False)
    bmc = RedfishDriver(node="node7", url="http://127.0.0.1:9", user=USER, password_file=password_file(tmp_path))

    with pytest.raises(Unavailable, match="pip install sushy"):
        asyncio.run(bmc.status())
