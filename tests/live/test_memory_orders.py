"""Orders about nodes' memory: by an operator, kept in the log, told to agents, refused where they can't be kept."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farside.agent import messages as m
from farside.cli.cluster_table import memory_words
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import LendingOrdered, SwapOrdered
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.nodes.memory_orders import why_not_lend, why_not_swap
from farside.scheduler.manager.view.audit import show_audit
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory, with_orders
from farside.scheduler.manager.view.overview import Sensed
from tests.agent.fake_systemd import machine, path_with, swap_bytes
from tests.agent.process import agent, kill, write_config
from tests.blockdev.test_process import Process as Borrower
from tests.daemon.test_process import daemon
from tests.daemon.test_process import write_config as write_donor
from tests.live.facts import gpus, joined
from tests.live.manager import Manager, running_manager
from tests.live.test_api import Api, api_test
from tests.live.test_node_services import hello, raw, report
from tests.live.world import World, rules
from tests.support.ports import free_port
from tests.support.programs import outcome
from tests.support.sandbox import farside
from tests.support.waiting import until

GIB = 1 << 30
DEVICE = 64 << 20  # of the borrower
LENDS = Sensed(memory=NodeMemory(lent_bytes=0, lendable_bytes=GIB))
CAN = ("service:donor", "service:donor:2")


def a_line(world: World, *can: str) -> AgentLine:
    line = AgentLine(msgspec.structs.replace(hello(), can=can), "10.0.0.7")
    for event in line.joined(world.state):
        world.does(event)
    return line


def orders(line: AgentLine, world: World) -> list[m.DonorOrder]:
    told = [one for one in line.orders(world.state) if one.name == "donor"]
    return [msgspec.json.decode(one.raw, type=m.DonorOrder) for one in told]


def test_an_order_is_told_once_and_again_on_each_connection_and_outlives_a_snapshot() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world, *CAN)
    before = orders(line, world)

    world.does(LendingOrdered(node="n0", lend_bytes=GIB, by="root"))

    assert [one.lend_bytes for one in (*before, *orders(line, world))] == [None, GIB]
    assert orders(line, world) == []
    assert [one.lend_bytes for one in orders(a_line(world, *CAN), world)] == [GIB]
    again = decode_state(encode_state(world.state))
    assert again.nodes["n0"].lend_at_most_bytes == GIB
    world.does(LendingOrdered(node="n0", lend_bytes=None, by="root"))
    assert world.state.nodes["n0"].lend_at_most_bytes is None


def test_an_order_for_a_node_that_nobody_knows_changes_nothing() -> None:
    world = World(rules(), nodes=1)
    before = world.state.nodes["n0"]

    world.does(LendingOrdered(node="gone", lend_bytes=0, by="root"))

    assert world.state.nodes["n0"] is before


def test_the_audit_says_who_bounded_what() -> None:
    world = World(rules(), nodes=1)
    entry = world.tell(LendingOrdered(node="n0", lend_bytes=0, by="carl"), "operator carl, uid 7")

    line = show_audit(entry, world.state)

    assert (line.actor, line.action, line.object, line.result) == ("operator carl", "lend", "node n0", "done")


@pytest.mark.parametrize(
    ("sensed", "at_most_bytes", "refusal"),
    [
        (LENDS, GIB, ""),
        (LENDS, 0, ""),
        (None, None, ""),  # a bound is taken back wherever its node is
        (None, 0, "its agent has not reported to this manager"),
        (Sensed(memory=LENDS.memory, lend_refusal="its agent is of a version before this one"), 0, "version before"),
        (Sensed(), 0, "no donor answers there"),
        (LENDS, 1 << 40, "lend is 1 TiB, and the node has"),
    ],
)
def test_what_can_not_be_kept_is_refused_in_one_line(sensed: Sensed | None, at_most_bytes: int, refusal: str) -> None:
    node = World(rules(), nodes=1).state.nodes["n0"]

    said = why_not_lend(node, sensed, at_most_bytes)

    assert refusal in said
    assert bool(said) == bool(refusal)
    assert "\n" not in said


def test_agents_of_the_version_before_and_owners_who_refuse_are_known_by_their_reports() -> None:
    world = World(rules(), nodes=1)
    said = {"donor": raw(m.DonorFacts(refusal="no"))}
    old, new = a_line(world, "service:donor"), a_line(world, *CAN)

    old.reported(world.state, report())
    new.reported(world.state, report(services=said))

    assert "of a version before this one" in old.lend_refusal
    assert new.lend_refusal == "no"


@pytest.mark.parametrize(
    ("memory", "refusal", "problem"),
    [
        (None, "", "its agent is not connected"),
        (NodeMemory(lent_bytes=0, lend_limit_bytes=5), "", None),
        (NodeMemory(lent_bytes=7, lend_limit_bytes=5), "", "what is lent beyond it is on its way back"),
        (NodeMemory(lent_bytes=0), "", "its agent has yet to tell the donor"),
        (NodeMemory(lent_bytes=0, lend_problem="why"), "", "why"),
        (NodeMemory(lent_bytes=0, lend_limit_bytes=5), "its owner says no", "its owner says no"),
    ],
)
def test_what_is_ordered_and_what_is_true_are_told_with_the_reason(
    memory: NodeMemory | None, refusal: str, problem: str | None
) -> None:
    found = with_orders(memory, lend_bytes=5, swap_bytes=None, lend_refusal=refusal)

    assert (found.lend_ordered_bytes, found.lend_problem) == (5, problem)


def test_an_order_is_kept_where_a_job_there_bounds_the_donor_more_tightly() -> None:
    memory = NodeMemory(lent_bytes=3, lend_limit_bytes=3)

    assert with_orders(memory, lend_bytes=5, swap_bytes=None, bound_bytes=3).lend_problem is None
    assert with_orders(memory, lend_bytes=5, swap_bytes=None, bound_bytes=2).lend_problem


def test_a_node_without_a_donor_lends_nothing_as_ordered() -> None:
    assert with_orders(NO_MEMORY, lend_bytes=0, swap_bytes=0).lend_problem is None


def test_people_read_what_was_ordered_and_why_it_is_not_so() -> None:
    def node(memory: NodeMemory) -> Mapping[str, Any]:
        return {"memory": msgspec.to_builtins(memory)}

    assert memory_words(node(NO_MEMORY), "lend") == memory_words({}, "swap") == ""
    none = with_orders(NO_MEMORY, lend_bytes=0, swap_bytes=0)
    away = with_orders(None, lend_bytes=GIB, swap_bytes=GIB)
    assert memory_words(node(none), "lend") == "lends nothing, as ordered"
    assert memory_words(node(none), "swap") == "swap off, as ordered"
    assert memory_words(node(away), "lend") == "lends at most 1 GiB, as ordered; its agent is not connected"
    assert memory_words(node(away), "swap") == "swap 1 GiB, as ordered; its agent is not connected"
    assert memory_words(node(NodeMemory(lend_problem="why")), "lend") == "lend: why"
    assert memory_words(node(NodeMemory(swap_problem="why")), "swap") == "swap: why"


def test_the_api_refuses_what_can_not_be_and_writes_what_can(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client, path = api.as_uid(0), "/v1/nodes/n0/lend"
        away = await client.post(path, json={"at_most_bytes": 0})
        api.sessions.sensed = lambda: {"n0": LENDS}  # type: ignore[method-assign]  # as if connected
        bounded = await client.post(path, json={"at_most_bytes": 5})
        wrong = [await client.post(path, json=body) for body in ({}, {"at_most_bytes": -1}, {"bytes": 1})]
        unknown = await client.post("/v1/nodes/n9/lend", json={"at_most_bytes": 0})
        lines = (await client.get("/v1/audit")).json()["entries"]
        undone = await client.post(path, json={"at_most_bytes": None})
        asked = await client.post(path, json={"at_most_bytes": 7, "is_question": True})
        refused = await client.post(path, json={"at_most_bytes": 1 << 50, "is_question": True})

        assert (away.status_code, away.json()["detail"].split(":")[0]) == (409, "n0")
        assert bounded.json()["memory"]["lend_ordered_bytes"] == 5
        assert [one.status_code for one in (*wrong, unknown)] == [422, 422, 422, 404]
        assert ("lend", "node n0", "done") in [(one["action"], one["object"], one["result"]) for one in lines]
        assert undone.json()["memory"]["lend_ordered_bytes"] is None
        assert (asked.status_code, refused.status_code) == (200, 409)
        assert asked.json()["memory"]["lend_ordered_bytes"] is None

    api_test(test, tmp_path)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("lend=much",), "lend: 'much'"),
        (("lend",), "lend: ''"),
        (("swap=on",), "'swap=on' is nothing that a node can be told"),
        (("lend=keep",), "'lend=keep' is nothing that a node can be told"),
        (("sleep=on",), "'sleep=on' is nothing that a node can be told"),
        (("swap=much",), "swap: 'much'"),
        (("lend=off", "lend=on"), "'lend=on' is nothing"),
    ],
)
def test_words_that_say_nothing_are_refused_before_anybody_is_asked(words: tuple[str, ...], line: str) -> None:
    done = outcome(farside("node", "set", "n1", *words, "--manager", "unix:/nowhere"))

    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert line in done.stderr


@pytest.mark.long
def test_an_order_holds_whoever_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manager, agents, a donor, a borrower: real processes; of the node's kernel and systemd stand files there."""
    pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")
    root = machine(tmp_path / "root", DEVICE)
    monkeypatch.setenv("PATH", path_with(root))
    for name in "dabm":
        (tmp_path / name).mkdir()
    donor = write_donor(tmp_path / "d", hugepages="off")
    donor.write_text(donor.read_text().replace(f"unix:{tmp_path}/d/donor.sock", f"tcp:127.0.0.1:{free_port()}"))
    borrower = Borrower(tmp_path / "b", name="swap0")
    with running_manager(tmp_path / "m") as manager, ExitStack() as stack:
        lender = write_config(
            tmp_path / "d", manager.url, token=manager.node_token("n2"), node="n2",
            daemon_socket=str(tmp_path / "d/admin.sock"), admin_socket=str(tmp_path / "d/agent.sock"),
        )  # fmt: skip
        swapper = write_config(
            tmp_path / "a", manager.url, token=manager.node_token("n1"), proc_root=str(root / "proc"),
            swap_device="swap0", blockdev_socket=str(borrower.admin),
        )  # fmt: skip
        stack.callback(borrower.close)
        with daemon(donor) as first_donor, agent(lender) as first_lender, agent(swapper) as first_swapper:
            borrower.start()
            until_is(manager, "n2", "lend_limit_bytes", None)
            until(lambda: manager.get("nodes", "n2")["donor"], what="a donor that is told of", deadline_s=60)
            until_is(manager, "n1", "swap_device_bytes", DEVICE)
            order(manager, "n1", f"swap={DEVICE // 2}")
            until_is(manager, "n1", "swap_attached_bytes", DEVICE // 2)
            order(manager, "n2", "lend=off")
            until_is(manager, "n2", "lend_limit_bytes", 0)
            order(manager, "n1", "swap=off")
            # The second is refused: of the first nothing is written.
            address = f"unix:{manager.folder}/manager.sock"
            both = outcome(farside("node", "set", "n1", "swap=keep", "lend=off", "--manager", address))
            ordered_bytes = manager.get("nodes", "n1")["memory"]["swap_ordered_bytes"]
            for process in (first_lender, first_swapper, first_donor):
                kill(process)
            manager.kill_all()
        borrower.close()
        borrower = Borrower(tmp_path / "b", name="swap0")
        stack.callback(borrower.close)
        manager.start()
        with daemon(donor), agent(lender), agent(swapper):
            borrower.start()
            until_is(manager, "n1", "swap_attached_bytes", 0)
            until_is(manager, "n2", "lend_limit_bytes", 0)
            lendable_bytes = manager.get("nodes", "n2")["memory"]["lendable_bytes"]
            said = order(manager, "n2", "lend=on")
            until_is(manager, "n2", "lend_limit_bytes", None)

    assert lendable_bytes == 0
    assert "no donor answers there" in both.stderr
    assert ordered_bytes == 0
    assert said == "n2: as its own settings say\n"
    assert swap_bytes(root) == 0


def order(manager: Manager, node: str, word: str) -> str:
    done = outcome(farside("node", "set", node, word, "--manager", f"unix:{manager.folder}/manager.sock"))
    assert done.status == 0, done.stderr
    return done.stdout


def until_is(manager: Manager, node: str, what: str, value: int | None) -> None:
    """Until a node's agent says so, and no reason why it is not as ordered."""

    def is_so() -> bool:
        nodes = {one["name"]: one["memory"] for one in manager.get("nodes")["nodes"]}
        told, key = nodes.get(node, {}), what.partition("_")[0]
        is_there = told.get("lent_bytes" if key == "lend" else "swap_attached_bytes") is not None
        return is_there and told[what] == value and told[f"{key}_problem"] is None

    until(is_so, what=f"{what} {value} of {node}", deadline_s=90)


# ---- swap

SWAPS = Sensed(memory=NodeMemory(swap_device_bytes=8 * GIB, swap_attached_bytes=0))
SWAPPING: dict[str, Any] = {
    "memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB, "gpus": gpus(4, "H200"), "swap": m.Swap(size_bytes=8 * GIB),
}  # fmt: skip


def a_cluster(lends_gib: int = 64) -> World:
    """A node n0 with a GPU, and a donor d."""
    world = World(rules(), nodes=1)
    donor = m.Donor(node="d", control="tcp:d:7677", capacity_bytes=lends_gib * GIB)
    world.does(joined("d", "d", memory_bytes=256 * GIB, donor=donor))
    return world


@pytest.mark.parametrize(
    ("sensed", "size_bytes", "refusal"),
    [
        (SWAPS, 4 * GIB, ""),
        (SWAPS, 0, ""),
        (None, None, ""),
        (None, 0, "its agent has not reported to this manager"),
        (Sensed(memory=SWAPS.memory, swap_refusal='memory_orders is "lend"'), 0, 'memory_orders is "lend"'),
        (Sensed(), GIB, "no borrower answers there"),
        (SWAPS, 9 * GIB, "swap is 9 GiB, and its device has 8 GiB"),
        (SWAPS, 6 * GIB, "donors of other nodes lend 5 GiB"),
        (SWAPS, 4096, "less than 2 MiB is none"),
    ],
)
def test_swap_that_can_not_be_is_refused_in_one_line(sensed: Sensed | None, size_bytes: int, refusal: str) -> None:
    world = a_cluster(5)

    said = why_not_swap(world.state.nodes["n0"], sensed, size_bytes, world.state)

    assert refusal in said
    assert bool(said) == bool(refusal)
    assert "\n" not in said


def test_swap_that_jobs_were_promised_is_not_taken_from_them() -> None:
    world = a_cluster()
    world.does(joined("n0", **SWAPPING))
    job = world.submit(1, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=GIB)
    world.runs(job)
    node = world.state.nodes["n0"]

    assert f"jobs there were promised swap, such as {job}" in why_not_swap(node, SWAPS, 0, world.state)
    assert why_not_swap(node, SWAPS, 8 * GIB, world.state) == ""
    world.exits(job)
    assert why_not_swap(world.state.nodes["n0"], SWAPS, 0, world.state) == ""


def test_swap_that_jobs_were_promised_is_not_detached_to_have_another_size() -> None:
    world = a_cluster()
    world.does(joined("n0", **SWAPPING))
    job = world.submit(1, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=GIB)
    world.runs(job)
    node, line = world.state.nodes["n0"], f"jobs there were promised swap, such as {job}"
    on = Sensed(memory=NodeMemory(swap_device_bytes=16 * GIB, swap_attached_bytes=8 * GIB))

    assert line in why_not_swap(node, on, 12 * GIB, world.state)
    assert why_not_swap(node, on, 8 * GIB + 4096, world.state) == ""
    world.exits(job)
    assert why_not_swap(world.state.nodes["n0"], on, 12 * GIB, world.state) == ""


@pytest.mark.parametrize(
    ("set_bytes", "is_there", "line"),
    [
        (None, True, ""),
        (8 * GIB, True, ""),
        (0, True, "jobs there were promised swap"),
        (4 * GIB, True, "jobs there were promised swap"),
        (None, False, "its agent has not reported to this manager"),
    ],
)
def test_an_order_is_not_taken_back_where_the_nodes_settings_would_detach_what_jobs_were_promised(
    set_bytes: int | None, is_there: bool, line: str
) -> None:
    world = a_cluster()
    world.does(joined("n0", **SWAPPING))
    job = world.submit(1, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=GIB)
    world.runs(job)
    memory = NodeMemory(swap_device_bytes=8 * GIB, swap_attached_bytes=8 * GIB)
    sensed = Sensed(memory=memory, swap_set_bytes=set_bytes) if is_there else None

    def said() -> str:
        return why_not_swap(world.state.nodes["n0"], sensed, None, world.state)

    assert said() == ""  # nothing was ordered
    world.does(SwapOrdered(node="n0", swap_bytes=8 * GIB, by="root"))
    assert line in said()
    assert bool(said()) == bool(line)
    world.exits(job)
    assert said() == ""


def test_orders_that_a_nodes_owner_lets_count_no_more_are_taken_back() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world, *CAN, m.can_service(m.SWAP))
    world.does(LendingOrdered(node="n0", lend_bytes=0, by="root"))
    world.does(SwapOrdered(node="n0", swap_bytes=0, by="root"))
    refusing = {"donor": raw(m.DonorFacts(refusal="no")), m.SWAP: raw(m.SwapFacts(refusal="no"))}
    obeying = {"donor": raw(m.DonorFacts()), m.SWAP: raw(m.SwapFacts(set_bytes=GIB))}

    kept = line.reported(world.state, report(services=obeying))
    set_bytes = line.swap_set_bytes
    taken = line.reported(world.state, report(services=refusing))
    for event in taken:
        world.does(event)

    assert (kept, set_bytes) == ([], GIB)
    assert taken == [
        LendingOrdered(node="n0", lend_bytes=None, by="node n0"),
        SwapOrdered(node="n0", swap_bytes=None, by="node n0"),
    ]
    assert line.reported(world.state, report(services=refusing)) == []


