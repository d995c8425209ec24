"""What an agent is told, from the log and from what it says it knows."""

import msgspec

from farside.agent import messages as m
from farside.scheduler.manager.model.event import (
    CancelRequested,
    NodeChanged,
    NodeJoined,
    NodeLost,
    TaskChanged,
    TaskPhase,
)
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import Ranks
from farside.scheduler.manager.nodes.dispatch import AgentLine
from farside.scheduler.manager.view.view import show_node
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules


def world_with_a_job(**more: object) -> World:
    world = World(rules(), nodes=1)
    world.submit(2, **more)  # type: ignore[arg-type]
    return world


def line_of(world: World, *tasks: m.TaskState) -> AgentLine:
    """A new connection of n0, which knows these tasks; what HELLO means is in the log."""
    node = FakeNode("n0", tasks={(task.task_id, task.start): task for task in tasks})
    line = AgentLine(node.hello(), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)
    return line


def told(state: m.State, start: int = 1, **more: object) -> m.TaskState:
    return m.TaskState(task_id="1.0", start=start, state=state, at_s=1.0, **more)  # type: ignore[arg-type]


def report(*tasks: m.TaskState, headroom_bytes: int = 1 << 36) -> m.Report:
    gpus = FakeNode("n0").declared()
    return m.Report(seq=1, at_s=1.0, headroom_bytes=headroom_bytes, psi=m.Psi(), gpus=gpus, tasks=tasks)


def test_a_start_is_sent_once_a_connection_and_again_on_the_next_as_long_as_nobody_answered() -> None:
    world = world_with_a_job()
    line = line_of(world)

    first, second = line.commands(world.state), line.commands(world.state)
    again = line_of(world).commands(world.state)

    assert isinstance(first[0], m.Start)
    assert (first[0].task_id, first[0].start, first[0].spec.gpus) == ("1.0", 1, (0, 1))
    assert second == []
    assert again == first


def test_a_task_that_the_agent_knows_is_not_started_again() -> None:
    world = world_with_a_job()

    assert line_of(world, told("running")).commands(world.state) == []


def test_a_start_names_ranks_where_they_meet_and_whether_it_resumes() -> None:
    world = world_with_a_job(ranks=Ranks.GPU, checkpoint_dir="/shared")

    starts = [command for command in line_of(world).commands(world.state) if isinstance(command, m.Start)]

    assert [(start.spec.rank, start.spec.world_size, start.spec.gpus) for start in starts] == [
        (0, 2, (0,)),
        (1, 2, (1,)),
    ]
    assert {start.spec.master_port for start in starts} == {world.job("1").master_port}
    assert {(start.spec.resume, start.spec.checkpoint_dir) for start in starts} == {(False, "/shared")}


def test_a_cancelled_job_is_stopped_and_its_end_forgotten_once_the_log_has_it() -> None:
    world = world_with_a_job()
    line = line_of(world, told("running"))
    world.does(CancelRequested(job_id="1", by="ann"))

    stop = line.commands(world.state)
    for event in line.reported(world.state, report(told("exited", signal=15, cause="cancelled"))):
        world.does(event)
    forget = line.commands(world.state)

    assert [(type(one).__name__, one.cause) for one in stop if isinstance(one, m.Stop)] == [("Stop", "cancelled")]
    assert forget == [m.Forget(task_id="1.0", start=1)]
    assert line.commands(world.state) == []


def test_a_node_whose_prolog_or_epilog_failed_drains_itself_with_the_reason() -> None:
    world = world_with_a_job()
    ended = told("exited", exit_code=0, unfit="epilog: GPU 0 still in use")

    events = line_of(world).reported(world.state, report(ended))

    assert [type(event).__name__ for event in events] == ["DrainRequested", "TaskChanged"]
    for event in events:
        world.does(event)
    assert (world.state.nodes["n0"].why_not, world.phase("1")) == ("epilog: GPU 0 still in use", Phase.DONE)


def test_a_report_that_comes_twice_is_written_once() -> None:
    world = world_with_a_job()
    line = line_of(world)
    events = line.reported(world.state, report(told("running")))
    for event in events:
        world.does(event)

    assert [type(event) for event in events] == [TaskChanged]
    assert line.reported(world.state, report(told("running"))) == []


def test_a_task_that_ran_and_that_its_agent_does_not_know_any_more_is_lost() -> None:
    world = world_with_a_job()
    line_of(world, told("running"))

    line_of(world)

    lost = [entry.event for entry in world.log if isinstance(entry.event, TaskChanged)][-1]
    assert (lost.phase, lost.cause) == (TaskPhase.LOST, "its node does not know it any more")
    assert world.job("1").start == 2


def test_an_old_start_that_still_runs_on_a_node_that_is_back_is_stopped() -> None:
    world = World(rules(), nodes=2)
    world.submit(4)
    line_of(world, told("running"))
    world.does(NodeLost(node="n0", reason="silent"))

    commands = line_of(world, told("running")).commands(world.state)

    assert [(one.start, one.cause) for one in commands if isinstance(one, m.Stop)] == [(1, "an old start")]


