"""The node service `swap`: an order becomes swap of that size by systemd's hand, and what is so is told."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from farside import admin
from farside.agent import messages as m
from farside.agent.service.memory_rules import MemoryRules, Orders
from farside.agent.service.swap import HEARING_S, RETRY_S, SwapService
from tests.agent.fake_systemd import DROP_IN, NAME, machine, path_with, steps, swap_bytes
from tests.support.virtual_clock import VirtualClock

MIB = 1 << 20
DEVICE = 64 * MIB
PAGE = 4096
RULES = MemoryRules(device=NAME)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = machine(tmp_path / "root", DEVICE)
    monkeypatch.setenv("PATH", path_with(made))
    return made


class Node:
    """The service, and a borrower's admin socket beside it."""

    def __init__(self, root: Path, rules: MemoryRules = RULES, *, name: str = NAME) -> None:
        self.root, self.clock, self._name = root, VirtualClock(), name
        self.socket = root.parent / "b.sock"
        self.service = SwapService(rules, [self.socket], root=root, clock=self.clock)

    def order(self, size_bytes: int | None) -> None:
        self.service.obey(msgspec.Raw(msgspec.json.encode(m.SwapOrder(swap_bytes=size_bytes))))

    def looks(self, count: int = 3, *, has_borrower: bool = True) -> m.SwapFacts:
        """What it says after so many looks."""

        async def figures(_: object) -> object:
            return {"name": self._name, "size_bytes": DEVICE}

        async def run() -> None:
            async with AsyncExitStack() as stack:
                if has_borrower:
                    await stack.enter_async_context(admin.serve(self.socket, {"figures": figures}))
                for _ in range(count):
                    await self.service.look()

        asyncio.run(run())
        return msgspec.json.decode(self.service.facts(), type=m.SwapFacts)


def test_swap_of_the_ordered_size_is_attached_and_resized_and_detached(root: Path) -> None:
    node = Node(root)
    sizes, said = [], []
    for size_bytes in (32 * MIB, 48 * MIB + PAGE, 0):
        node.order(size_bytes)
        said.append(node.looks(4))
        sizes.append(swap_bytes(root))

    assert sizes == [32 * MIB, 48 * MIB, 0]
    assert [one.attached_bytes for one in said] == sizes
    assert {(one.device_bytes, one.problem, one.refusal) for one in said} == {(DEVICE, "", "")}
    assert [step for step in steps(root) if step != "daemon-reload"] == ["start", "stop", "start", "stop"]
    assert not (root / DROP_IN).exists()


def test_without_an_order_nothing_is_asked_of_systemd_and_the_device_is_told_of(root: Path) -> None:
    node = Node(root)

    assert node.looks() == m.SwapFacts(device_bytes=DEVICE)
    node.order(None)
    assert node.looks() == m.SwapFacts(device_bytes=DEVICE)
    assert (root / "called").read_text() == ""


def test_an_agent_that_was_killed_is_followed_by_one_that_goes_on_from_what_is_there(root: Path) -> None:
    first = Node(root)
    first.order(32 * MIB)
    first.looks(1)

    second = Node(root)
    before = second.looks()
    second.order(32 * MIB)

    assert (before.attached_bytes, before.problem) == (32 * MIB, "")
    assert second.looks().problem == ""
    assert steps(root).count("start") == 1


def test_its_settings_count_where_no_order_does(root: Path) -> None:
    lender = Node(root, MemoryRules(device=NAME, orders="lend", swap_bytes=16 * MIB))

    lender.order(32 * MIB)
    said = lender.looks()

    assert (said.attached_bytes, swap_bytes(root), said.set_bytes) == (16 * MIB,) * 3
    assert said.problem == said.refusal == 'memory_orders is "lend" in its agent.toml'


@pytest.mark.parametrize(("orders", "device"), [("none", NAME), ("lend", NAME), ("all", "")])
def test_a_node_whose_owner_refuses_says_so_and_does_nothing(orders: Orders, device: str, root: Path) -> None:
    node = Node(root, MemoryRules(device=device, orders=orders))
    node.order(32 * MIB)

    said = node.looks()

    assert said.refusal
    assert said.problem == said.refusal
    assert steps(root) == []


def test_more_than_the_device_has_is_told_and_not_tried(root: Path) -> None:
    node = Node(root)
    node.order(DEVICE + 2 * MIB)

    assert node.looks().problem == "its device has 64 MiB"
    assert steps(root) == []


