"""The node service `rest`: an idle node turns down after the time that the manager says, and up when anything comes."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import msgspec
import pytest

from farside.agent import messages as m
from farside.agent.rest.saver import RECORD, RestHand
from farside.agent.service.rest import RETRY_S, UNFIT_S, RestService
from farside.config import AgentConfig, load_config
from farside.errors import ConfigError, Unavailable
from tests.support.virtual_clock import VirtualClock


class Knob:
    name = "cpu"

    def __init__(self) -> None:
        self.is_down, self.problem, self.stuck, self.lower_fails = False, "", "", False

    def settings(self) -> Mapping[str, str]:
        if self.problem:
            raise Unavailable(self.problem)
        return {"it": "up"}

    def lower(self) -> None:
        self.is_down = True
        if self.lower_fails:
            raise Unavailable("it is locked")

    def restore(self, before: Mapping[str, str]) -> Mapping[str, str]:
        if self.stuck == "fault":
            raise ValueError(self.stuck)
        if self.stuck:
            return {"it": self.stuck}
        self.is_down = False
        return {}


class Node:
    """The service on a virtual clock; ``is_idle``: nothing is on the node."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("cpu",)) -> None:
        self.knob, self.clock, self.is_idle = Knob(), VirtualClock(1000.0), True
        hand = RestHand([self.knob], names, folder, "boot")
        self.service = RestService(hand, is_idle=lambda: self.is_idle, clock=self.clock)

    def order(self, after_s: float | None = 60.0, *, is_drained: bool = False) -> None:
        self.service.obey(msgspec.Raw(msgspec.json.encode(m.RestOrder(after_s=after_s, is_drained=is_drained))))

    async def look(self, later_s: float = 0.0) -> bool:
        """Whether it is turned down after a look so much later."""
        await self.clock.advance(later_s)
        await self.service.look()
        return self.knob.is_down

    async def resting(self) -> None:
        self.order()
        await self.look()  # sees the order
        await self.look()  # and then that nothing is there
        assert await self.look(60.0)

    async def turned_up(self) -> None:
        """Until it is, for at most ten seconds."""
        async with asyncio.timeout(10.0):
            while self.knob.is_down:
                await asyncio.sleep(0)

    def facts(self) -> m.RestFacts:
        return msgspec.json.decode(self.service.facts(), type=m.RestFacts)


