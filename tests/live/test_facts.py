"""A node's facts: flat in HELLO, read as version 2 logged them, and shown without being named."""

import zlib
from typing import Annotated, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.protocol import decode_from_agent, encode
from farside.scheduler.manager.model.codec import decode_event, encode_event
from farside.scheduler.manager.model.event import NodeChanged, NodeJoined
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.view.view import Topology, show_node
from tests.live.facts import facts, joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

sizes = st.integers(0, 2**63 - 1)
texts = st.text(max_size=12)
gpus = st.lists(
    st.builds(
        m.Gpu, index=st.integers(0, 63), model=texts, healthy=st.booleans(), reason=texts,
        busy_pct=st.none() | st.floats(0, 100), power_w=st.none() | st.floats(0, 1e5),
    ),
    max_size=8, unique_by=lambda gpu: gpu.index,
).map(tuple)  # fmt: skip
donors = st.none() | st.builds(m.Donor, node=texts, control=texts, has_rdma=st.booleans(), free_bytes=sizes)
swaps = st.none() | st.builds(m.Swap, size_bytes=sizes, used_bytes=sizes, own_bytes=sizes)
hellos = st.builds(
    m.Hello, node=st.just("n1"), boot_id=st.just("b"), incarnation=st.just("i"), version=texts,
    cpus=st.integers(1, 65536), memory_bytes=sizes, gpus=gpus, headroom_bytes=sizes, tasks=st.just(()),
    can=st.lists(texts, max_size=3).map(tuple), donor=donors, swap=swaps, agent=texts,
    users=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
)  # fmt: skip