def test_what_no_log_knows_is_stopped_and_then_forgotten() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world, told("running", start=9))

    stop = line.commands(world.state)
    line.reported(world.state, report(told("exited", start=9, signal=15)))

    assert [type(one).__name__ for one in stop] == ["Stop"]
    assert line.commands(world.state) == [m.Forget(task_id="1.0", start=9)]


def test_headroom_is_news_only_when_it_moves_by_an_eighth_of_the_memory() -> None:
    world = World(rules(), nodes=1)
    line = line_of(world)

    little = line.reported(world.state, report(headroom_bytes=(1 << 36) - (1 << 30)))
    much = line.reported(world.state, report(headroom_bytes=1 << 35))

    assert (little, [type(event) for event in much]) == ([], [NodeChanged])


def test_a_reconnection_of_a_node_that_is_as_it_was_is_no_news() -> None:
    world = World(rules(), nodes=1)
    line_of(world)
    before = len(world.log)

    line_of(world)

    assert len([entry for entry in world.log[before:] if isinstance(entry.event, NodeJoined)]) == 0


def test_how_another_job_s_process_of_the_same_number_ended_is_not_how_this_one_did() -> None:
    # The agent has it of a log that was lost; that of the job that has its number now was submitted later.
    world = World(rules(), nodes=1)
    other = told("exited", exit_code=0, submitted_s=1.0)
    line = AgentLine(FakeNode("n0", tasks={("1.0", 1): other}).hello(), "127.0.0.1")
    for event in line.joined(world.state):
        world.does(event)
    job = world.submit(2)

    commands = line.commands(world.state)
    assert [type(one).__name__ for one in commands] == ["Start", "Forget"]
    assert isinstance(commands[0], m.Start)
    assert commands[0].submitted_s == world.job(job).submit_s
    assert line.reported(world.state, report(other)) == []

    again = AgentLine(FakeNode("n0", tasks={("1.0", 1): other}).hello(), "127.0.0.1")
    assert not [event for event in again.joined(world.state) if isinstance(event, TaskChanged)]
    lost = told("lost", cause="another job has this number on this node", submitted_s=world.job(job).submit_s)
    for event in again.reported(world.state, report(lost)):
        world.does(event)

    assert world.phase(job) is Phase.STARTING
    assert world.job(job).start == 2


def test_a_process_of_another_job_with_the_same_number_is_stopped_and_ours_is_started() -> None:
    world = world_with_a_job()

    commands = line_of(world, told("running", submitted_s=1.0)).commands(world.state)

    assert [type(one).__name__ for one in commands] == ["Start", "Stop"]
    assert world.phase("1") is Phase.STARTING


def with_a_broken_gpu() -> m.Report:
    good, bad, *rest = FakeNode("n0").declared()
    broken = msgspec.structs.replace(bad, healthy=False, reason="XID 79")
    return msgspec.structs.replace(report(told("running")), gpus=(good, broken, *rest))


def test_a_node_with_a_broken_gpu_says_which_and_why_keeps_its_jobs_and_starts_none() -> None:
    world = world_with_a_job()
    line = line_of(world, told("running"))

    for event in line.reported(world.state, with_a_broken_gpu()):
        world.does(event)
    other = world.submit(1)
    shown = show_node(world.state.nodes["n0"])

    assert (shown.state, shown.reason) == ("draining", "GPU 1: XID 79")
    assert [(gpu.healthy, gpu.reason) for gpu in shown.gpus[:2]] == [(True, ""), (False, "XID 79")]
    assert (world.phase("1"), world.phase(other)) == (Phase.RUNNING, Phase.WAITING)
    assert line.reported(world.state, with_a_broken_gpu()) == []


def test_a_broken_gpu_that_gets_another_reason_is_news() -> None:
    world = world_with_a_job()
    line = line_of(world, told("running"))
    for event in line.reported(world.state, with_a_broken_gpu()):
        world.does(event)
    before = with_a_broken_gpu()
    gpus = tuple(msgspec.structs.replace(gpu, reason="" if gpu.healthy else "XID 48") for gpu in before.gpus)

    (changed,) = line.reported(world.state, msgspec.structs.replace(before, gpus=gpus))

    assert isinstance(changed, NodeChanged)
    assert changed.gpus[1].reason == "XID 48"


def test_a_node_that_is_unfit_drains_itself_once_with_the_reason_and_keeps_its_jobs() -> None:
    world = world_with_a_job()
    line = line_of(world, told("running"))
    unfit = msgspec.structs.replace(report(told("running")), unfit="port mlx5_0/1: DOWN")

    for event in line.reported(world.state, unfit):
        world.does(event)

    node = world.state.nodes["n0"]
    assert (node.state, node.why_not, world.phase("1")) == ("draining", "port mlx5_0/1: DOWN", Phase.RUNNING)
    assert line.reported(world.state, unfit) == []
