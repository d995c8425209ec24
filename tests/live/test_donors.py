"""Which donors a node may borrow from, as the log says; and who is told of them when."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.messages import Donor
from farside.scheduler.manager.model.event import NodeLost
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.donors import DonorRing, donor_at
from tests.live.facts import facts, joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules


def a_node(name: str, *, has_donor: bool = True, address: str = "", control: str = "", is_up: bool = True) -> LiveNode:
    donor = Donor(node=f"{name}-donor", control=control or f"tcp:{name}:7677") if has_donor else None
    return LiveNode(name=name, address=address or name, is_up=is_up, **facts(donor=donor))


def ring_of(*nodes: LiveNode) -> DonorRing:
    state = LiveState()
    state.nodes = {node.name: node for node in nodes}
    return DonorRing(state)


def names(donors: tuple[Donor, ...]) -> list[str]:
    return [donor.node for donor in donors]


# ---- where a donor is reached


@pytest.mark.parametrize(
    ("control", "reached"),
    [
        ("tcp:0.0.0.0:7677", "tcp:10.0.0.3:7677"),
        ("tcp:[::]:7677", "tcp:10.0.0.3:7677"),
        ("tcp:10.9.0.7:1", "tcp:10.9.0.7:1"),
        ("tcp:[fe80::7]:1", "tcp:[fe80::7]:1"),
    ],
)
def test_a_donor_that_listens_everywhere_is_reached_where_its_node_is(control: str, reached: str) -> None:
    assert donor_at(Donor(node="d", control=control), "10.0.0.3") == Donor(node="d", control=reached)


@pytest.mark.parametrize("control", ["unix:/run/d.sock", "tcp:nowhere", "", "tcp:h:99999"])
def test_what_is_no_address_on_a_network_is_no_donor(control: str) -> None:
    assert donor_at(Donor(node="d", control=control), "10.0.0.3") is None


# ---- who gets whom


def test_a_node_gets_all_donors_but_its_own() -> None:
    nodes = [a_node("n1"), a_node("n2"), a_node("n3"), a_node("n4", has_donor=False)]

    assert names(ring_of(*nodes).of(nodes[0])) == ["n2-donor", "n3-donor"]
    assert names(ring_of(*nodes).of(nodes[3])) == ["n1-donor", "n2-donor", "n3-donor"]


def test_donors_of_lost_nodes_are_not_told() -> None:
    borrower = a_node("n1", has_donor=False)

    assert ring_of(borrower, a_node("n2", is_up=False)).of(borrower) == ()


def test_a_donor_on_the_managers_own_machine_that_nobody_else_reaches_is_told_to_that_machine_only() -> None:
    near, far = a_node("n1", address="127.0.0.1"), a_node("n2", address="10.0.0.2")
    local = a_node("n3", control="tcp:127.0.0.1:7677")
    ring = ring_of(near, far, local)

    assert "n3-donor" in names(ring.of(near))
    assert "n3-donor" not in names(ring.of(far))


def test_a_donor_with_another_nodes_name_is_not_told_whoever_stands_first() -> None:
    """[M6] Of 40 nodes, up to 20 borrowers were told the liar's address in the place of the donor's."""
    """[M6] Nor does it keep the owner's from being told."""
    owner = LiveNode(name="n5", address="n5", **facts(donor=Donor(node="n5", control="tcp:n5:7677")))
    liars = [
        LiveNode(name=f"n{at}", address=f"n{at}", **facts(donor=Donor(node="n5", control=f"tcp:n{at}:1")))
        for at in (1, 2, 3, 4, 6, 7)
    ]
    borrowers = [a_node(f"b{at}", has_donor=False) for at in range(40)]
    ring = ring_of(owner, *liars, *borrowers)

    assert {ring.of(borrower) for borrower in borrowers} == {(Donor(node="n5", control="tcp:n5:7677"),)}


def test_two_donors_of_one_name_are_told_as_one() -> None:
    borrower = a_node("n1", has_donor=False)
    same = [
        LiveNode(name=name, address=name, **facts(donor=Donor(node="d", control=f"tcp:{name}:1")))
        for name in ("n2", "n3")
    ]

    assert len(ring_of(borrower, *same).of(borrower)) == 1