def play(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


def test_an_idle_node_turns_down_after_the_time_that_it_was_told(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def story() -> None:
        assert not await node.look(1e6)  # nobody has said that it may
        node.order(60.0)
        assert not await node.look()
        assert not await node.look()
        assert not await node.look(59.0)
        assert await node.look(1.0)

    play(story)
    assert node.facts() == m.RestFacts(rests=True, turns_down=("cpu",))
    assert node.service.metrics() == {"resting": 1.0, "stuck": 0.0}


@pytest.mark.parametrize("what", ["task", "start", "job is placed", "drain ends", "drain begins"])
def test_anything_that_comes_turns_it_up_at_the_next_look(tmp_path: Path, what: str) -> None:
    node = Node(tmp_path)

    async def story() -> None:
        await node.resting()
        if what == "task":
            node.is_idle = False
        elif what == "start":
            node.service.come()
        elif what == "job is placed":
            node.order(None)
        elif what == "drain begins":
            node.order(is_drained=True)
        else:
            node.order(is_drained=True)
            await node.look()
            await node.look()
            assert await node.look(60.0)
            node.order()
        assert not await node.look()

    play(story)
    assert not (tmp_path / RECORD).exists()


def test_a_start_is_not_slept_through(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def story() -> None:
        await node.resting()
        running = asyncio.ensure_future(node.service.run())
        node.service.come()
        await node.turned_up()
        running.cancel()

    play(story)


def test_the_same_order_again_changes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def story() -> None:
        await node.resting()
        node.order()
        assert await node.look(1.0)

    play(story)


def test_the_end_of_the_agent_turns_it_up(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def story() -> None:
        await node.resting()
        await node.service.close()
        assert not await node.look(1e6)  # and a look that was on its way turns nothing down

    play(story)
    assert not (tmp_path / RECORD).exists()


def test_what_an_agent_that_was_killed_left_is_put_back_at_the_start(tmp_path: Path) -> None:
    killed = Node(tmp_path)
    play(killed.resting)
    node = Node(tmp_path, ())
    node.knob.is_down = True

    play(node.service.begin)

    assert not node.knob.is_down


def test_what_cannot_be_put_back_at_the_start_is_tried_until_it_can_whatever_the_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = Node(tmp_path)
    play(killed.resting)
    node = Node(tmp_path, ())
    node.knob.is_down, node.knob.stuck = True, "NVML does not start"
    was_needed = node.service.is_needed

    async def story() -> None:
        await node.service.begin()
        for _ in range(3):
            assert await node.look(1.0)
        assert node.service.metrics() == {"resting": 1.0, "stuck": 1.0}
        assert node.facts().problem.endswith("jobs run slower here: NVML does not start")
        node.knob.stuck = ""
        async with asyncio.timeout(10.0):
            await node.service.run()  # until it is turned up: this node's settings turn nothing down

    play(story)
    assert (was_needed, node.service.is_needed, node.knob.is_down) == (True, False, False)
    assert (node.service.metrics(), node.facts().problem) == ({"resting": 0.0, "stuck": 0.0}, "")
    (said,) = [record for record in caplog.records if "could not be turned up again" in record.getMessage()]
    assert said.levelname == "ERROR"


def test_a_node_that_stays_turned_down_takes_no_new_jobs_until_it_is_turned_up(tmp_path: Path) -> None:
    killed = Node(tmp_path)
    play(killed.resting)
    node = Node(tmp_path)
    node.knob.is_down, node.knob.stuck = True, "NVML does not start"

    async def story() -> None:
        await node.service.begin()
        assert await node.look(UNFIT_S - 1.0)
        before = node.service.unfit()
        assert await node.look(1.0)
        assert (before, node.service.unfit()) == ("", node.facts().problem)
        assert "could not be turned up again" in node.service.unfit()
        node.knob.stuck = ""
        assert not await node.look(1.0)
        assert node.service.unfit() == ""
        node.knob.problem = "this machine has no cpufreq"  # what a node lacks keeps no jobs off
        node.order()
        for later_s in (0.0, 0.0, RETRY_S, 60.0, UNFIT_S):
            await node.look(later_s)
        assert (node.facts().problem, node.service.unfit()) == ("this machine has no cpufreq", "")

    play(story)


def test_a_rest_that_fails_halfway_and_cannot_be_taken_back_is_ended_later(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.knob.lower_fails, node.knob.stuck = True, "NVML does not start"

    async def story() -> None:
        node.order()
        for later_s in (0.0, 0.0):
            await node.look(later_s)
        assert await node.look(60.0)
        assert node.service.metrics()["stuck"] == 1.0
        node.knob.stuck = ""
        assert not await node.look(1.0)

    play(story)
    assert not (tmp_path / RECORD).exists()


def test_a_fault_in_a_saver_ends_no_agent(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / RECORD).write_text('{"boot_id": "boot", "savers": {"cpu": {"it": "up"}}}')
    node.knob.stuck = "fault"

    play(node.service.begin)

    assert "fault" in node.facts().problem


def test_what_a_node_lacks_is_said_in_one_line_and_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.knob.problem = "this machine has no cpufreq"

    async def story() -> None:
        node.order()
        for later_s in (0.0, 0.0, 60.0, 60.0, RETRY_S):
            assert not await node.look(later_s)
        assert node.facts().problem == "this machine has no cpufreq"
        node.knob.problem = ""
        assert await node.look(RETRY_S)

    play(story)
    assert node.facts().problem == ""
    assert caplog.messages.count("this node cannot rest") == 1


def test_it_knows_only_what_can_be_turned_down() -> None:
    assert load_config(AgentConfig, (), {"manager": "unix:/m", "rest": "cpu, gpu"}).rest == "cpu, gpu"
    with pytest.raises(ConfigError, match="'disk' can't be turned down; write cpu, gpu, or both"):
        load_config(AgentConfig, (), {"manager": "unix:/m", "rest": "cpu, disk"})
