"""From what agents tell of messages to where a job goes on its second start, and why."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from farside.agent import messages as m
from farside.cli.cluster_table import job_lines
from farside.scheduler.domain import Rules
from farside.scheduler.manager.decider.adapter import job_of
from farside.scheduler.manager.model.event import DrainRequested, NodeChanged, StopCause, TaskProfiled, UndrainRequested
from farside.scheduler.manager.model.profile import JobProfile, joined
from farside.scheduler.manager.model.record import LiveTask, Phase
from farside.scheduler.manager.model.role import Role
from farside.scheduler.manager.nodes.dispatch import AgentLine, start_of
from farside.scheduler.manager.view.view import show_job_in_full
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from tests.live.world import World

MIB = 1 << 20


def by_skew(order: str = "fifo") -> Rules:
    return Rules(order=make_order(order, {}), placement=make_placement("skew", {}))


def told(
    rank: int = 0, *, start: int = 1, largest: int = 0, sent: int = 0, portion: int = 0, problem: str = ""
) -> TaskProfiled:
    return TaskProfiled(
        node="n0", job_id="1", rank=rank, start=start, iterations=5, iteration_s=0.5, sent_bytes=sent,
        largest_bytes=largest, portion_bytes=portion or sent, problem=problem,
    )  # fmt: skip


def of_task(task: LiveTask, skew: float) -> TaskProfiled:
    one = told(task.rank, start=task.start, sent=100 * MIB, largest=int(100 * MIB * skew))
    return structs.replace(one, node=task.node, job_id=task.job_id)


def profile_of(*parts: tuple[TaskProfiled, bool]) -> JobProfile:
    found: JobProfile | None = None
    for part, is_server in parts:
        found = joined(found, part, is_server=is_server)
    assert found is not None
    return found


# ---- joined


def test_skew_is_the_share_that_a_worker_s_largest_tensor_has_of_what_it_sends() -> None:
    found = profile_of((told(0, sent=100, largest=70), False), (told(1, sent=102, largest=71), False))

    assert (found.model_bytes, found.iteration_s) == (101, 0.5)
    assert found.skew == pytest.approx(0.698, abs=0.001)


def test_servers_send_to_every_worker_and_do_not_disturb() -> None:
    worker = told(0, sent=100, largest=70)
    server = told(1, sent=4 * 100, largest=70, portion=100)

    assert profile_of((worker, False), (server, True)).skew == 0.7


def test_servers_alone_tell_the_model_by_their_portions() -> None:
    big, small = told(1, sent=4 * 80, largest=70, portion=80), told(2, sent=4 * 20, largest=5, portion=20)

    found = profile_of((big, True), (small, True))

    assert (found.model_bytes, found.skew) == (100, 0.7)


def test_a_process_that_can_not_tell_does_not_keep_others_from_it() -> None:
    found = profile_of((told(0, problem="it sent nothing"), False), (told(1, sent=100, largest=50), False))

    assert (found.skew, found.problem) == (0.5, "")


def test_where_nobody_can_tell_it_says_why() -> None:
    found = profile_of((told(1, problem="too"), False), (told(0, problem="it sent nothing"), False))

    assert (found.skew, found.problem) == (0.0, "it sent nothing")


def test_a_later_start_is_believed_unless_it_has_nothing_to_tell() -> None:
    first = profile_of((told(start=1, sent=100, largest=50), False))

    second = told(start=2, sent=100, largest=20)
    assert profile_of((told(start=1, sent=100, largest=50), False), (second, False)).skew == 0.2
    assert joined(first, told(start=2, problem="preempted too soon"), is_server=False) is first
    assert profile_of((second, False), (told(start=1, sent=9, largest=9), False)).skew == 0.2


@given(
    st.lists(
        st.tuples(
            st.builds(
                TaskProfiled, node=st.just("n"), job_id=st.just("1"), rank=st.integers(0, 5), start=st.integers(1, 3),
                iterations=st.integers(0, 9), iteration_s=st.floats(0, 9), sent_bytes=st.integers(0, 99),
                largest_bytes=st.integers(0, 99), portion_bytes=st.integers(0, 99), problem=st.sampled_from(["", "no"]),
            ),
            st.booleans(),
        ),
        min_size=1,
    )
)  # fmt: skip
def test_whatever_nodes_tell_a_skew_is_a_share_or_there_is_a_reason(
    parts: list[tuple[TaskProfiled, bool]],
) -> None:
    found = profile_of(*parts)

    assert 0 < found.skew <= 1 if not found.problem else found.skew == 0
    assert math.isfinite(found.iteration_s)
    assert len({part.told.rank for part in found.parts}) == len(found.parts)


# ---- who is profiled


@pytest.mark.parametrize(
    ("placement", "spec", "expected"),
    [
        ("skew", {}, True),
        ("skew", {"gpus": 1}, False),
        ("skew", {"profile": False}, False),
        ("skew", {"model": "vgg16"}, False),
        ("skew", {"model": "my-own"}, True),
        ("consolidate", {}, False),
        ("consolidate", {"profile": True}, True),
        ("consolidate", {"profile": True, "gpus": 1}, True),
    ],
)
def test_the_first_start_is_profiled_where_places_go_by_skew_or_who_asks(
    placement: str, spec: dict[str, object], expected: bool
) -> None:
    world = World(replace(by_skew(), placement=make_placement(placement, {})))

    job = world.job(world.submit(**{"gpus": 4, **spec}))  # type: ignore[arg-type]

    assert start_of(job, job.tasks[0], 1).spec.profile is expected


# ---- where it goes


def crowded(order: str = "fifo") -> tuple[World, str]:
    """A job of three GPUs runs on a node that drains; elsewhere two GPUs are free on one node and one on another."""
    world = World(by_skew(order), nodes=3, gpus=4)
    job = world.submit(gpus=3, retries=9)
    world.runs(job)
    for gpus in (2, 3):
        world.runs(world.submit(gpus=gpus))
    assert [len(node.free_devices) for node in world.state.nodes.values()] == [1, 2, 1]
    world.does(DrainRequested(node="n0", reason="", by="test"))
    return world, job


def tells(world: World, job_id: str, skew: float) -> None:
    for task in world.job(job_id).tasks:
        world.tell(of_task(task, skew))


def test_a_skewed_job_waits_for_a_node_on_its_second_start() -> None:
    world, job = crowded()
    tells(world, job, 0.7)

    world.exits(job, 1)

    assert world.phase(job) is Phase.WAITING
    expected = (
        "it goes to as few nodes as possible: its largest tensor is 70.0% of its model, over 37.8% (as start 1 showed)"
    )
    assert world.decider.why(job, world.now_s, str)[-1] == expected


def test_one_that_is_not_goes_where_there_is_room() -> None:
    world, job = crowded()
    tells(world, job, 0.05)

    world.exits(job, 1)

    assert (world.phase(job), world.job(job).nodes) == (Phase.STARTING, ("n1", "n2"))
    assert world.decider.why(job, world.now_s, str)[-1].startswith("it goes where it leaves the fewest fragments: ")
    assert not world.job(job).is_profiled, "once is enough"


def test_one_that_nobody_could_tell_anything_of_waits_and_is_profiled_again() -> None:
    world, job = crowded()
    world.tell(structs.replace(of_task(world.job(job).tasks[0], 0.0), problem="it sent nothing"))

    world.exits(job, 1)

    assert world.phase(job) is Phase.WAITING
    assert world.decider.why(job, world.now_s, str)[-1].endswith("is not known: it sent nothing")
    world.does(UndrainRequested(node="n0", by="test"))
    assert (world.phase(job), world.job(job).is_profiled) == (Phase.STARTING, True)


def test_a_profile_that_is_told_late_finds_a_waiting_job_its_place() -> None:
    world, job = crowded()
    task = world.job(job).tasks[0]
    world.exits(job, 1)
    assert world.phase(job) is Phase.WAITING

    world.does(of_task(task, 0.05))

    assert (world.phase(job), world.job(job).nodes) == (Phase.STARTING, ("n1", "n2"))


def test_a_preempted_job_goes_by_its_profile() -> None:
    world = World(by_skew("las"), nodes=2, gpus=2)
    job = world.submit(gpus=2)
    world.runs(job)
    world.pass_s(100_000)  # it has had its share
    others = [world.submit(gpus=2), world.submit(gpus=1)]
    assert world.phase(job) is Phase.STOPPING

    tells(world, job, 0.05)
    world.exits(job, 1, cause=StopCause.PREEMPTED.value)
    for other in others:
        world.runs(other)

    assert world.phase(job) is Phase.WAITING
    row = world.decider._planner.row(job)
    assert world.decider.domain.demands[world.decider.domain.groups[row]].is_consolidated is False


def test_another_brain_knows_the_same() -> None:
    world, job = crowded()
    tells(world, job, 0.05)
    world.settle()
    before = world.job(job).profile

    world.lead()

    assert world.job(job).profile == before
    assert before is not None
    assert job_of(world.job(job)).model_bytes == 100 * MIB


def test_the_name_of_a_model_says_as_much_before_the_first_start() -> None:
    world = World(by_skew(), nodes=2, gpus=4)
    job = world.submit(gpus=4, model="vgg16")

    expected = "its largest tensor is 74.3% of its model, over 37.8% (by its model's name)"
    assert world.decider.why(job, world.now_s, str)[-1].endswith(expected)


# ---- what is told and shown


def test_an_agent_s_profile_is_written_once_and_before_the_end_of_its_process() -> None:
    world = World(by_skew(), nodes=1, gpus=4)
    job = world.submit(gpus=4)
    world.runs(job)
    hello = m.Hello(
        node="n0", boot_id="boot-1", incarnation="i", version="0", cpus=4, memory_bytes=1, gpus=(), headroom_bytes=1,
        tasks=(),
    )  # fmt: skip
    line = AgentLine(hello, "127.0.0.1")
    profile = m.TaskProfile(
        processes=1, iterations=9, iteration_s=0.1, sent_bytes=10, largest_bytes=7, portion_bytes=10
    )
    state = m.TaskState(task_id=f"{job}.0", start=1, state="exited", at_s=1.0, exit_code=1, profile=profile)

    def events_of(told: m.TaskState) -> list[str]:
        report = m.Report(seq=1, at_s=1.0, headroom_bytes=1 << 36, psi=m.Psi(), gpus=(), tasks=(told,))
        events = line.reported(world.state, report)
        for event in events:
            world.tell(event)
        world.read()
        return [type(event).__name__ for event in events if not isinstance(event, NodeChanged)]

    running = replace_state(state, "running")
    assert events_of(running) == ["TaskProfiled"]
    assert events_of(running) == []
    assert events_of(replace_state(state, "exited", sent_bytes=20)) == ["TaskProfiled", "TaskChanged"]
    shown = msgspec.to_builtins(show_job_in_full(world.job(job), world.now_s).profile)
    assert shown == {
        "start": 1, "processes": 1, "iterations": 9, "iteration_s": 0.1, "model_bytes": 20, "skew": 0.35, "problem": "",
    }  # fmt: skip


def replace_state(told: m.TaskState, state: m.State, **profile: int) -> m.TaskState:
    assert told.profile is not None
    return msgspec.structs.replace(told, state=state, profile=msgspec.structs.replace(told.profile, **profile))


def test_people_read_it_in_one_line() -> None:
    world = World(by_skew(), nodes=1, gpus=4)
    job = world.submit(gpus=4)
    lines = []
    for event in (structs.replace(told(0), problem="it sent nothing"), told(0, sent=100 * MIB, largest=70 * MIB)):
        world.does(event)
        lines += [
            line
            for line in job_lines(msgspec.to_builtins(show_job_in_full(world.job(job), 0.0)), ())
            if "profile" in line
        ]

    assert lines == [
        "  profile   start 1: it sent nothing",
        "  profile   model 100 MiB, largest tensor 70.0% of it, 500 ms an iteration; from 5 iterations of start 1",
    ]


def test_a_job_s_roles_tell_its_servers_from_its_workers() -> None:
    world = World(by_skew(), nodes=1, gpus=4)
    roles = (Role(name="worker", argv=("w",), count=2), Role(name="ps", argv=("p",), gpus=0))
    job = world.submit(gpus=2, roles=roles, argv=("w",))
    world.does(told(2, sent=4 * 100, largest=90, portion=100))
    servers_alone = world.job(job).profile
    world.does(told(0, sent=200, largest=90))

    both = world.job(job).profile
    assert servers_alone is not None
    assert both is not None
    assert (servers_alone.skew, both.skew) == (0.9, 0.45)
