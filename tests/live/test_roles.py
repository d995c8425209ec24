"""Jobs whose processes are not alike: where they stand, what they are told, and how such a job ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from farside.agent.gpu_share import Device
from farside.agent.messages import Hello
from farside.cli.job_file import read_job
from farside.scheduler.manager.decider import launch
from farside.scheduler.manager.model.event import JobStarted, ReleaseRequested, TaskAllocation, TaskPhase
from farside.scheduler.manager.model.record import LiveJob, LiveTask, Phase
from farside.scheduler.manager.model.role import Role, per_gpu, role_problems
from farside.scheduler.manager.model.spec import JobSpec, spec_problems
from farside.scheduler.manager.nodes import dispatch
from farside.scheduler.manager.nodes.dispatch import AgentLine, meeting_of, start_of
from tests.live.world import World, rules, submitted_spec

PS = Role(name="ps", argv=("server",), count=2, gpus=0, cpus=2.0, is_service=True)
WORKER = Role(name="worker", argv=("work",), count=6, cpus=1.0)


def submitted(world: World, *roles: Role) -> str:
    gpus = sum(role.count * role.gpus for role in roles)
    return world.submit(gpus, roles=roles, argv=roles[0].argv)


def of_role(world: World, job: str, role: str) -> list[LiveTask]:
    return [task for task in world.job(job).tasks if task.role == role]


def ends(world: World, job: str, role: str, code: int = 0, cause: str = "") -> None:
    for task in of_role(world, job, role):
        if not task.is_gone:
            world.task(task, TaskPhase.EXITED, exit_code=code, cause=cause)


def test_all_processes_of_all_roles_start_at_once_and_those_without_gpus_stand_beside_the_others() -> None:
    world = World(rules())

    job = submitted(world, PS, WORKER)

    places = [(task.role, task.role_rank, task.node, len(task.gpus)) for task in world.job(job).tasks]
    assert places == [
        ("ps", 0, "n0", 0), ("ps", 1, "n1", 0),
        *[("worker", at, "n0", 1) for at in range(4)], ("worker", 4, "n1", 1), ("worker", 5, "n1", 1),
    ]  # fmt: skip


def test_a_gang_with_roles_starts_with_all_its_gpus_or_not_at_all() -> None:
    world = World(rules())
    small = world.submit(4)

    job = submitted(world, PS, WORKER)

    assert world.phase(job) is Phase.WAITING
    world.exits(small)
    assert world.phase(job) is Phase.STARTING


def test_each_process_is_told_its_role_its_rank_in_it_and_where_all_others_are() -> None:
    world = World(rules())
    job = world.job(submitted(world, PS, WORKER))

    spec = start_of(job, of_role(world, job.job_id, "worker")[5], 1).spec
    server = start_of(job, of_role(world, job.job_id, "ps")[1], 1).spec

    assert (spec.argv, spec.rank, spec.world_size, spec.cpus) == (("work",), 5, 6, 1.0)
    assert (server.argv, server.rank, server.world_size, server.cpus) == (("server",), 1, 2, 2.0)
    assert spec.env["FARSIDE_ROLE"] == "worker"
    hosts = spec.env["FARSIDE_HOSTS_PS"].split(",")
    assert len(hosts) == 2
    assert len(set(hosts) | set(spec.env["FARSIDE_HOSTS_WORKER"].split(","))) == 8
    assert f"{server.master_addr}:{server.master_port}" == hosts[0]
    assert f"{spec.master_addr}:{spec.master_port}" == spec.env["FARSIDE_HOSTS_WORKER"].split(",")[0]


def test_no_two_processes_of_running_jobs_share_a_port_of_a_node() -> None:
    world = World(rules())
    for _ in range(2):
        submitted(world, replace(PS, count=5), replace(WORKER, count=4))

    starts = [entry.event for entry in world.log if isinstance(entry.event, JobStarted)]
    ports = [(task.address, task.port) for start in starts for task in start.tasks]
    assert len(ports) == len(set(ports)) == 18


def test_services_are_told_to_end_when_the_others_have_ended_well_and_the_job_is_done() -> None:
    world = World(rules())
    job = submitted(world, PS, WORKER)
    world.runs(job)

    ends(world, job, "worker")
    during = world.phase(job)
    ends(world, job, "ps", 143, cause="work_done")

    assert (during, world.phase(job), world.job(job).exit_code) == (Phase.STOPPING, Phase.DONE, 0)


def test_a_service_that_ends_before_the_others_fails_the_job_even_if_it_ends_well() -> None:
    world = World(rules())
    job = submitted(world, PS, WORKER)
    world.runs(job)

    world.task(of_role(world, job, "ps")[0], TaskPhase.EXITED, exit_code=0)
    ends(world, job, "ps", 143, cause="task_failed")
    ends(world, job, "worker", 143, cause="task_failed")

    assert world.phase(job) is Phase.FAILED
    assert "(ps 0) on n0, a service, ended while the others needed it" in world.job(job).reason


def test_a_worker_that_fails_ends_the_whole_job() -> None:
    world = World(rules())
    job = submitted(world, PS, WORKER)
    world.runs(job)

    world.task(of_role(world, job, "worker")[1], TaskPhase.EXITED, exit_code=3)
    ends(world, job, "worker", 143, cause="task_failed")
    ends(world, job, "ps", 143, cause="task_failed")

    assert (world.phase(job), world.job(job).exit_code) == (Phase.FAILED, 3)


def test_a_node_is_busy_until_the_last_process_without_a_gpu_has_gone() -> None:
    world = World(rules(), nodes=1)
    job = submitted(world, replace(PS, count=1), replace(WORKER, count=1))
    world.runs(job)

    ends(world, job, "worker")
    busy = world.state.nodes["n0"].state
    ends(world, job, "ps", 143, cause="work_done")

    assert (busy, world.state.nodes["n0"].state) == ("busy", "idle")


def test_what_a_gpu_brings_along_is_enough_for_whoever_stands_beside_it() -> None:
    assert per_gpu((PS, WORKER), "cpus") == 3.0  # one of two servers for six GPUs at most
    assert per_gpu((replace(PS, count=7), WORKER), "cpus") == 5.0


def test_a_job_file_names_roles_in_the_units_that_people_write(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[[role]]\nname = "worker"\ncommand = ["work"]\ncount = 4\nmemory = "8GiB"\n'
        '[[role]]\nname = "ps"\ncommand = ["serve"]\ngpus = 0\nservice = true\n'
    )

    spec = submitted_spec(read_job([str(file)], {}, "/", {}).body)

    assert list(spec_problems(spec)) == []
    assert (spec.gpus, spec.argv, spec.memory_bytes_per_gpu) == (4, ("work",), 8 << 30)
    assert spec.roles == (
        Role(name="worker", argv=("work",), count=4, memory_bytes=8 << 30),
        Role(name="ps", argv=("serve",), gpus=0, is_service=True),
    )


@pytest.mark.parametrize(
    ("roles", "more", "says"),
    [
        ((PS,), {"gpus": 0}, "none has GPUs"),
        ((PS, replace(WORKER, is_service=True)), {}, "would never end"),
        ((WORKER, WORKER), {"gpus": 12}, "there are two of that name"),
        ((replace(WORKER, gpus=2),), {"gpus": 12}, "gpus: must be 0 to 1, is 2; raise count instead"),
        ((replace(WORKER, count=0),), {}, "count: must be 1 to"),
        ((replace(WORKER, name="Worker 1"),), {}, "name: must be small letters, digits and _, at most 32, is Worker 1"),
        ((replace(WORKER, argv=()),), {}, "argv: is empty"),
        ((WORKER,), {"gpus": 8}, "gpus: the roles ask for 6 in all, not 8"),
        ((WORKER,), {"argv": ("other",)}, "argv: each role has its own"),
        ((WORKER,), {"cpus_per_gpu": 9.0}, "cpus_per_gpu: each role has its own"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_roles_that_make_no_job_are_one_clear_line(roles: tuple[Role, ...], more: dict[str, object], says: str) -> None:
    follows = {"argv": roles[0].argv, "gpus": 6, "cpus_per_gpu": per_gpu(roles, "cpus")}

    problems = list(spec_problems(JobSpec(**{**follows, **more}, roles=roles)))  # type: ignore[arg-type]

    assert any(says in line for line in problems)
    assert all("\n" not in line for line in problems)


MANY = replace(PS, cpus=0.0)


def test_a_job_with_more_processes_than_a_node_takes_is_held_with_the_reason_and_all_others_start() -> None:
    world = World(rules(), nodes=1, gpus=4)
    for count in (10_050, 600):
        job = submitted(world, replace(MANY, count=count), replace(WORKER, count=1))

        assert world.phase(job) is Phase.HELD
        assert "it can't be started: " in world.job(job).reason
        assert "processes would stand on n0, and a node takes 512" in world.job(job).reason

    assert world.phase(world.submit(4)) is Phase.STARTING


def test_a_fault_in_starting_one_job_holds_that_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(rules(), nodes=1, gpus=4)
    tasks = launch._tasks

    def broken(job: LiveJob, free: dict[str, tuple[Device, ...]]) -> Iterator[TaskAllocation]:
        if job.spec.gpus == 3:
            raise StopIteration
        return tasks(job, free)

    monkeypatch.setattr(launch, "_tasks", broken)
    bad, good = world.submit(3), world.submit(4)

    assert (world.phase(bad), world.phase(good)) == (Phase.HELD, Phase.STARTING)
    assert world.job(bad).reason == "held by the manager; it can't be started: StopIteration(); report this"
    world.does(ReleaseRequested(job_id=bad, by="root"))
    world.exits(good)
    assert world.phase(bad) is Phase.HELD


def test_a_job_waits_with_its_place_while_others_have_all_the_processes_that_a_node_takes() -> None:
    world = World(rules(), nodes=1, gpus=4)
    first = submitted(world, replace(MANY, count=500), replace(WORKER, count=1))

    second = submitted(world, replace(MANY, count=20), replace(WORKER, count=1))

    assert (world.phase(first), world.phase(second)) == (Phase.STARTING, Phase.ALLOCATED)
    ends(world, first, "worker")
    ends(world, first, "ps", 143, cause="work_done")
    assert world.phase(second) is Phase.STARTING


def test_the_hosts_of_a_large_job_are_put_together_once_for_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(rules(), nodes=1, gpus=4)
    submitted(world, replace(MANY, count=500), replace(WORKER, count=4))
    hello = Hello(
        node="n0", boot_id="boot-1", incarnation="1", version="1", cpus=1, memory_bytes=1, gpus=(), headroom_bytes=0,
        tasks=(),
    )  # fmt: skip
    made: list[str] = []

    def counted(job: LiveJob) -> dispatch.Meeting:
        made.append(job.job_id)
        return meeting_of(job)

    monkeypatch.setattr(dispatch, "meeting_of", counted)

    commands = AgentLine(hello, "h").commands(world.state)

    assert (len(commands), len(made)) == (504, 1)


def test_of_too_many_roles_nothing_else_is_told() -> None:
    problems = list(role_problems([Role(name="worker", argv=(), count=0)] * 17))

    assert problems == ["roles: at most 16, not 17"]
