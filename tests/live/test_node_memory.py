"""Memory that nodes lend and have borrowed: from what their services say to what the manager answers."""

from dataclasses import replace
from pathlib import Path

import msgspec

from farside.agent import messages as m
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory, memory_of
from farside.scheduler.manager.view.overview import Sensed, Survey, show_overview
from tests.live.test_api import Api, api_test
from tests.live.test_node_services import DONOR, connected, raw, report
from tests.live.world import World, rules

LENT = m.LentMemory(lent_bytes=7, lendable_bytes=5, read_bytes_per_s=3.0)
BORROWED = m.BorrowedMemory(remote_bytes=11, on_disk_bytes=13, pages_at_risk=2, disk_failed=True, read_p99_s=0.25)


def said_of(**services: object) -> NodeMemory:
    world = World(rules(), nodes=1)
    line = connected(world)
    said = {name: raw(value) for name, value in services.items()}
    assert line.memory == NO_MEMORY
    line.reported(world.state, report(services=said))
    return line.memory


def test_what_donor_and_borrower_say_is_the_nodes_memory() -> None:
    found = said_of(donor=m.DonorFacts(lent=LENT), borrower=m.BorrowerFacts(borrowed=BORROWED))

    assert (found.lent_bytes, found.lendable_bytes, found.read_bytes_per_s) == (7, 5, 3.0)
    assert (found.remote_bytes, found.on_disk_bytes, found.pages_at_risk) == (11, 13, 2)
    assert (found.disk_failed, found.read_p99_s, found.write_p99_s) == (True, 0.25, None)


def test_a_node_without_donor_and_borrower_has_null_for_each() -> None:
    assert said_of(donor=m.DonorFacts(), borrower=m.BorrowerFacts()) == NO_MEMORY
    assert set(msgspec.to_builtins(NO_MEMORY).values()) == {None}


def test_an_agent_of_the_version_before_says_what_its_donor_lends_and_nothing_of_its_borrower() -> None:
    donor = msgspec.structs.replace(DONOR, lent_bytes=7, free_bytes=5)

    assert memory_of(report(donor=donor), None, None) == NodeMemory(lent_bytes=7, lendable_bytes=5)
    assert said_of(donor={"donor": donor}) == NodeMemory(lent_bytes=7, lendable_bytes=5)


def test_a_manager_of_the_version_before_reads_what_a_new_agent_says() -> None:
    class Before(msgspec.Struct):
        swap: m.Swap | None = None

    said = msgspec.json.encode(m.BorrowerFacts(borrowed=BORROWED))

    assert msgspec.json.decode(said, type=Before) == Before()


def test_the_api_answers_with_the_memory_of_nodes_and_the_page_has_it_among_what_was_sensed(tmp_path: Path) -> None:
    memory = NodeMemory(lent_bytes=1 << 30, lendable_bytes=0)

    async def test(api: Api) -> None:
        client = api.as_uid(0)
        before = await client.get("/v1/nodes")
        api.sessions.sensed = lambda: {"n0": Sensed(memory=memory)}  # type: ignore[method-assign]  # as if connected
        after = await client.get("/v1/nodes", headers={"If-None-Match": before.headers["etag"]})
        one = (await client.get("/v1/nodes/n0")).json()

        assert {node["name"]: node["memory"]["lent_bytes"] for node in before.json()["nodes"]}["n0"] is None
        listed = {node["name"]: node["memory"] for node in after.json()["nodes"]}
        assert listed["n0"] == one["memory"] == msgspec.to_builtins(memory)

    api_test(test, tmp_path)
    world = World(rules(), nodes=1)
    overview = replace(Survey(world.state).overview(None), sensed={"n0": Sensed(memory=memory)})
    shown = msgspec.to_builtins(show_overview(overview, 0.0))
    assert shown["sensed"]["n0"]["memory"]["lent_bytes"] == 1 << 30