def test_swap_that_memory_would_not_hold_stays_on_until_it_does(root: Path) -> None:
    node = Node(root)
    node.order(DEVICE)
    node.looks()
    meminfo, swaps = root / "proc/meminfo", root / "proc/swaps"
    roomy, head = meminfo.read_text(), swaps.read_text().splitlines()[0]
    swaps.write_text(f"{head}\n/dev/nbd0 partition {DEVICE // 1024 - 4} 60000 100\n")
    meminfo.write_text("MemTotal: 1048576 kB\nMemAvailable: 1000 kB\n")

    node.order(0)
    short = node.looks()
    meminfo.write_text(roomy)
    after = node.looks()

    assert "memory has room for" in short.problem
    assert (short.attached_bytes, steps(root).count("stop")) == (DEVICE, 1)
    assert (after.attached_bytes, after.problem) == (0, "")


def test_a_unit_that_fails_is_tried_again_after_a_while_and_says_why(root: Path) -> None:
    node = Node(root)
    (root / "fails").touch()
    node.order(32 * MIB)

    said = node.looks(5)
    tried = steps(root).count("start")
    (root / "fails").unlink()
    asyncio.run(node.clock.advance(RETRY_S))

    assert said.problem == "swap could not be attached: its words"
    assert tried == 2
    assert node.looks().attached_bytes == 32 * MIB


def test_a_device_that_another_borrower_serves_is_not_this_one(root: Path) -> None:
    assert Node(root, name="other").looks() == m.SwapFacts()
    assert Node(root).looks(has_borrower=False) == m.SwapFacts()


def test_its_settings_wait_until_a_manager_could_have_spoken(root: Path) -> None:
    node = Node(root, MemoryRules(device=NAME, swap_bytes=16 * MIB))

    early = node.looks()
    asyncio.run(node.clock.advance(HEARING_S))
    late = node.looks()

    assert (early.attached_bytes, late.attached_bytes, late.problem) == (0, 16 * MIB, "")


def test_a_size_that_an_agent_wrote_before_it_was_killed_reaches_systemd_by_the_next_one(root: Path) -> None:
    (root / DROP_IN).parent.mkdir(parents=True)
    (root / DROP_IN).write_text(f'[Service]\nEnvironment="ORDERED_SIZE=--size={32 * MIB}"\n')
    node = Node(root)
    node.order(32 * MIB)

    assert node.looks().attached_bytes == swap_bytes(root) == 32 * MIB


def test_a_systemd_that_does_not_reload_is_told_and_its_unit_not_started(root: Path) -> None:
    node = Node(root)
    (root / "reload-fails").touch()
    node.order(32 * MIB)

    said = node.looks()

    assert said.problem == "systemd refuses: no reload now"
    assert steps(root) == ["daemon-reload"]


@pytest.mark.long
def test_a_unit_that_attaches_another_size_is_let_alone_for_longer_each_time(root: Path) -> None:
    node = Node(root)
    (root / "attaches").write_text(str(48 * MIB))
    node.order(32 * MIB)

    said, stops = [], []
    for wait_s in (RETRY_S, RETRY_S, 2 * RETRY_S):
        said.append(node.looks(6).problem)
        stops.append(steps(root).count("stop"))
        asyncio.run(node.clock.advance(wait_s))
    (root / "attaches").unlink()
    after = node.looks(6)

    assert said == ["its unit attaches 48 MiB; see SWAP_OPTIONS and ExecStart"] * 3
    assert stops == [0, 1, 1]
    assert (after.attached_bytes, after.problem) == (32 * MIB, "")


def test_an_order_that_is_taken_back_leaves_no_size_for_the_units_next_start(root: Path) -> None:
    node = Node(root)
    node.order(32 * MIB)
    node.looks()
    node.order(None)

    said = node.looks()

    assert (said.attached_bytes, said.problem) == (32 * MIB, "")
    assert not (root / DROP_IN).exists()
    assert (root / "loaded").read_text() == ""


@pytest.mark.parametrize("own_bytes", [0, 16 * MIB])
def test_no_swap_is_detached_by_its_settings_before_a_manager_was_heard(own_bytes: int, root: Path) -> None:
    first = Node(root)
    first.order(DEVICE)
    first.looks()

    node = Node(root, MemoryRules(device=NAME, swap_bytes=own_bytes))
    asyncio.run(node.clock.advance(2 * HEARING_S))
    unheard = node.looks(6)
    node.order(None)

    assert "no manager has spoken" in unheard.problem
    assert unheard.attached_bytes == DEVICE
    assert node.looks(6).attached_bytes == own_bytes


def test_swap_that_was_attached_by_hand_in_another_size_is_adopted_as_it_is_and_then_detached(root: Path) -> None:
    by_hand = Node(root)
    by_hand.order(48 * MIB)
    by_hand.looks()
    (root / "unit").write_text("inactive")
    node = Node(root)
    node.order(32 * MIB)

    node.looks(1)
    adopted = (root / DROP_IN).read_text()

    assert f"--size={48 * MIB}" in adopted
    assert node.looks().attached_bytes == 32 * MIB
