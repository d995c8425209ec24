"""What `farside show` says of a job's fence and of its memory's limit, by node. [M3] [M4]"""

import msgspec
import pytest

from farside.cli.cluster_table import job_lines
from farside.scheduler.manager.model.event import NodeLost
from farside.scheduler.manager.view.safeguard import MemoryLimit, Safeguard, safeguards_of
from farside.scheduler.manager.view.view import show_job_in_full
from tests.live.facts import gpus, joined
from tests.live.world import World, rules

GIB = 1 << 30


def world_of(**nodes: dict[str, object]) -> World:
    """Nodes of one GPU each, with these facts."""
    world = World(rules(), nodes=0)
    for name, facts in nodes.items():
        facts = {"cpus": 16, "memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB, **facts}
        world.does(joined(name, name, boot_id="boot-1", gpus=gpus(1, "H200"), **facts))
    return world


def lines(world: World, job: str) -> list[str]:
    guards = safeguards_of(world.job(job), world.state)
    shown = msgspec.to_builtins(show_job_in_full(world.job(job), world.now_s, safeguards=guards))
    return [line for line in job_lines(shown, ()) if line.startswith(("  fence", "  memory"))]


def test_a_job_on_fenced_and_open_nodes_says_of_each_whether_a_fence_ends_it() -> None:
    world = world_of(n1={"fence_s": 20.0}, n2={"fence_s": 20.0}, n3={})
    job = world.submit(3)

    assert lines(world, job) == [
        "  fence     20 s on n1, n2: processes end so long after their node is cut off, before another start begins",
        "  fence     off on n3: while the node is cut off its processes run on, also beside another start",
    ]


def test_a_start_that_may_still_run_on_a_node_that_was_lost_is_told_with_what_ends_it() -> None:
    world = world_of(n1={})
    job = world.submit(1)
    world.runs(job)
    world.does(NodeLost(node="n1", reason="silent"))
    waiting = lines(world, job)
    facts = {"cpus": 16, "memory_bytes": 64 * GIB, "headroom_bytes": 64 * GIB, "fence_s": 9.0}
    world.does(joined("n2", "n2", boot_id="boot-1", gpus=gpus(1, "H200"), **facts))

    assert waiting[1] == "  fence     start 1 may still run on n1, until n1 is back"
    assert safeguards_of(world.job(job), world.state) == (
        Safeguard(node="n1", starts=(1,), fence_s=0.0, memory=MemoryLimit.UNKNOWN),
        Safeguard(node="n2", starts=(2,), fence_s=9.0, memory=MemoryLimit.UNKNOWN),
    )
    assert "  fence     start 1 may still run on n1, until n1 is back" in lines(world, job)


def test_a_job_that_has_no_process_has_no_safeguards_and_says_where_its_fence_will_come_from() -> None:
    world = world_of(n1={"fence_s": 20.0})
    first, second = world.submit(1), world.submit(1)
    said = lines(world, second)
    world.exits(first)
    world.exits(second)

    assert said == ["  fence     as its nodes have it where it starts: fence_s of `farside nodes --json`; 0: off"]
    assert safeguards_of(world.job(second), world.state) == ()
    assert lines(world, second) == []


@pytest.mark.parametrize(
    ("told", "asked", "limit", "words"),
    [
        ("warn", 0.0, MemoryLimit.WARN, "no limit on n1: above its GPUs' share the agent only warns"),
        ("warn", 4.0 * GIB, MemoryLimit.JOB, "limited on n1 to what it asked for"),
        ("limit", 0.0, MemoryLimit.SHARE, "limited on n1 to its GPUs' share"),
        ("off", 0.0, MemoryLimit.NONE, "no limit on n1"),
        ("none", 4.0 * GIB, MemoryLimit.NONE, "no limit on n1"),
        ("", 0.0, MemoryLimit.UNKNOWN, ""),
    ],
)
def test_what_limits_a_jobs_memory_is_what_its_node_does_and_what_it_asked_for(
    told: str, asked: float, limit: MemoryLimit, words: str
) -> None:
    world = world_of(n1={"task_memory": told})
    job = world.submit(1, memory_bytes_per_gpu=asked)

    (guard,) = safeguards_of(world.job(job), world.state)
    said = [line for line in lines(world, job) if line.startswith("  memory")]

    assert guard.memory is limit
    assert [line.removeprefix("  memory    ")[: len(words)] for line in said] == ([words] if words else [])