def test_what_programs_use_of_swap_that_is_to_go_is_no_news_with_each_report() -> None:
    world = World(rules(), nodes=1)
    line = a_line(world, *CAN)
    used = m.Swap(size_bytes=8 * GIB, own_bytes=GIB)
    for event in line.reported(world.state, report(swap=used)):
        world.does(event)
    world.does(SwapOrdered(node="n0", swap_bytes=0, by="root"))

    little = line.reported(world.state, report(swap=m.Swap(size_bytes=8 * GIB, own_bytes=GIB + 4096)))
    much = line.reported(world.state, report(swap=m.Swap(size_bytes=8 * GIB, own_bytes=2 * GIB)))

    assert (little, len(much)) == ([], 1)


def test_no_job_is_promised_swap_that_is_to_go() -> None:
    world = a_cluster()
    world.does(joined("n0", **SWAPPING))
    world.does(SwapOrdered(node="n0", swap_bytes=GIB, by="root"))
    job = world.submit(1, memory_bytes_per_gpu=GIB, swap_bytes_per_gpu=4 * GIB)

    assert world.state.nodes["n0"].swap_bytes == GIB
    assert world.phase(job) is Phase.WAITING
    world.does(SwapOrdered(node="n0", swap_bytes=None, by="root"))
    assert world.phase(job) is Phase.STARTING
    assert list(violations(world.log)) == []


