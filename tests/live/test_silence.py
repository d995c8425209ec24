"""Which nodes count as silent where several managers share a store."""

import pytest
from msgspec.structs import replace

from farside.scheduler.manager.model.event import HoldRequested
from farside.scheduler.manager.model.presence import LEASE_GRACE_S, Fronts, Presence, RemotePresence
from farside.scheduler.manager.model.record import LiveNode, Phase
from farside.scheduler.manager.nodes.silence import Silence, left_leases
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


def test_a_lease_that_waits_is_ended_once_its_front_was_silent_for_its_grace() -> None:
    world = World(rules(), nodes=0)
    lease, held = (world.submit(1, user="ann", deployment="chat") for _ in range(2))
    other = world.submit(1, user="ann")
    world.does(HoldRequested(job_id=held, by="ann"))
    begun_s = world.now_s
    fronts = Fronts(begun_s, RemotePresence())
    fronts.heard("ann", "chat", begun_s + 10)

    def ended(at_s: float) -> list[str]:
        return [one.job_id for one in left_leases(world.state.live_jobs(), fronts, at_s)]

    assert ended(begun_s + 10 + LEASE_GRACE_S) == []
    assert ended(begun_s + 11 + LEASE_GRACE_S) == [lease]
    fronts.heard("ann", "chat", begun_s + 12 + LEASE_GRACE_S)  # it is back
    assert ended(begun_s + 12 + LEASE_GRACE_S) == []
    assert world.phase(other) == Phase.WAITING


def test_a_lease_whose_front_is_gone_says_why_it_was_ended() -> None:
    world = World(rules(), nodes=0)
    lease = world.submit(1, user="ann", deployment="chat")

    world.pass_s(LEASE_GRACE_S + 1)
    for event in left_leases(world.state.live_jobs(), Fronts(0.0, RemotePresence()), world.now_s):
        world.tell(event)
    world.settle()

    assert world.phase(lease) == Phase.CANCELLED
    assert world.job(lease).reason == (
        "cancelled by the manager: the front of deployment chat has not told of itself for 5 min"
    )
