"""When a manager lets an idle node rest, and what it hears of it."""

import msgspec
import pytest

from farside.agent import messages as m
from farside.scheduler.manager.model.event import DrainRequested, ServiceChanged, UndrainRequested
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.view.view import show_node
from tests.live.test_node_services import hello, raw, report
from tests.live.world import World, rules

CAN = (m.can_service(m.REST),)


def line_of(world: World, *, after_s: float = 300.0, can: tuple[str, ...] = CAN) -> AgentLine:
    line = AgentLine(msgspec.structs.replace(hello(), can=can), "10.0.0.7", rest_after_s=after_s)
    for event in line.joined(world.state):
        world.does(event)
    return line


def told(line: AgentLine, world: World) -> list[m.RestOrder]:
    return [msgspec.json.decode(one.raw, type=m.RestOrder) for one in line.orders(world.state) if one.name == m.REST]


def test_a_node_that_serves_and_has_no_job_may_rest_and_is_told_once() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world)

    assert told(line, world) == [m.RestOrder(after_s=300.0)]
    assert told(line, world) == []


def test_a_job_that_is_placed_there_takes_that_back_before_it_is_started() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world)
    told(line, world)

    job_id = world.submit(gpus=1)

    assert job_id in world.state.jobs_on("n0")
    assert told(line, world) == [m.RestOrder()]


def test_a_drain_that_begins_or_ends_is_another_order_so_that_a_rest_ends() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world)
    told(line, world)

    world.does(DrainRequested(node="n0", reason="new disks", by="root"))
    drained = told(line, world)
    world.does(UndrainRequested(node="n0", by="root"))

    assert drained == [m.RestOrder(after_s=300.0, is_drained=True)]
    assert told(line, world) == [m.RestOrder(after_s=300.0)]


@pytest.mark.parametrize(("after_s", "can", "orders"), [(0.0, CAN, [m.RestOrder()]), (300.0, (), [])])
def test_without_the_setting_no_node_may_and_who_can_not_is_not_asked(
    after_s: float, can: tuple[str, ...], orders: list[m.RestOrder]
) -> None:
    world = World(rules(), nodes=1)

    assert told(line_of(world, after_s=after_s, can=can), world) == orders


def test_what_a_node_says_of_its_rest_is_in_the_log_and_shown_and_repeated_by_nothing() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world)
    facts = m.RestFacts(rests=True, turns_down=("cpu",), problem="")
    said = {m.REST: raw(facts)}

    events = line.reported(world.state, report(services=said))
    for event in events:
        world.does(event)

    assert [type(event) for event in events] == [ServiceChanged]
    assert line.reported(world.state, report(2, services=said)) == []
    shown = msgspec.json.decode(msgspec.json.encode(show_node(world.state.nodes["n0"])))
    assert shown["services"][m.REST] == {"rests": True, "turns_down": ["cpu"]}
