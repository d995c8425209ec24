"""Nodes without a BMC: the packet as a card would get it, and who is on."""

import asyncio
import dataclasses
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from farside.errors import PeerError
from farside.scheduler.power.driver.wake_on_lan import COPIES, WakeOnLanDriver
from farside.scheduler.power.state import Power
from tests.agent.process import agent, write_config
from tests.live.manager import running_manager
from tests.support.waiting import until

LIMIT_S = 90.0
MAC = "52:54:00:12:34:5f"


def driver(address: str = "127.0.0.1:22") -> WakeOnLanDriver:
    return WakeOnLanDriver(node="n1", mac=MAC, address=address, broadcast="127.0.0.1", limit_s=2.5)


@contextmanager
def a_card() -> Iterator[socket.socket]:
    """Where the packets of a network arrive."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as card:
        card.bind(("127.0.0.1", 0))
        card.settimeout(60)
        yield card


@contextmanager
def listening(backlog: int = 8) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def switched_off() -> Iterator[str]:
    """An address at which nobody answers: Linux lets no connection in behind a full backlog, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(3):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_node_is_woken_by_the_packet_that_its_card_waits_for() -> None:
    with a_card() as card:
        asyncio.run(dataclasses.replace(driver(), port=card.getsockname()[1]).on())
        packets = [card.recv(1024) for _ in range(COPIES)]

    assert packets == [b"\xff" * 6 + bytes.fromhex("52540012345f") * 16] * COPIES


def test_a_node_is_on_while_something_answers_be_it_with_a_refusal_and_off_while_nothing_does() -> None:
    with listening() as open_port, socket.socket() as bound, switched_off() as dead:
        bound.bind(("127.0.0.1", 0))
        closed_port = f"127.0.0.1:{bound.getsockname()[1]}"
        said = [asyncio.run(driver(address).status()) for address in (open_port, closed_port, dead)]

    assert said == [Power.ON, Power.ON, Power.OFF]


def test_a_name_that_nobody_knows_says_nothing_of_the_power() -> None:
    with pytest.raises(PeerError, match=r"n1: nowhere\.invalid is no known name"):
        asyncio.run(driver("nowhere.invalid:22").status())


def test_it_is_shut_down_by_a_program_where_there_is_one_and_never_cut_off(tmp_path: Path) -> None:
    program = tmp_path / "stop"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/told\n')
    program.chmod(0o755)

    asyncio.run(dataclasses.replace(driver(), program=(str(program), "--rack=3")).soft_off())

    assert (tmp_path / "told").read_text() == "--rack=3 soft-off n1\n"
    with pytest.raises(PeerError, match="n1: it cannot be shut down"):
        asyncio.run(driver().soft_off())
    with pytest.raises(PeerError, match="n1: Wake-on-LAN can't cut its power"):
        asyncio.run(driver().off())


@pytest.mark.long
def test_a_node_shuts_itself_down_when_nobody_needs_it_and_a_job_sends_it_the_packet(tmp_path: Path) -> None:
    folder, boot_id = tmp_path / "n1", tmp_path / "n1/proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    (folder / "proc/meminfo").write_text(Path("/proc/meminfo").read_text())
    (folder / "proc/stat").write_text("btime 1\n")
    with ExitStack() as stack:
        card, dead = stack.enter_context(a_card()), stack.enter_context(switched_off())
        power = tmp_path / "power.toml"
        power.write_text(
            f'[node.n1]\ndriver = "wake-on-lan"\nmac = "{MAC}"\naddress = "{dead}"\nbroadcast = "127.0.0.1"\n'
            f"port = {card.getsockname()[1]}\nlimit_s = 0.6\n"
        )
        manager = stack.enter_context(
            running_manager(
                tmp_path / "m", power="vanilla", power_settings="buffer_nodes=0", power_step_s=1, power_floor=0,
                power_min_on_s=0, power_poll_s=1, power_drivers=power,
            )
        )  # fmt: skip

        def state() -> str:
            return str(next((node["state"] for node in manager.get("nodes")["nodes"]), ""))

        settings: dict[str, Any] = {
            "token": manager.node_token("n1"), "declared_gpus": 1, "on_stop": "end", "proc_root": str(folder / "proc"),
            "power_off": f"touch {folder}/off",
        }  # fmt: skip
        boot_id.write_text("boot-1\n")
        with agent(write_config(folder, manager.url, **settings)):
            until((folder / "off").exists, what="it shuts itself down", deadline_s=LIMIT_S)
        until(lambda: state() == "asleep", what="it is asleep", deadline_s=LIMIT_S)
        assert next(node["driver"] for node in manager.get("power")["nodes"]) == "wake-on-lan"
        job = manager.submit("true")
        card.settimeout(LIMIT_S)
        assert card.recv(1024).startswith(b"\xff" * 6)
        boot_id.write_text("boot-2\n")
        with agent(write_config(folder, manager.url, **settings)):
            until(lambda: manager.job(job)["state"] == "done", what="the job has run", deadline_s=LIMIT_S)