class GpuOf384bdad(msgspec.Struct, frozen=True, kw_only=True):
    """As that version reads and writes it."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=64)]
    model: str
    healthy: bool
    reason: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    busy_pct: float | None = None
    power_w: float | None = None


class DonorOf384bdad(msgspec.Struct, frozen=True, kw_only=True):
    """As that version reads and writes it."""

    node: str
    control: str
    has_rdma: bool = False
    lends: bool = True
    free_bytes: int = 0
    lent_bytes: int = 0


class SwapOf384bdad(msgspec.Struct, frozen=True, kw_only=True):
    """As that version reads and writes it."""

    size_bytes: int
    used_bytes: int = 0
    own_bytes: int = 0


class HelloOf384bdad(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """As that version reads and writes it."""

    node: str
    boot_id: str
    incarnation: str
    version: str
    cpus: int
    memory_bytes: int
    gpus: tuple[GpuOf384bdad, ...]
    headroom_bytes: int
    tasks: tuple[m.TaskState, ...]
    can: tuple[str, ...] = ()
    donor: DonorOf384bdad | None = None
    swap: SwapOf384bdad | None = None
    agent: str = ""
    users: tuple[str, ...] = ()


@given(hellos)
def test_a_hello_of_now_says_the_same_to_a_manager_of_before(hello: m.Hello) -> None:
    read = msgspec.json.decode(encode(hello), type=HelloOf384bdad)

    assert msgspec.json.decode(msgspec.json.encode(read)) == plain(hello)


@given(hellos)
def test_a_hello_of_an_agent_of_before_says_the_same_now(hello: m.Hello) -> None:
    old = msgspec.convert(plain(hello), HelloOf384bdad)
    frame = msgspec.json.encode({"v": 1, **msgspec.to_builtins(old)})

    assert decode_from_agent(frame) == hello


def plain(hello: m.Hello) -> dict[str, Any]:
    """All that the version before knows, also what is left out on the wire as its default says the same."""
    gpus = [m.fields_of(GpuOf384bdad, gpu) for gpu in hello.gpus]
    parts: dict[str, Any] = {"gpus": gpus, "tasks": []}
    kinds: dict[str, type[msgspec.Struct]] = {"donor": DonorOf384bdad, "swap": SwapOf384bdad}
    for name, before in kinds.items():
        one = getattr(hello, name)
        parts[name] = None if one is None else m.fields_of(before, one)
    known = {name: getattr(hello, name) for name in HelloOf384bdad.__struct_fields__}
    every = {"type": "hello", **msgspec.to_builtins(known), **parts}
    return dict(msgspec.json.decode(msgspec.json.encode(every)))


# ---------------------------------------------------------------------------------------------- the log


def as_version_2(record: m.ChangingFacts) -> dict[str, Any]:
    """As version 2 of the log wrote it."""
    old: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(record))
    swap = old.pop("swap") or {}
    old |= {"swap_bytes": swap.get("size_bytes", 0), "swap_own_bytes": swap.get("own_bytes", 0)}
    old["gpus"] = [
        {"index": gpu.index, "model": gpu.model, "is_healthy": gpu.healthy, "reason": gpu.reason} for gpu in record.gpus
    ]
    return old | ({"cpus": float(record.cpus)} if isinstance(record, m.NodeFacts) else {})


@given(hellos)
def test_what_version_2_logged_of_a_node_gives_the_same_record(hello: m.Hello) -> None:
    state = LiveState()
    (first,) = (event for event in AgentLine(hello, "10.0.0.3").joined(state) if isinstance(event, NodeJoined))
    events: tuple[NodeJoined | NodeChanged, ...]
    events = first, NodeChanged(node="n1", **m.fields_of(m.ChangingFacts, first))

    for event in events:
        kind, body = encode_event(event)
        then = msgspec.json.encode(as_version_2(event))
        if event.swap is None or event.swap.size_bytes:  # version 2 did not tell a swap of nothing from none
            assert decode_event(kind, then, 2) == event == decode_event(kind, body)


def test_an_image_of_version_2_gives_the_same_state() -> None:
    world = World(rules())
    world.does(joined("n7", swap=m.Swap(size_bytes=9, own_bytes=3), users=("ann",)))
    world.submit(2)
    now = encode_state(world.state)

    image = msgspec.msgpack.decode(zlib.decompress(now))
    for name, node in world.state.nodes.items():
        tasks = [task for job in world.state.jobs.values() for task in job.tasks if task.node == name]
        holds = {gpu: task.key for task in tasks for gpu in task.gpus}
        others = [key for key in node.tasks if key not in holds.values()]
        image["nodes"][name] |= {**as_version_2(node), "holds": holds, "others": others}
        for new in ("swap", "shares", "tasks"):
            del image["nodes"][name][new]
    then = decode_state(zlib.compress(msgspec.msgpack.encode(image)), 2)

    assert encode_state(then) == now


# ---------------------------------------------------------------------------------------------- one declaration


def test_every_fact_is_said_logged_kept_and_shown_without_being_named() -> None:
    every = set(m.NodeFacts.__struct_fields__)

    assert every <= set(m.Hello.__struct_fields__) & set(NodeJoined.__struct_fields__) & set(LiveNode.__struct_fields__)
    assert {*m.ChangingFacts.__struct_fields__} <= {*m.Report.__struct_fields__} & {*NodeChanged.__struct_fields__}
    shown = show_node(LiveNode(name="n", address="h", **facts()))
    in_topology = {*Topology.__struct_fields__}
    assert every - {"boot_id", "agent", "swap"} - in_topology <= {*shown.__struct_fields__}


def test_a_reading_that_moves_is_no_news_and_a_fact_is() -> None:
    world, node = World(rules(), nodes=0), FakeNode("n0", power_w=100.0)
    line = AgentLine(node.hello(), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)

    def news(**more: Any) -> list[str]:
        told: dict[str, Any] = {"headroom_bytes": 1 << 36, "gpus": node.declared(), **more}
        report = m.Report(seq=1, at_s=1.0, psi=m.Psi(), tasks=(), **told)
        return [type(event).__name__ for event in line.reported(world.state, report)]

    hot = tuple(msgspec.structs.replace(gpu, power_w=700.0, busy_pct=99.0) for gpu in node.declared())
    ill = (msgspec.structs.replace(hot[0], healthy=False, reason="XID 79"), *hot[1:])
    assert all(gpu.power_w is None for gpu in world.state.nodes["n0"].gpus)
    assert (news(gpus=hot), news(gpus=ill)) == ([], ["NodeChanged"])
    assert news(swap=m.Swap(size_bytes=1)) == ["NodeChanged"]