@given(st.sets(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 500))
def test_a_list_is_bounded_and_changes_by_one_donor_when_one_goes(found: set[int], most: int, leaver: int) -> None:
    borrower = a_node("borrower", has_donor=False)
    nodes = [a_node(f"n{number}") for number in found]
    left = [node for node in nodes if node.name != f"n{leaver}"]

    before = set(names(ring_of(borrower, *nodes).of(borrower, most)))
    after = set(names(ring_of(borrower, *left).of(borrower, most)))

    assert len(before) == min(most, len(nodes))
    assert len(before - after) <= 1
    assert len(after - before) <= 1


# ---- who is told when


def world_with(*donors: str) -> World:
    world = World(rules(), nodes=1)
    for name in donors:
        donor = Donor(node=name, control=f"tcp:{name}:7677")
        world.does(joined(name, name, donor=donor))
    return world


def line(*, can: tuple[str, ...] = ("probe", "donors")) -> AgentLine:
    return AgentLine(msgspec.structs.replace(FakeNode("n0").hello(), can=can), "127.0.0.1")


def told(to: AgentLine, world: World) -> list[list[str]]:
    state = world.state
    messages = list(to.donors(state, DonorRing(state)))
    assert all(isinstance(message, m.Donors) for message in messages)
    return [[one.node for one in message.donors] for message in messages if isinstance(message, m.Donors)]


def test_an_agent_is_told_on_each_connection_and_then_when_something_changes() -> None:
    world = world_with("d1")
    first = line()

    assert told(first, world) == [["d1"]]
    assert told(first, world) == []
    world.does(joined("d2", "d2", donor=Donor(node="d2", control="tcp:d2:1")))
    assert told(first, world) == [["d1", "d2"]]
    world.does(NodeLost(node="d1", reason="test"))
    assert told(first, world) == [["d2"]]
    assert told(line(), world) == [["d2"]]


def test_a_donor_of_another_name_than_its_nodes_is_told_with_whose_it_is() -> None:
    """[H1] A donor takes what name it likes; a borrower that has left it out goes by its node."""
    world = world_with("d1")
    world.does(joined("n2", "n2", donor=Donor(node="lender", control="tcp:n2:1")))

    (message,) = line().donors(world.state, DonorRing(world.state))

    assert isinstance(message, m.Donors)
    assert [(one.node, one.owner) for one in message.donors] == [("d1", ""), ("lender", "n2")]


def test_an_agent_that_keeps_no_peers_file_or_is_of_an_older_version_is_not_told() -> None:
    assert told(line(can=("probe",)), world_with("d1")) == []


def test_no_donor_at_all_is_told_too() -> None:
    """Or an agent would not know that a list without anybody is one."""
    assert told(line(), World(rules(), nodes=1)) == [[]]


def test_a_report_of_another_donor_is_written_down_once_and_what_of_its_memory_is_free_is_not() -> None:
    world = World(rules(), nodes=1)
    connected = AgentLine(FakeNode("n0").hello(), "10.0.0.7")
    donor = m.Donor(node="d", control="tcp:0.0.0.0:7677", free_bytes=32)

    def report(seq: int, donor: m.Donor | None) -> list[object]:
        gpus = FakeNode("n0").declared()
        told = m.Report(
            seq=seq, at_s=1.0, headroom_bytes=1 << 36, psi=m.Psi(), gpus=gpus, tasks=(), donor=donor,
            swap=m.Swap(size_bytes=1 << 30, used_bytes=seq),
        )  # fmt: skip
        events = connected.reported(world.state, told)
        for event in events:
            world.does(event)
        return list(events)

    assert len(report(1, donor)) == 1
    assert world.state.nodes["n0"].donor == Donor(node="d", control="tcp:10.0.0.7:7677", capacity_bytes=32)
    assert world.state.nodes["n0"].swap_bytes == 1 << 30
    assert report(2, m.Donor(node="d", control="tcp:0.0.0.0:7677", free_bytes=2, lent_bytes=30)) == []
    assert len(report(3, None)) == 1
    assert world.state.nodes["n0"].donor is None
