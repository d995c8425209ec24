"""Who holds what of which GPU in the log: parts of GPUs, GPUs that are cut or joined under a job, jobs without any."""

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from farside.agent.gpu_share import Device
from farside.agent.messages import ChangingFacts, fields_of
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import (
    JobAllocated,
    JobStarted,
    NodeAllocation,
    NodeChanged,
    TaskAllocation,
    TaskPhase,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.nodes.dispatch import start_of
from farside.scheduler.manager.view.view import show_node
from tests.live.world import World, rules


def cut(world: World, node: str, *parts: str) -> None:
    """Its first GPU is cut into these parts."""
    told = world.state.nodes[node]
    first = structs.replace(told.gpus[0], parts=parts)
    facts: dict[str, Any] = fields_of(ChangingFacts, told) | {"gpus": (first, *told.gpus[1:])}
    world.does(NodeChanged(node=node, **facts))


def test_parts_of_a_gpu_are_given_to_jobs_of_their_own_and_a_device_never_to_two() -> None:
    world = World(rules(), nodes=1, gpus=2)
    cut(world, "n0", "MIG-a", "MIG-b")

    jobs = [world.submit(1) for _ in range(4)]

    tasks = [world.job(job).tasks for job in jobs]
    assert [[(task.gpus, task.parts) for task in there] for there in tasks] == [
        [((0,), ("MIG-a",))], [((0,), ("MIG-b",))], [((1,), ())], [],
    ]  # fmt: skip
    node = world.state.nodes["n0"]
    assert node.device_count == len(node.devices) == 3
    assert [(share.device, share.holder) for share in node.shares] == [
        ((0, "MIG-a"), ("1", 1)), ((0, "MIG-b"), ("2", 1)), ((1, ""), ("3", 1)),
    ]  # fmt: skip
    world.exits(jobs[0])
    assert [(task.gpus, task.parts) for task in world.job(jobs[3]).tasks] == [((0,), ("MIG-a",))]
    assert start_of(world.job(jobs[3]), world.job(jobs[3]).tasks[0], 1).spec.devices == (Device(0, "MIG-a"),)
    shown = show_node(world.state.nodes["n0"]).gpus[0]
    held = [("MIG-b", "2"), ("MIG-a", "4")]
    assert (shown.parts, [(one.part, one.job) for one in shown.shares]) == (("MIG-a", "MIG-b"), held)
    assert list(violations(world.log)) == []


def test_a_gpu_that_is_cut_while_a_job_has_all_of_it_is_free_when_that_job_has_left() -> None:
    world = World(rules(), nodes=1, gpus=1)
    first = world.submit(1)
    cut(world, "n0", "a", "b")
    second = world.submit(1)
    before = world.phase(second)

    world.exits(first)

    assert (before, world.phase(second)) == (Phase.ALLOCATED, Phase.STARTING)
    assert list(violations(world.log)) == []


@pytest.mark.parametrize("parts", [(), ("MIG-a",), ("MIG-b",)])
def test_a_part_that_is_given_beside_what_overlaps_it_is_found(parts: tuple[str, ...]) -> None:
    world = World(rules(), nodes=1, gpus=2)
    cut(world, "n0", "MIG-a", "MIG-b")
    world.submit(1)
    world.submit(1)
    log = list(world.log)
    at = max(at for at, entry in enumerate(log) if isinstance(entry.event, JobStarted))
    start = log[at].event
    assert isinstance(start, JobStarted)

    tasks = (structs.replace(start.tasks[0], gpus=(0,), parts=parts),)
    log[at] = replace(log[at], event=replace(start, tasks=tasks))

    found = [line for line in violations(log) if "is given to job 2, and job 1 holds it" in line]
    assert len(found) == (parts != ("MIG-b",))


def test_a_job_without_a_gpu_has_a_place_a_process_and_nothing_that_it_holds() -> None:
    world = World(rules(), nodes=1, gpus=1)
    holder = world.submit(1)
    job = world.submit(1)  # its spec says a GPU, as no other is taken yet; its place has none
    for event in (
        JobAllocated(job_id=job, places=(NodeAllocation(node="n0", gpus=0),), reason="beside"),
        JobStarted(
            job_id=job,
            start=1,
            tasks=(TaskAllocation(rank=0, node="n0", gpus=()),),
            master_addr="h",
            master_port=20_000,
        ),
    ):
        world.tell(event)
    world.read()

    node = world.state.nodes["n0"]
    assert [share.holder for share in node.shares] == [(holder, 1)]
    assert node.tasks == ((holder, 1, 0), (job, 1, 0))
    assert node.free_devices == ()
    assert start_of(world.job(job), world.job(job).tasks[0], 1).spec.gpus == ()
    again = decode_state(encode_state(world.state)).nodes["n0"]
    assert (again.shares, again.tasks) == (node.shares, node.tasks)
    assert list(violations(world.log)) == []
    world.task(world.job(job).tasks[0], TaskPhase.EXITED, exit_code=0)
    assert world.state.nodes["n0"].tasks == ((holder, 1, 0),)
