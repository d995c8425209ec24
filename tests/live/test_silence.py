"""Which nodes count as silent where several managers share a store."""

import pytest
from msgspec.structs import replace

from farside.scheduler.manager.model.presence import Presence, RemotePresence
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.nodes.silence import Silence
from tests.live.world import World, rules

LIMIT_S = 60.0


@pytest.fixture
def node() -> LiveNode:
    world = World(rules(), nodes=1)
    return replace(next(iter(world.state.nodes.values())), is_up=True, fence_s=0.0)


def lost(silence: Silence, node: LiveNode, now_s: float, *connected: str) -> list[str]:
    return [event.node for event in silence.lost([node], connected, now_s)]


def test_a_node_that_joined_at_another_manager_long_after_this_one_began_has_its_whole_time(node: LiveNode) -> None:
    silence = Silence(LIMIT_S, RemotePresence())

    joined_s = 3600.0  # nobody has said yet that it is heard
    assert lost(silence, node, joined_s) == []
    assert lost(silence, node, joined_s + LIMIT_S) == []
    assert lost(silence, node, joined_s + LIMIT_S + 1) == [node.name]


def test_a_node_that_joins_again_at_another_manager_has_its_whole_time_again(node: LiveNode) -> None:
    silence = Silence(LIMIT_S, RemotePresence())
    lost(silence, node, 0.0)
    again = replace(node, joined_s=node.joined_s + 100.0)

    assert lost(silence, again, 100.0) == []
    assert lost(silence, again, 100.0 + LIMIT_S + 1) == [node.name]


def test_a_node_is_lost_from_when_its_connection_here_was_heard_last(node: LiveNode) -> None:
    silence = Silence(LIMIT_S, RemotePresence())
    lost(silence, node, 0.0)
    assert lost(silence, node, 100.0, node.name) == []
    silence.ended(node.name, 90.0)

    assert lost(silence, node, 90.0 + LIMIT_S) == []
    assert lost(silence, node, 90.0 + LIMIT_S + 1) == [node.name]


def test_a_node_that_another_manager_goes_on_to_hear_is_not_lost(node: LiveNode) -> None:
    elsewhere = RemotePresence()
    silence = Silence(LIMIT_S, elsewhere)
    for beat in range(20):
        elsewhere.told({"other": Presence(beat=beat, nodes=frozenset({node.name}))}, beat * LIMIT_S)
        assert lost(silence, node, (beat + 1) * LIMIT_S) == []


def test_a_node_that_the_log_calls_lost_is_not_called_so_again(node: LiveNode) -> None:
    silence = Silence(LIMIT_S, RemotePresence())
    down = replace(node, is_up=False)
    lost(silence, down, 0.0)

    assert lost(silence, down, 10 * LIMIT_S) == []
