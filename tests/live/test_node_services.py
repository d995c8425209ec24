"""Node services at the manager: known ones are read, others kept as they come, and none costs a report the rest."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from farside.agent import messages as m
from farside.scheduler.manager.model.event import Event, ServiceChanged, ServiceTold
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.nodes import services
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.donors import DonorRing
from farside.scheduler.manager.view.view import show_node
from farside.scheduler.power.state import Holdings
from tests.agent.frames import raws
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

DONOR = m.Donor(node="d0", control="tcp:10.0.0.7:7677", free_bytes=1)
SERVICES = (m.CAN_PROBE, m.CAN_DONORS, m.CAN_LENDING, "service:donor", "service:borrower")


def raw(said: object) -> Raw:
    return Raw(msgspec.json.encode(said))


def hello(**more: object) -> m.Hello:
    return msgspec.structs.replace(FakeNode("n0").hello(), can=SERVICES, **more)


def report(seq: int = 1, **more: object) -> m.Report:
    plain = m.Report(
        seq=seq, at_s=100.0 * seq, headroom_bytes=1 << 36, psi=m.Psi(), gpus=FakeNode("n0").declared(), tasks=()
    )  # fmt: skip
    return msgspec.structs.replace(plain, **more)


def writes(world: World, events: list[Event]) -> list[Event]:
    for event in events:
        world.does(event)
    return events


def connected(world: World, **more: object) -> AgentLine:
    line = AgentLine(hello(**more), "10.0.0.7")
    writes(world, line.joined(world.state))
    return line


def test_what_donor_and_borrower_say_is_what_the_fields_of_the_version_before_say() -> None:
    swap = m.Swap(size_bytes=1 << 30, used_bytes=5)
    by_service, by_fields = World(rules(), nodes=1), World(rules(), nodes=1)
    said = {"donor": raw(m.DonorFacts(donor=DONOR)), "borrower": raw(m.BorrowerFacts(swap=swap))}

    new = connected(by_service, services=said).reported(by_service.state, report(services=said))
    old = connected(by_fields, donor=DONOR, swap=swap).reported(by_fields.state, report(donor=DONOR, swap=swap))

    assert new == old
    assert by_service.state.nodes == by_fields.state.nodes
    assert show_node(by_service.state.nodes["n0"]).services.keys() == {"borrower", "donor"}


@given(raws)
def test_a_service_that_nobody_here_knows_is_kept_as_it_comes_shown_and_survives_an_image(said: Raw) -> None:
    world = World(rules(), nodes=1)
    line = connected(world)

    (event,) = writes(world, line.reported(world.state, report(services={"sums": said})))

    assert isinstance(event, ServiceChanged)
    assert msgspec.json.decode(event.raw) == msgspec.json.decode(said)
    assert line.reported(world.state, report(2, services={"sums": said})) == []
    again = decode_state(encode_state(world.state)).nodes["n0"]
    assert again == world.state.nodes["n0"]
    shown = msgspec.json.decode(msgspec.json.encode(show_node(again)))
    assert shown["services"]["sums"] == msgspec.json.decode(said)
    writes(world, line.reported(world.state, report(3)))
    assert world.state.nodes["n0"].services == {}


def test_a_service_that_nobody_here_knows_does_not_fill_the_log() -> None:
    world = World(rules(), nodes=1)
    line = connected(world)
    told = [report(seq, at_s=float(seq), services={"sums": raw(seq)}) for seq in range(1, 100)]

    written = [writes(world, line.reported(world.state, one)) for one in told]

    assert sum(map(len, written)) == 2


@pytest.mark.parametrize(
    "broken", [raw({"loans": "many"}), raw([1]), raw("x" * m.SERVICE_BYTES_MAX)], ids=["field", "kind", "too-long"]
)
def test_a_service_that_can_not_be_read_is_left_out_with_a_reason_and_the_rest_counts(broken: Raw) -> None:
    world = World(rules(), nodes=1)
    line = connected(world)

    events = writes(world, line.reported(world.state, report(services={"donor": broken, "sums": raw(1)}, unfit="hot")))

    assert {*line.service_problems} == {"donor"}
    assert "\n" not in line.service_problems["donor"]
    assert world.state.nodes["n0"].services == {"sums": "1"}
    assert (len(events), world.state.nodes["n0"].drain_reason) == (2, "hot")


def test_what_a_service_says_about_a_job_is_written_down_if_the_job_is_there() -> None:
    world = World(rules(), nodes=1)
    line = connected(world)
    name = world.submit(1)
    world.settle()
    starts = {name: world.job(name).start, "99": 1}
    told = tuple(m.Told(service="sums", job=job, start=start, raw=raw({"a": 1})) for job, start in starts.items())

    events = writes(world, line.reported(world.state, report(told=told)))

    assert [one for one in events if isinstance(one, ServiceTold)] == [
        ServiceTold(node="n0", service="sums", job_id=name, start=1, raw='{"a":1}')
    ]


def test_orders_go_to_services_once_a_connection_and_as_before_to_an_agent_without_them() -> None:
    world = World(rules(), nodes=1)
    new, old = connected(world), AgentLine(msgspec.structs.replace(hello(), can=(m.CAN_LENDING, m.CAN_DONORS)), "h")
    ring = DonorRing(world.state)

    (order,) = new.orders(world.state)
    (peers,) = new.donors(world.state, ring)

    assert (order.name, order.epoch) == ("donor", world.state.seq)
    assert msgspec.json.decode(order.raw, type=m.DonorOrder) == m.DonorOrder(closed_by=0, deadline_s=900.0)
    assert isinstance(peers, m.Service)
    assert msgspec.json.decode(peers.raw, type=m.BorrowerOrder) == m.BorrowerOrder(donors=())
    assert [*new.orders(world.state), *new.lending(world.state)] == []
    assert [type(one) for one in (*old.lending(world.state), *old.donors(world.state, ring))] == [m.Lending, m.Donors]
    assert list(old.orders(world.state)) == []


@given(st.lists(st.sampled_from(["donor", "borrower", "sums", "serving"]), unique=True).map(tuple))
def test_a_node_is_empty_when_every_service_says_so(names: tuple[str, ...]) -> None:
    held = Holdings(services=services.holding(names))  # the donor's slabs are counted beside

    assert held.is_empty is not bool({*names} - {"donor"})
    assert all(name in held.told() for name in {*names} - {"donor"})
