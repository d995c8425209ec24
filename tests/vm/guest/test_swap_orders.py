"""A node's services by one target, and its swap by the agent's hand: real systemd, /dev/nbdX and swapon."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from farside.agent import messages as m
from farside.agent.service.memory_rules import MemoryRules
from farside.agent.service.swap import SwapService
from farside.clock import RealClock
from tests.support.waiting import until
from tests.vm.guest import service_plane as plane
from tests.vm.guest.service_plane import ADMIN, BLOCKDEV, DONOR, SWAP, must, show
from tests.vm.guest.swap_plane import LIMIT_S, SIZE, hog

AGENT, TARGET = "farside-agent.service", "farside.target"
THREE = (DONOR, BLOCKDEV, AGENT)


@pytest.fixture(scope="module")
def services() -> Iterator[None]:
    """Installed, and brought up by the one target; no manager is there, and none is asked."""
    plane.install_units()
    plane.configure()
    Path("/etc/farside/agent.toml").write_text('aggregation_socket = ""\nswap_device = ""\n')
    must("start", TARGET)
    until(lambda: plane.donors() == ["up"], what="the donor", deadline_s=LIMIT_S, every_s=1)
    yield
    plane.systemctl("stop", SWAP, *THREE)
    print(plane.journal())


pytestmark = pytest.mark.usefixtures("services")


def states() -> list[str]:
    return [show(unit, "ActiveState") for unit in THREE]


def swap_bytes() -> int:
    """Size of the swap that is on, with the page that the kernel does not count."""
    lines = [line.split() for line in plane.swaps().splitlines() if line.startswith("/dev/nbd")]
    return (int(lines[0][2]) + 4) * 1024 if lines else 0


class Node:
    """The agent's service, beside an agent without a swap device, as one that takes no orders withdraws this one's."""

    def __init__(self) -> None:
        self.service = SwapService(MemoryRules(device="swap0"), [ADMIN], root=Path("/"), clock=RealClock())

    def order(self, size_bytes: int) -> None:
        self.service.obey(msgspec.Raw(msgspec.json.encode(m.SwapOrder(swap_bytes=size_bytes))))

    def says(self) -> m.SwapFacts:
        asyncio.run(self.service.look())
        return msgspec.json.decode(self.service.facts(), type=m.SwapFacts)

    def until_swaps(self, size_bytes: int) -> None:
        def is_so() -> bool:
            said = self.says()
            return (said.attached_bytes, said.problem) == (size_bytes, "")

        until(is_so, what=f"swap of {size_bytes} bytes", deadline_s=2 * LIMIT_S, every_s=1)
        assert swap_bytes() == size_bytes


def test_one_target_brings_up_donor_borrower_and_agent() -> None:
    assert states() == ["active"] * 3
    assert show(TARGET, "ActiveState") == "active"


@pytest.mark.parametrize("killed", THREE)
def test_whichever_is_killed_the_others_go_on_and_it_comes_back(killed: str) -> None:
    others = {unit: show(unit, "MainPID") for unit in THREE if unit != killed}
    before = int(show(killed, "MainPID"))

    os.kill(before, signal.SIGKILL)

    until(
        lambda: show(killed, "ActiveState") == "active" and int(show(killed, "MainPID")) not in (0, before),
        what=f"{killed} again", deadline_s=LIMIT_S, every_s=1,
    )  # fmt: skip
    assert {unit: show(unit, "MainPID") for unit in others} == others


def test_swap_is_attached_in_the_ordered_size_resized_and_detached() -> None:
    node = Node()
    for size_bytes in (SIZE // 2, SIZE, 0):
        node.order(size_bytes)
        node.until_swaps(size_bytes)
    assert show(SWAP, "ActiveState") == "inactive"


def test_swap_that_is_full_of_pages_is_detached_only_when_memory_holds_them(tmp_path: Path) -> None:
    node = Node()
    node.order(SIZE)
    node.until_swaps(SIZE)
    with hog(tmp_path, seconds=5) as program:
        program.pause()  # else it may have ended before a slow machine has looked
        node.order(0)
        said = node.says()
        state = show(SWAP, "ActiveState")
        program.go_on()
        ended = program.end()

    # A program that may have less memory than it has touched would be killed by a swapoff: that is told, not done.
    assert (said.attached_bytes, state) == (SIZE, "active")
    assert "its programs would be killed" in said.problem
    assert ended.startswith("wrong=0 ")
    node.until_swaps(0)


def test_an_agent_that_was_killed_between_two_steps_is_followed_by_one_that_ends_them() -> None:
    first = Node()
    first.order(SIZE // 2)
    first.says()

    second = Node()
    second.order(SIZE // 2)
    second.until_swaps(SIZE // 2)
    second.order(0)
    second.until_swaps(0)
