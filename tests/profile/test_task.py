"""What becomes of a task that is to be profiled: by real task supervisors, with real programs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from farside.agent import messages as m
from farside.agent.profile import profiler, ring_file
from farside.agent.profile.ring import Process, Recorded
from farside.agent.profile.task import SILENT, UNSEEN, task_profile
from farside.agent.run.environment import with_library
from tests.agent.node import DEADLINE_S, Node
from tests.profile.trace import MIB, Training, events_of
from tests.profile.training import TENSORS
from tests.support.ports import free_port
from tests.support.waiting import until

PROGRAM = Path(__file__).parent / "training.py"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    if not ring_file.LIBRARY.exists():
        pytest.skip("the profiler's library was not built")
    # A folder of its own: jobs of other tests that run meanwhile have their files in the usual one.
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(ring_file, "FOLDER", folder)
    yield Node(tmp_path / "state")
    assert list(folder.iterdir()) == []


def test_both_processes_of_a_job_over_tcp_tell_its_model_and_its_skew(node: Node) -> None:
    port, command = free_port(), f"{sys.executable} {PROGRAM}"
    for rank, role in enumerate(("worker", "server")):
        node.start(f"exec {command} {role} {port} 12", task_id=f"1.{rank}", profile=True)

    ends = [node.ended(f"1.{rank}") for rank in (0, 1)]

    for end in ends:
        assert (end.exit_code, node.output()) == (0, "")
        found = end.profile
        assert found is not None
        assert (found.problem, found.processes) == ("", 1)
        assert found.sent_bytes == found.portion_bytes == sum(TENSORS)
        assert found.largest_bytes == 600_000
        assert 0.02 < found.iteration_s < 20
        assert found.iterations >= 8


def test_a_task_that_is_killed_tells_what_it_has_sent(node: Node) -> None:
    both = f"{sys.executable} {PROGRAM} server {{0}} 12 & {sys.executable} {PROGRAM} worker {{0}} 8"
    node.start(f"{both.format(free_port())}; kill -9 $$", profile=True)

    end = node.ended()

    assert end.signal == 9
    assert end.profile is not None
    assert (end.profile.problem, end.profile.processes, end.profile.largest_bytes) == ("", 2, 600_000)


def test_a_task_whose_messages_have_been_told_of_runs_on_to_its_own_end(node: Node, tmp_path: Path) -> None:
    port, over = free_port(), tmp_path / "over"
    both = f"{sys.executable} {PROGRAM} server {port} 12 & {sys.executable} {PROGRAM} worker {port} 12"
    node.start(f"{both}; until [ -e {over} ]; do sleep 0.05; done; exit 7", profile=True)

    until(lambda: node.state().profile, what="a profile while it runs", deadline_s=DEADLINE_S)
    over.touch()
    end = node.ended()

    assert (end.state, end.exit_code, end.cause) == ("exited", 7, "exit code 7")
    assert end.profile is not None
    assert end.profile.problem == ""


def test_a_task_that_sends_nothing_says_so(node: Node) -> None:
    node.start("echo hello; echo there >&2", profile=True)

    end = node.ended()

    assert end.profile == m.TaskProfile(processes=0, problem=SILENT)
    assert node.output() == "hello\nthere\n"


def test_one_that_did_not_ask_has_no_profile_and_nothing_in_its_environment(node: Node) -> None:
    node.start("env")

    assert node.ended().profile is None
    assert "LD_PRELOAD" not in node.output()


def test_what_it_preloads_itself_comes_first(node: Node) -> None:
    assert with_library({"LD_PRELOAD": "a.so"}, "b.so", {"X": "1"}) == {"LD_PRELOAD": "a.so:b.so", "X": "1"}
    assert with_library({}, "b.so", {}) == {"LD_PRELOAD": "b.so"}


def test_one_whose_file_can_not_be_made_runs_without(node: Node, tmp_path: Path) -> None:
    profile = profiler.Profiler(tmp_path / "no" / "such" / "folder", uid=0, gid=0, now_s=0.0)

    assert profile.preload is None
    assert profile.close().problem.endswith("No such file or directory")


def test_it_is_told_while_the_task_runs_as_soon_as_there_is_something(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = profiler.Profiler(ring_file.new_path(), uid=os.geteuid(), gid=os.getegid(), now_s=100.0)
    found = [m.TaskProfile(processes=0, problem="not yet"), m.TaskProfile(processes=1, sent_bytes=9)]
    monkeypatch.setattr(profiler, "task_profile", lambda _: found.pop(0))

    looks = [(made.due_s, made.look(made.due_s)) for _ in range(2)]

    assert looks == [(105.0, None), (115.0, m.TaskProfile(processes=1, sent_bytes=9))]
    assert made.due_s == profiler.NEVER_S
    monkeypatch.setattr(profiler, "task_profile", lambda _: m.TaskProfile(processes=1, problem="all over"))
    assert made.close().sent_bytes == 9


def test_a_lost_supervisor_leaves_no_file(node: Node) -> None:
    node.start("sleep 100", profile=True)
    node.until("running")
    assert list(ring_file.FOLDER.glob("farside-profile-*"))
    (supervisor,) = node.runner.supervisor_pids().values()
    os.kill(supervisor, 9)

    until(lambda: node.state().state == "lost", what="the task lost", deadline_s=30.0)


# ---- pure


def recorded(*processes: Process, attached: int = 1) -> Recorded:
    return Recorded(attached=attached, refused=0, problems=(), processes=processes)


def worker(seed: int, tensors: tuple[int, ...] = (8 * MIB, MIB)) -> Process:
    events = tuple(events_of(Training(tensors=tensors), Random(seed)))
    return Process(pid=seed, sent_bytes=sum(event.bytes for event in events), events=events)


def test_workers_of_one_launcher_are_one_task_and_who_sends_little_is_none() -> None:
    found = task_profile(recorded(worker(1), worker(2), worker(3), worker(4, (40_000, 30_000))))

    assert (found.processes, found.sent_bytes, found.largest_bytes) == (3, 9 * MIB, 8 * MIB)


def test_where_nobody_loaded_the_library_it_says_so() -> None:
    assert task_profile(recorded(attached=0)).problem == UNSEEN
    assert max(map(len, (UNSEEN, SILENT))) <= m.PROFILE_CHARS_MAX