def test_an_order_about_swap_is_told_to_agents_that_have_the_service_alone() -> None:
    world = World(rules(), nodes=1)
    new, old = a_line(world, m.can_service(m.SWAP)), a_line(world, *CAN)
    world.does(SwapOrdered(node="n0", swap_bytes=GIB, by="root"))

    told = [one for one in new.orders(world.state) if one.name == m.SWAP]
    old.reported(world.state, report())
    new.reported(world.state, report(services={m.SWAP: raw(m.SwapFacts(device_bytes=8 * GIB, problem="why"))}))

    assert [msgspec.json.decode(one.raw, type=m.SwapOrder) for one in told] == [m.SwapOrder(swap_bytes=GIB)]
    assert [one for one in old.orders(world.state) if one.name == m.SWAP] == []
    assert ("of a version before" in old.swap_refusal, new.swap_refusal) == (True, "")
    said = new.memory
    assert (said.swap_device_bytes, said.swap_attached_bytes, said.swap_problem) == (8 * GIB, 0, "why")


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        (None, "its agent is not connected"),
        (NodeMemory(swap_device_bytes=8 * GIB, swap_attached_bytes=GIB), None),
        (NodeMemory(swap_device_bytes=8 * GIB, swap_attached_bytes=GIB - 8192), None),
        (NodeMemory(swap_device_bytes=8 * GIB, swap_attached_bytes=0), "its agent has yet to see to it"),
        (NodeMemory(swap_problem="memory has no room"), "memory has no room"),
    ],
)
def test_swap_as_ordered_and_as_it_is_are_told_with_the_reason(memory: NodeMemory | None, problem: str | None) -> None:
    found = with_orders(memory, lend_bytes=None, swap_bytes=GIB + 4096)

    assert (found.swap_ordered_bytes, found.swap_problem) == (GIB + 4096, problem)


def test_the_api_orders_swap_and_takes_it_back(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client, path = api.as_uid(0), "/v1/nodes/n0/swap"
        away = await client.post(path, json={"size_bytes": 0})
        api.sessions.sensed = lambda: {"n0": SWAPS}  # type: ignore[method-assign]  # as if connected
        refused = await client.post(path, json={"size_bytes": GIB})
        ordered = await client.post(path, json={"size_bytes": 0})
        kept = await client.post(path, json={"size_bytes": None})

        assert (away.status_code, refused.status_code) == (409, 409)
        assert "donors of other nodes lend 0 B" in refused.json()["detail"]
        assert ordered.json()["memory"]["swap_ordered_bytes"] == 0
        assert kept.json()["memory"]["swap_ordered_bytes"] is None

    api_test(test, tmp_path)
