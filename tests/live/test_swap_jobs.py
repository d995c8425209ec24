"""Jobs that may use memory of other nodes: where they go, what they are given there, and what is refused."""

import pytest
from msgspec import structs

from farside.agent import messages as m
from farside.cli.job_file import read_job
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.model.event import NodeChanged
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec, spec_problems
from farside.scheduler.manager.nodes.dispatch import AgentLine, start_of
from tests.live.facts import gpus, joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules, submitted_spec

GIB = 1 << 30
SPEC = JobSpec(argv=("true",), memory_bytes_per_gpu=4 * GIB, swap_bytes_per_gpu=8 * GIB)


def a_world(**swap_gib: int) -> World:
    """Nodes of four GPUs and 64 GiB, with so much Farside swap each, and a donor that lends enough for all."""
    world = World(rules(), nodes=0)
    world.does(
        joined("d", "d", memory_bytes=1 << 40, donor=m.Donor(node="d", control="tcp:d:1", capacity_bytes=1 << 40))
    )
    for name, size in swap_gib.items():
        swap, memory = m.Swap(size_bytes=size * GIB), {"memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB}
        world.does(joined(name, name, cpus=16, gpus=gpus(4, "H200"), swap=swap if size else None, **memory))
    return world


def submit(world: World, gpus: int = 1, *, swap_gib: float = 8) -> str:
    return world.submit(gpus, memory_bytes_per_gpu=4 * GIB, swap_bytes_per_gpu=swap_gib * GIB)


def test_a_job_with_swap_goes_to_a_node_that_has_it_and_others_go_anywhere() -> None:
    world = a_world(n0=0, n1=32)

    with_swap, without = submit(world), submit(world, swap_gib=0)

    assert world.job(with_swap).nodes == ("n1",)
    assert world.phase(without) is Phase.STARTING


def test_no_more_is_promised_than_a_node_has() -> None:
    world = a_world(n0=20)

    first, second, third = submit(world), submit(world), submit(world)
    world.runs(first)
    before = world.phase(third)
    world.exits(first)

    assert (world.phase(second), before) == (Phase.STARTING, Phase.WAITING)
    assert world.phase(third) is Phase.STARTING


def test_a_job_that_waits_for_swap_says_so() -> None:
    world = a_world(n0=8, n1=0)
    submit(world)
    waiting = submit(world)

    lines = world.decider.why(waiting, world.now_s, str)

    assert "needs 1 GPU with 8 GiB of Farside swap each" in lines[0]


def test_a_job_starts_when_a_node_gets_swap_and_keeps_running_when_it_goes() -> None:
    world = a_world(n0=0)
    job = submit(world)
    before = world.phase(job)
    node = world.state.nodes["n0"]

    def swap(size_bytes: int) -> None:
        swap = m.Swap(size_bytes=size_bytes) if size_bytes else None
        world.does(NodeChanged(node="n0", gpus=node.gpus, headroom_bytes=node.headroom_bytes, swap=swap))

    swap(16 * GIB)
    started = world.phase(job)
    world.runs(job)
    swap(0)

    assert (before, started, world.phase(job)) == (Phase.WAITING, Phase.STARTING, Phase.RUNNING)
    assert world.phase(submit(world)) is Phase.WAITING


def test_swap_that_the_nodes_own_programs_use_is_not_given_to_jobs() -> None:
    world = a_world(n0=16)
    node = world.state.nodes["n0"]

    def own(used_gib: int) -> None:
        swap = m.Swap(size_bytes=16 * GIB, own_bytes=used_gib * GIB)
        world.does(NodeChanged(node="n0", gpus=node.gpus, headroom_bytes=node.headroom_bytes, swap=swap))

    own(4)
    first, second = submit(world), submit(world)
    before = [world.phase(job) for job in (first, second)]
    own(12)  # what runs there has its 8 GiB all the same
    then = [world.phase(job) for job in (first, second)]
    own(0)

    assert before == then == [Phase.STARTING, Phase.WAITING]
    assert world.phase(second) is Phase.STARTING
    assert cluster_problems(SPEC, world.state, user="ann") == []


def test_what_a_nodes_own_programs_swap_is_news_when_it_moves_by_a_sixteenth() -> None:
    world = World(rules(), nodes=1)
    node = FakeNode("n0", swap=m.Swap(size_bytes=16 * GIB, own_bytes=4 * GIB))
    line = AgentLine(node.hello(), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)

    def told(own_bytes: int) -> list[int]:
        report = m.Report(
            seq=1, at_s=1.0, headroom_bytes=1 << 36, psi=m.Psi(), gpus=node.declared(), tasks=(),
            swap=m.Swap(size_bytes=16 * GIB, own_bytes=own_bytes),
        )  # fmt: skip
        return [event.swap_own_bytes for event in line.reported(world.state, report) if isinstance(event, NodeChanged)]

    assert world.state.nodes["n0"].swap_own_bytes == 4 * GIB
    assert told(5 * GIB) == []
    assert told(5 * GIB + 1) == [5 * GIB + 1]


def test_each_process_gets_the_swap_of_its_gpus() -> None:
    world = a_world(n0=64)
    job = world.job(submit(world, 2))

    given = start_of(job, job.tasks[0], 1).spec

    assert (given.memory_bytes, given.swap_bytes) == (8 * GIB, 16 * GIB)


def test_a_process_of_a_role_gets_its_own() -> None:
    told = {
        "role": [
            {"name": "worker", "command": ["w"], "count": 2, "memory": "8GiB", "swap": "4GiB"},
            {"name": "ps", "command": ["p"], "gpus": 0},
        ]
    }
    world = a_world(n0=64)
    spec = submitted_spec(read_job((), told, "/", {}).body)
    job = world.job(world.submit(2, **{name: getattr(spec, name) for name in SHAPE}))

    assert spec.swap_bytes_per_gpu == 4 * GIB
    assert [start_of(job, task, 1).spec.swap_bytes for task in job.tasks] == [4 * GIB, 4 * GIB, 0]


SHAPE = ("argv", "roles", "memory_bytes_per_gpu", "swap_bytes_per_gpu")


def test_a_job_file_and_a_flag_say_it_alike() -> None:
    body = read_job(("train",), {"swap": "8GiB", "memory_per_gpu": "4GiB"}, "/", {}).body

    assert submitted_spec(body).swap_bytes_per_gpu == 8 * GIB


@pytest.mark.parametrize(
    ("swap_gib", "said"),
    [
        ({"n0": 0, "n1": 0}, "swap: no node has 8 GiB of Farside swap; none has any"),
        ({"n0": 0, "n1": 4}, "swap: no node has 8 GiB of Farside swap; the largest is 4 GiB"),
        ({"n0": 8}, ""),
    ],
)
def test_a_job_that_no_node_could_give_its_swap_is_refused_in_one_line(swap_gib: dict[str, int], said: str) -> None:
    assert cluster_problems(SPEC, a_world(**swap_gib).state, user="ann") == [said][: bool(said)]


def test_swap_without_a_limit_on_memory_means_nothing_and_is_refused() -> None:
    problems = list(spec_problems(structs.replace(SPEC, memory_bytes_per_gpu=0.0)))

    assert problems == ["swap: a job swaps what goes beyond its memory; say how much that is, by memory_per_gpu"]
    assert list(spec_problems(SPEC)) == []
