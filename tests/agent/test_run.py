"""Tasks as real processes: what they find, how they end, and that nothing is left of them."""

import errno
import fcntl
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from farside.agent import messages as m
from farside.agent.run import task_folder
from farside.agent.run.account import account_of
from farside.agent.run.containment import Cgroup, CgroupRoot, cgroup_root, task_cgroup_of
from farside.agent.run.fence import HeardRecord, now_s
from farside.agent.run.fork_server import ForkServer
from farside.agent.run.task_folder import Recipe, Status, is_locked, read
from farside.agent.run.task_supervisor import LAUNCH_LIMIT_S, TaskSupervisor, keep
from tests.agent.frames import SPEC
from tests.agent.node import DEADLINE_S, ME, Node, node, processes_with, remove_cgroups
from tests.support.waiting import text_of, until


@pytest.fixture(params=["tree", "fork_server", "cgroup"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A node that holds tasks together by process trees, one that forks its supervisors too, and one with cgroups."""
    if request.param == "tree":
        with node(tmp_path) as made:
            yield made
        return
    if request.param == "fork_server":
        fork_server = ForkServer()
        try:
            with node(tmp_path, fork_server=fork_server) as made:
                yield made
        finally:
            fork_server.close()
        return
    home = cgroup_root("auto")
    if home is None:
        pytest.skip("no cgroup v2 that this process may write")
    if home.by_systemd:
        with node(tmp_path, cgroup=home) as made:
            yield made
        return
    own = home.folder / f"test-{uuid.uuid4().hex}"
    own.mkdir()
    try:
        with node(tmp_path, cgroup=CgroupRoot(folder=own)) as made:
            yield made
    finally:
        remove_cgroups(own)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A program that execve(2) waits for: its file is leased, and the holder does not give it back (F_SETLEASE)."""
    program = tmp_path / "hanging"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(program, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield program
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_a_task_s_exit_code_is_kept(held: Node) -> None:
    held.start("exit 3")

    end = held.ended()

    assert (end.state, end.exit_code, end.signal, end.cause) == ("exited", 3, None, "exit code 3")


def test_a_task_that_ends_well_needs_no_cause(held: Node) -> None:
    held.start("true")

    end = held.ended()

    assert (end.exit_code, end.cause) == (0, "")
    assert end.rss_bytes > 0


def test_a_task_s_signal_is_kept(held: Node) -> None:
    held.start("kill -SEGV $$")

    end = held.ended()

    assert (end.exit_code, end.signal, end.cause) == (None, signal.SIGSEGV, f"signal {int(signal.SIGSEGV)}")


def test_states_are_told_in_order(held: Node) -> None:
    held.start("read line < /dev/zero; sleep 60")
    held.until("running")
    held.stop(grace_s=0)
    held.ended()

    assert [state.state for state in held.told] == ["starting", "running", "stopping", "exited"]


def test_output_is_appended_to_the_file_that_was_asked_for(held: Node) -> None:
    held.start("echo one; echo two >&2")
    held.ended()
    held.start("echo three", nth=2)
    held.ended(nth=2)

    assert held.output() == "one\ntwo\nthree\n"


def test_standard_error_may_have_its_own_file(held: Node, tmp_path: Path) -> None:
    held.start("echo one; echo two >&2", stderr=str(tmp_path / "err"))
    held.ended()

    assert held.output() == "one\n"
    assert (tmp_path / "err").read_text() == "two\n"


def test_a_program_that_is_not_there_is_the_cause(held: Node) -> None:
    held.start("", argv=("no-such-program",))

    end = held.ended()

    assert (end.exit_code, end.signal) == (127, None)
    assert end.cause == "could not be started: no-such-program: No such file or directory"


def test_a_program_that_cannot_be_executed_is_the_cause(held: Node, tmp_path: Path) -> None:
    (tmp_path / "text").touch(mode=0o644)
    held.start("", argv=(str(tmp_path / "text"),))

    end = held.ended()

    assert (end.exit_code, end.signal) == (126, None)
    assert end.cause == f"could not be started: {tmp_path / 'text'}: Permission denied"


def test_a_folder_that_is_not_there_is_the_cause(held: Node) -> None:
    held.start("true", cwd="/no/such/folder")

    assert held.ended().cause == "/no/such/folder: No such file or directory"


def test_a_checkpoint_folder_that_is_not_there_is_the_cause(held: Node) -> None:
    held.start("true", checkpoint_dir="/no/such/folder")

    assert held.ended().cause == "/no/such/folder: No such file or directory"


def test_output_and_files_have_the_permissions_that_the_submitters_umask_leaves(held: Node, tmp_path: Path) -> None:
    """[L4] Output was readable by all, whatever the umask of who had submitted the job."""
    held.start(f"touch {tmp_path}/made", umask=0o077)
    held.ended()
    (held.out.parent / "log").rename(held.out.parent / "first")
    held.start("true", nth=2)
    held.ended(nth=2)

    assert (held.out.parent / "first").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
    assert held.out.stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_no_output_and_keeps_nobody_waiting(held: Node, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    held.start("echo ran", stdout=str(tmp_path / "pipe"))

    assert held.ended().cause == f"{tmp_path}/pipe: is a pipe, socket or disk, and output goes into a file"


def test_output_may_go_to_a_device(held: Node) -> None:
    held.start("echo nowhere", stdout="/dev/null")

    assert held.ended().exit_code == 0


def test_a_stop_ends_a_task_whose_start_hangs(held: Node, hanging: Path) -> None:
    held.start("", argv=(str(hanging),))
    until(held.runner.supervisor_pids, what="a task supervisor that says that it waits")

    held.stop(grace_s=600)

    end = held.ended()
    assert (end.exit_code, end.signal, end.cause) == (None, None, "preempted")


def test_a_time_limit_ends_a_task_whose_start_hangs(held: Node, hanging: Path) -> None:
    held.start("", argv=(str(hanging),), time_limit_s=0.5, grace_s=600)

    end = held.ended()

    assert (end.exit_code, end.signal, end.cause) == (None, None, "time limit of 0.5 s")
    assert end.kind is m.EndKind.TIME_LIMIT


def test_a_start_that_hangs_when_its_node_loses_the_manager_is_lost_and_its_job_goes_on_elsewhere(
    tmp_path: Path, hanging: Path
) -> None:
    record = HeardRecord(tmp_path / "heard", 60.0)
    with node(tmp_path / "n", fence=str(tmp_path / "heard")) as one:
        one.start("", argv=(str(hanging),))
        until(one.runner.supervisor_pids, what="a task supervisor that says that it waits")
        record.heard(now_s() - 61)

        end = one.ended()
    record.close()

    assert (end.state, end.exit_code) == ("lost", None)
    assert "has not heard of the manager for 60 s" in end.cause


def test_a_start_that_hangs_is_given_up(tmp_path: Path) -> None:
    start = m.Start(task_id="1.0", start=1, generation=1, spec=SPEC)
    account = account_of(ME, run_as="starter", allowed=())
    supervisor = TaskSupervisor(tmp_path, Recipe(start=start, account=account, cgroup="", mark="m", notify=""))

    assert supervisor._why_give_up(LAUNCH_LIMIT_S - 1) == ""
    assert supervisor._why_give_up(LAUNCH_LIMIT_S).startswith("not started within 60 s")
    assert read(tmp_path, Status) is not None


def test_a_stop_is_a_sigterm_to_all_and_waits_for_the_checkpoint(held: Node) -> None:
    held.start("trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    held.says("ready")

    held.stop()
    end = held.ended()

    assert held.output().endswith("saved\n")
    assert (end.exit_code, end.cause) == (7, "preempted")


def test_a_child_may_use_the_grace_when_its_parent_is_gone(held: Node) -> None:
    child = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    held.start(f'sh -c "{child}" & wait')
    held.says("ready")

    held.stop()
    held.ended()

    assert "saved" in held.output()


def test_who_ignores_sigterm_is_killed_when_the_grace_is_over(held: Node) -> None:
    held.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    held.says("ready")

    held.stop(grace_s=0.2)
    end = held.ended()

    assert (end.signal, end.cause) == (signal.SIGKILL, "preempted")


def test_a_second_stop_can_shorten_the_grace(held: Node) -> None:
    held.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    held.says("ready")
    held.stop(grace_s=600)
    held.until("stopping")

    held.stop(grace_s=0)

    assert held.ended().signal == signal.SIGKILL


def test_a_stop_right_after_the_start_ends_it(held: Node) -> None:
    held.start("sleep 600")
    held.stop(grace_s=5)

    end = held.ended()

    assert end.cause == "preempted"


def test_a_time_limit_ends_it_and_is_the_cause(held: Node) -> None:
    held.start("echo ready; sleep 600", time_limit_s=2.0, grace_s=5)

    end = held.ended()

    assert (end.signal, end.cause, end.kind) == (signal.SIGTERM, "time limit of 2 s", m.EndKind.TIME_LIMIT)


def test_a_longer_time_limit_ends_a_task_that_runs_when_that_is_up(held: Node) -> None:
    held.start("echo ready; sleep 600", time_limit_s=2.0, grace_s=5)
    for longer_s in (2.5, 1.0):  # limits only grow
        held.runner.take(m.Extend(task_id="1.0", start=1, generation=1, time_limit_s=longer_s))
        held.runner.take(m.Extend(task_id="1.0", start=1, generation=1, time_limit_s=longer_s))

    end = held.ended()

    assert (end.cause, end.kind) == ("time limit of 2.5 s", m.EndKind.TIME_LIMIT)


def test_a_supervisor_whose_folder_is_taken_away_ends_with_its_task(held: Node) -> None:
    held.start(f"echo ready; until test -e {held.out}.go; do sleep 0.02; done")
    held.until("running")
    supervisor = psutil.Process(held.runner.supervisor_pids()["1.0", 1])
    shutil.rmtree(held.folder)

    held.out.with_name("log.go").touch()

    until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE, what="its end")


def test_nothing_is_left_of_a_task_that_ended(held: Node) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    # A child that ignores SIGTERM, in a session of its own, and whose parent is gone.
    orphan = f"trap '' TERM HUP; echo ready; while :; do sleep 0.05; done # {mark}"
    held.start(f'(setsid sh -c "{orphan}" &); until grep -q ready {held.out}; do sleep 0.02; done; exit 0')

    held.ended()

    assert processes_with(mark) == []


def test_a_task_finds_its_variables(held: Node) -> None:
    held.start(
        "env",
        task_id="12_3.1",
        gpus=(2, 5),
        rank=1,
        world_size=4,
        master_addr="n7",
        master_port=4242,
        env={"MINE": "a b", "RANK": "99", "FARSIDE_RESUME": "1", "FARSIDE_ARRAY_INDEX": "7"},
        checkpoint_dir=str(held.folder),
    )
    held.ended("12_3.1")

    found = dict(line.split("=", 1) for line in held.output().splitlines())
    wanted = {
        "MINE": "a b",
        "CUDA_VISIBLE_DEVICES": "2,5",
        "MASTER_ADDR": "n7",
        "MASTER_PORT": "4242",
        "RANK": "1",
        "WORLD_SIZE": "4",
        "FARSIDE_JOB": "12_3",
        "FARSIDE_ARRAY_INDEX": "3",
        "FARSIDE_START": "1",
        "FARSIDE_CHECKPOINT_DIR": str(held.folder),
        "USER": ME,
    }
    assert wanted.items() <= found.items()
    assert "FARSIDE_RESUME" not in found


def test_only_a_task_of_an_array_has_an_index(held: Node) -> None:
    held.start('echo "index=$FARSIDE_ARRAY_INDEX."', env={"FARSIDE_ARRAY_INDEX": "7"})
    held.ended()

    assert held.output() == "index=.\n"


def test_a_resumed_task_is_told_so(held: Node) -> None:
    held.start('echo "resume=$FARSIDE_RESUME gpus=$CUDA_VISIBLE_DEVICES."', nth=2, resume=True)
    held.ended(nth=2)

    assert held.output() == "resume=1 gpus=.\n"


def test_a_program_says_when_it_is_ready(held: Node) -> None:
    held.start(
        f"until test -e {held.out}.go; do sleep 0.02; done; "
        'echo ready >"$FARSIDE_READY"; echo again >"$FARSIDE_READY"; sleep 600'
    )
    held.until("running")
    held.out.with_name("log.go").touch()

    until(lambda: held.state().ready_at_s is not None, what="a ready program")
    ready = held.state()
    held.stop(grace_s=5)
    end = held.ended()

    assert ready.state == "running"
    assert ready.at_s < (ready.ready_at_s or 0) <= end.at_s
    assert end.ready_at_s == ready.ready_at_s
    told = [(state.state, state.ready_at_s is not None) for state in held.told]
    assert told == [("starting", False), ("running", False), ("running", True), ("stopping", True), ("exited", True)]


def wakes_its_supervisor(held: Node) -> bool:
    """Whether what the task writes to FARSIDE_READY is a signal to its supervisor at this moment."""
    folder = Path("/proc") / str(held.runner.supervisor_pids()["1.0", 1])
    pipes = [fd.name for fd in (folder / "fd").iterdir() if os.readlink(fd).startswith("pipe:")]
    said = [(folder / "fdinfo" / fd).read_text() for fd in pipes]
    flags = [int(line.split()[1], 8) for one in said for line in one.splitlines() if line.startswith("flags:")]
    return any(flag & os.O_ASYNC for flag in flags)


def test_a_program_that_goes_on_saying_so_wakes_its_supervisor_now_and_then_only(held: Node) -> None:
    held.start('while :; do echo ready; done >"$FARSIDE_READY"')
    until(lambda: held.state().ready_at_s is not None, what="a ready program", deadline_s=DEADLINE_S)

    until(lambda: not wakes_its_supervisor(held), what="a task supervisor that does not listen", deadline_s=DEADLINE_S)


def test_a_program_may_say_more_than_the_pipe_holds(held: Node) -> None:
    held.start('head -c 200000 /dev/zero >"$FARSIDE_READY"; exit 3')

    assert held.ended().exit_code == 3


def test_a_program_tells_how_long_its_iterations_took(held: Node) -> None:
    held.start('for took in 0.5 0.25 4; do echo "iteration $took"; done >"$FARSIDE_READY"')
    end = held.ended()

    assert end.iterations == m.IterationTimes(count=3, median_s=0.5)
    assert end.ready_at_s is None


def test_a_program_that_never_says_so_is_never_ready(held: Node) -> None:
    held.start("exit 0")
    end = held.ended()

    assert (end.ready_at_s, end.iterations) == (None, None)


def test_a_task_outlives_its_agent_and_its_exit_code_is_read_by_the_next(held: Node) -> None:
    os.mkfifo(held.folder / "go")  # before the task begins, which would find no file to read from
    held.start("echo ready; read line < go; exit 5", cwd=str(held.folder))
    held.says("ready")

    (held.folder / "go").write_text("on\n")
    after = held.restarted()

    assert after.ended().exit_code == 5


def test_an_end_while_no_agent_was_there_is_found(held: Node) -> None:
    held.start("exit 4")
    held.ended()

    after = held.restarted()

    assert [(state.state, state.exit_code) for state in after.runner.states] == [("exited", 4)]


def test_a_start_that_comes_again_to_the_next_agent_runs_once(held: Node) -> None:
    held.start("echo once")
    held.ended()

    after = held.restarted()
    after.start("echo once")

    assert after.told[-1].state == "exited"
    assert held.output() == "once\n"


def test_a_stop_that_the_last_agent_wrote_is_carried_out_by_the_next(held: Node) -> None:
    held.start("echo ready; sleep 600")
    held.says("ready")
    held.until("running")
    supervisor = psutil.Process(held.runner.supervisor_pids()["1.0", 1])
    supervisor.suspend()
    held.stop()
    supervisor.resume()

    assert held.restarted().ended().cause == "preempted"


def test_a_killed_supervisor_takes_its_task_along(held: Node) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    held.start(f"setsid sh -c 'echo ready; while :; do sleep 0.05; done # {mark}' & wait")
    held.says("ready")
    held.until("running")
    pid = held.runner.supervisor_pids()["1.0", 1]

    os.kill(pid, signal.SIGKILL)
    end = held.ended()

    assert (end.state, end.cause) == ("lost", "its task supervisor was killed")
    until(lambda: processes_with(mark) == [], what="the end of all its processes")


def test_a_damaged_state_is_a_lost_task_and_not_a_wrong_one(held: Node) -> None:
    held.start("exit 0")
    held.ended()
    file = held.folder / "tasks" / "1.0-1" / "state.json"
    file.write_bytes(file.read_bytes().replace(b'"exit_code":0', b'"exit_code":1'))

    end = held.restarted().ended()

    assert end.state == "lost"


def test_an_agent_without_descriptors_neither_ends_nor_loses_a_task_and_says_so_once(
    held: Node, caplog: pytest.LogCaptureFixture
) -> None:
    held.start("exit 3")
    folder = held.folder / "tasks" / "1.0-1"
    until(lambda: not is_locked(folder), what="the end of its supervisor", deadline_s=DEADLINE_S)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        held.runner.look()
        held.runner.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert caplog.messages.count("a task's state cannot be read") == 1
    assert (held.ended().state, held.ended().exit_code) == ("exited", 3)


def test_what_the_manager_forgets_is_removed_and_stays_forgotten(held: Node) -> None:
    held.start("echo once")
    held.ended()

    held.runner.take(m.Forget(task_id="1.0", start=1))
    after = held.restarted()
    after.start("echo once")

    assert list((held.folder / "tasks").iterdir()) == []
    assert [(state.state, state.cause) for state in after.told] == [("lost", "this start is over")]
    assert held.output() == "once\n"


def test_the_generation_outlives_the_agent(held: Node) -> None:
    held.runner.take(m.Stop(task_id="9.0", start=1, generation=7, cause="", grace_s=0))

    assert held.restarted().runner.ledger.generation == 7


def test_a_gpu_that_is_not_there_is_refused(held: Node) -> None:
    held.start("true", gpus=(8,))

    end = held.ended()

    assert (end.state, end.exit_code, end.cause) == ("exited", None, "no healthy GPU 8 on this node")


def test_a_task_never_has_the_supervisor_s_lock(held: Node) -> None:
    held.start("ls -l /proc/self/fd")
    held.ended()

    assert "/dev/null" in held.output()
    assert "1.0-1/lock" not in held.output()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_task_runs_as_its_user_and_what_it_may_not_read_it_cannot(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with node(tmp_path, run_as="submitter") as made:
        made.start(f"id -u; id -G; cat {secret}", user="nobody", cwd="/", stdout=str(shared / "log"))

        assert made.ended().exit_code == 1

    nobody = pwd.getpwnam("nobody")
    lines = (shared / "log").read_text().splitlines()
    assert lines[:2] == [str(nobody.pw_uid), str(nobody.pw_gid)]
    assert "Permission denied" in lines[2]
    assert (shared / "log").stat().st_uid == nobody.pw_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_is_not_the_agent_may_say_that_it_is_ready(tmp_path: Path) -> None:
    nobody = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
    with node(tmp_path, run_as="submitter") as made:
        made.start('echo ready >"$FARSIDE_READY"', user=nobody, stdout="")

        end = made.ended()

    assert (end.exit_code, end.ready_at_s is not None) == (0, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_are_opened_with_the_user_s_rights(tmp_path: Path) -> None:
    with node(tmp_path, run_as="submitter") as made:
        made.start("true", user="nobody", cwd="/", stdout="/root/of-nobody")

        assert made.ended().cause == "/root/of-nobody: Permission denied"


@pytest.mark.parametrize(
    ("user", "allowed", "cause"),
    [
        ("root", (), "user root is uid 0, and no task runs as uid 0"),
        ("no-such-user", (), "no user no-such-user on this node"),
        ("daemon", ("alice",), "user daemon is not in this node's setting users"),
    ],
)
def test_other_users_are_refused(tmp_path: Path, user: str, allowed: tuple[str, ...], cause: str) -> None:
    with node(tmp_path, run_as="submitter", users=allowed) as made:
        made.start("true", user=user)

        end = made.ended()

    assert (end.exit_code, end.cause) == (None, cause)


def test_a_cgroup_goes_with_its_task(tmp_path: Path) -> None:
    home = cgroup_root("auto")
    if home is None:
        pytest.skip("no cgroup v2 that this process may write")
    with node(tmp_path, cgroup=home) as made:
        made.start("true")
        recipe = read(made.folder / "tasks" / "1.0-1", Recipe)
        assert recipe is not None
        made.ended()

    assert recipe.cgroup
    assert not Path(recipe.cgroup).exists()


def test_limits_are_written_where_the_controllers_are(tmp_path: Path) -> None:
    # A tree of plain files stands for a kernel that has the controllers; a guest of tests/vm has the real ones.
    (tmp_path / "cgroup.subtree_control").touch()
    spec = replace(SPEC, cpus=1.5, memory_bytes=1 << 20)
    folder = task_cgroup_of(CgroupRoot(folder=tmp_path), "1.0-1", spec, processes=300).folder

    assert (folder / "memory.max").read_text() == "1048576"
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert (folder / "pids.max").read_text() == "300"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"


def test_a_task_may_swap_as_much_as_it_asked_for(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").touch()
    spec = replace(SPEC, cpus=0, memory_bytes=1 << 20, swap_bytes=3 << 20)
    made = task_cgroup_of(CgroupRoot(folder=tmp_path), "1.0-1", spec, processes=0)
    systemds = CgroupRoot(folder=tmp_path, by_systemd=True)
    scope = task_cgroup_of(systemds, "1.0-1", replace(spec, memory_bytes=0), processes=300)
    none = task_cgroup_of(systemds, "1.0-1", replace(spec, memory_bytes=0, swap_bytes=0), processes=0)

    assert (made.folder / "memory.swap.max").read_text() == "3145728"
    assert {"--property=MemorySwapMax=3145728", "--property=TasksMax=300"} <= set(scope.prefix)
    assert "--property=MemorySwapMax=0" in none.prefix


def test_a_task_with_swap_does_not_start_where_there_is_none(tmp_path: Path) -> None:
    with node(tmp_path) as without:
        without.start("true", swap_bytes=1)
        refused = without.ended()
    with node(tmp_path / "other", has_swap=lambda: True) as with_swap:
        with_swap.start("true", swap_bytes=1)
        ran = with_swap.ended()

    assert (refused.exit_code, refused.cause) == (None, "no Farside swap on this node")
    assert ran.exit_code == 0


def test_a_cgroup_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    gone = Cgroup(tmp_path / "gone")

    assert list(gone.pids()) == []
    assert gone.oom_kills() == 0
    gone.kill()
    gone.close()


def test_a_fork_server_that_was_killed_is_replaced_and_the_task_runs_once(tmp_path: Path) -> None:
    fork_server = ForkServer()
    try:
        with node(tmp_path, fork_server=fork_server) as made:
            made.start("echo first")
            made.ended()
            # Of this process alone: those of other tests beside may end at any moment.
            own = {process.pid for process in psutil.Process().children()}
            for pid in own.intersection(processes_with("farside.agent.run.fork_server")):
                os.kill(pid, signal.SIGKILL)

            made.start("echo second", task_id="2.0")
            made.ended("2.0")
            made.start("echo third", task_id="3.0")
            made.ended("3.0")

            assert made.output() == "first\nsecond\nthird\n"
    finally:
        fork_server.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system of its own: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_on_a_full_disk_nothing_new_starts_and_what_runs_ends_as_it_should(small_disk: Path, tmp_path: Path) -> None:
    with node(small_disk) as made:
        made.start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", stdout=str(tmp_path / "out"))
        until(lambda: text_of(tmp_path / "out"), what="ready")
        made.until("running")
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

        made.start("echo never", task_id="2.0", stdout=str(tmp_path / "never"))
        made.stop()
        refused = made.ended("2.0")
        filler.unlink()
        end = made.ended()

        assert refused.cause == "this node could not start it: No space left on device"
        assert end.exit_code == 7
        assert not (tmp_path / "never").exists()
        made.start("echo now", task_id="3.0", stdout=str(tmp_path / "now"))
        made.ended("3.0")
    assert (tmp_path / "now").read_text() == "now\n"


def test_an_end_is_written_once_there_is_room_though_its_supervisor_s_log_is_on_the_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = m.Start(task_id="1.0", start=1, generation=1, spec=SPEC)
    account = account_of(ME, run_as="starter", allowed=())
    supervisor = TaskSupervisor(tmp_path, Recipe(start=start, account=account, cgroup="", mark="m", notify=""))
    tries: list[Path] = []
    write = task_folder.write

    def full_at_first(folder: Path, record: Status) -> None:
        tries.append(folder)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, record)

    with open("/dev/full", "w", buffering=1) as log:
        monkeypatch.setattr(task_folder, "write", full_at_first)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        monkeypatch.setattr(sys, "stderr", log)
        supervisor._finish(m.TaskState(task_id="1.0", start=1, state="exited", at_s=1.0, exit_code=7))
        monkeypatch.undo()
        with suppress(OSError):
            log.close()

    kept = read(tmp_path, Status)
    assert kept is not None
    assert (len(tries), kept.state.exit_code) == (2, 7)


def test_a_second_supervisor_of_a_task_does_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.start("echo once")
        made.ended()
        folder = made.folder / "tasks" / "1.0-1"
        lock = os.open(folder / "lock", os.O_RDWR)

        with pytest.raises(SystemExit, match="another task supervisor has this task"):
            keep(folder, lock)

        os.close(lock)
        assert made.output() == "once\n"
