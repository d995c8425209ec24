"""A node that lends memory goes to sleep: a real manager, agents, donors and a borrower; only the switch is a file."""

import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.agent.process import agent, write_config
from tests.live.manager import Manager, running_manager
from tests.sandbox.test_drain import CHECK, WRITE, holders
from tests.support.programs import nbdsh
from tests.support.waiting import until

LIMIT_S = 90.0
SWITCH = """#!/bin/sh
# What a power strip does, in files: on, soft-off, off, status.
case $1 in
    on) rm -f "$(dirname "$0")/$2.off" ;;
    soft-off|off) touch "$(dirname "$0")/$2.off" ;;
    status) test -e "$(dirname "$0")/$2.off" && echo off || echo on ;;
esac
"""


@contextmanager
def a_hall(folder: Path, plane: Session) -> Iterator[Manager]:
    """A manager whose policy wants no node, and n1 and n2 with the donors d1 and d2; only n1 can be switched."""
    switch = folder / "switch"
    switch.write_text(SWITCH)
    switch.chmod(switch.stat().st_mode | stat.S_IXUSR)
    (folder / "power.toml").write_text(f'[node.n1]\ndriver = "command"\nprogram = ["{switch}"]\n')
    settings: dict[str, object] = {
        "power": "vanilla", "power_settings": "buffer_nodes=0", "power_step_s": 1, "power_floor": 0,
        "power_min_on_s": 0, "power_poll_s": 1, "power_drivers": folder / "power.toml",
    }  # fmt: skip
    with ExitStack() as stack:
        manager = stack.enter_context(running_manager(folder / "m", **settings))
        for number in (1, 2):
            (folder / f"n{number}").mkdir()
            token = manager.node_token(f"n{number}")
            config = write_config(
                folder / f"n{number}", manager.url, token=token, node=f"n{number}", declared_gpus=4,
                daemon_socket=str(plane.state / f"donors/d{number}/admin.sock"),
            )  # fmt: skip
            stack.enter_context(agent(config))
        yield manager


def shown(manager: Manager, name: str) -> dict[str, object]:
    found: dict[str, dict[str, object]] = {one["name"]: one for one in manager.get("power")["nodes"]}
    return found.get(name, {})


@pytest.mark.long
def test_its_pages_move_to_the_other_donor_before_it_is_switched_off_and_none_is_lost(tmp_path: Path) -> None:
    sizes = ("--donors", "2", "--donor-memory", "256MiB", "--size", "64MiB", "--slab", "4MiB")
    with open_sandbox(sizes, state=tmp_path / "plane") as plane:
        nbdsh(plane.uri, WRITE)
        until(lambda: holders(plane.state) == {"d1", "d2"}, what="pages at both donors", deadline_s=LIMIT_S)
        control.squeeze(plane.state, "d2", 185 << 20)
        with a_hall(tmp_path, plane) as manager:
            no_room = "lends memory that other donors have no room for"
            until(lambda: shown(manager, "n1").get("stays_on") == no_room, what="it stays on", deadline_s=LIMIT_S)
            assert "d1" in holders(plane.state)
            assert not (tmp_path / "n1.off").exists()

            control.squeeze(plane.state, "d2", 0)
            until((tmp_path / "n1.off").exists, what="n1 is told to stop", deadline_s=LIMIT_S)

            assert holders(plane.state) == {"d2"}
            assert nbdsh(plane.uri, CHECK).strip() == "True"
            told = dict(control.blockdev_status(plane.state))["counters"]
            assert (told["lost_pages"], told["dropped_pages"]) == (0, 0)
