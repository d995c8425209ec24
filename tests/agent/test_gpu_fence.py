"""The fence around a task's GPUs [M2]: real cgroups, real character devices in place of GPUs."""

import os
import platform
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.gpu_files import DeviceRange, DeviceRules, GpuFiles
from farside.agent.run import gpu_fence
from farside.agent.run.containment import Cgroup, CgroupRoot, cgroup_root
from farside.agent.run.gpu_fence import why_no_fence
from farside.agent.sense.gpu import DeclaredGpus
from farside.errors import ConfigError
from tests.agent.fake_manager import fake_manager
from tests.agent.frames import SPEC
from tests.agent.node import ME, Node
from tests.agent.process import agent, status, until_connected, write_config
from tests.support.waiting import until

# Every user may read these: what keeps a task from them is the fence alone.
DEVICES = ("/dev/full", "/dev/zero", "/dev/random", "/dev/urandom")


def number(path: str) -> tuple[int, int]:
    at = os.stat(path).st_rdev
    return os.major(at), os.minor(at)


def the(path: str) -> DeviceRange:
    major, minor = number(path)
    return DeviceRange(major, minor, minor)


@pytest.fixture(scope="module")
def home() -> CgroupRoot:
    found = cgroup_root("auto")
    if found is None:
        pytest.skip("no cgroup v2 that this process may write")
    if found.by_systemd:
        pytest.skip("systemd owns the cgroups here; tests/vm/guest/test_gpu_fence.py shows it")
    if problem := why_no_fence(found.folder):
        pytest.skip(problem)
    return found


@pytest.fixture
def folder(home: CgroupRoot, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = home.folder / f"fence-{os.getpid()}"
    yield path
    if path.exists():
        path.rmdir()


def opened_inside(cgroup: Cgroup) -> set[str]:
    """Which of the devices a process can open that entered this cgroup."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        try:
            cgroup.enter()
            for path in DEVICES:
                try:
                    os.close(os.open(path, os.O_RDONLY))
                except PermissionError:
                    continue
                os.write(theirs, f"{path}\n".encode())
            os.write(theirs, b"whole\n")
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as said:
        lines = said.read().split()
    os.waitpid(pid, 0)
    assert lines.pop() == "whole"
    return set(lines)


ranges = st.builds(
    lambda path, before, after: DeviceRange(number(path)[0], max(0, number(path)[1] - before), number(path)[1] + after),
    st.sampled_from(DEVICES), st.integers(0, 2), st.integers(0, 2),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(opened=st.lists(ranges, max_size=3), closed=st.lists(ranges, max_size=3))
def test_the_kernel_opens_what_the_rules_allow_and_nothing_else(
    home: CgroupRoot, opened: list[DeviceRange], closed: list[DeviceRange]
) -> None:
    rules = DeviceRules(opened=tuple(opened), closed=tuple(closed))
    held = Cgroup(home.folder / f"rules-{os.getpid()}", rules)
    try:
        found = opened_inside(held)
    finally:
        held.close()

    assert found == {path for path in DEVICES if rules.allows(*number(path))}


def test_a_fence_inside_a_fenced_cgroup_opens_nothing_that_the_outer_one_closes(folder: Path) -> None:
    outer = Cgroup(folder, DeviceRules(closed=(the("/dev/zero"),)))
    assert "/dev/zero" not in opened_inside(outer)
    inner = Cgroup(folder / "inner", DeviceRules(opened=(the("/dev/zero"),), closed=(the("/dev/full"),)))
    try:
        assert opened_inside(inner) == {"/dev/random", "/dev/urandom"}
    finally:
        inner.close()


def test_a_process_that_cannot_be_fenced_does_not_enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    held = Cgroup(folder, DeviceRules(closed=(the("/dev/zero"),)))

    with pytest.raises(OSError, match=r"others' GPUs cannot be closed to it: bpf\(2\) is not known on pdp11"):
        held.enter()

    assert not held.pids()


def test_where_a_cgroup_above_lets_no_other_program_stand_beside_its_own_it_is_known_before_any_task(
    home: CgroupRoot, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task without its fence is not started: were that found out only then, every task would fail."""
    monkeypatch.setattr(gpu_fence, "_ALLOW_MULTI", 0)
    folder.mkdir()
    gpu_fence.close_gpus(folder, DeviceRules(closed=(the("/dev/full"),)))
    monkeypatch.undo()

    assert "Operation not permitted" in why_no_fence(folder)
    assert not why_no_fence(home.folder)


# ---------------------------------------------------------------- tasks


TWO = GpuFiles(
    own={0: (the("/dev/full"),), 1: (the("/dev/random"), the("/dev/zero"))},
    closed=tuple(map(the, ("/dev/full", "/dev/random", "/dev/zero"))),
    names={0: "GPU-a", 1: "GPU-b"},
)
TRIES = (
    f"for f in {' '.join(DEVICES)}; do head -c 0 $f 2>/dev/null && echo $f; done; echo $CUDA_VISIBLE_DEVICES, $(id -un)"
)


def run_task(node: Node, **spec: Any) -> list[str]:
    node.start(TRIES, **spec)
    assert node.ended().exit_code == 0
    return node.out.read_text().split()


@pytest.mark.parametrize(
    ("gpus", "opens", "named"),
    [
        ((0,), ["/dev/full", "/dev/urandom"], "GPU-a,"),
        ((1,), ["/dev/zero", "/dev/random", "/dev/urandom"], "GPU-b,"),
        ((0, 1), list(DEVICES), "GPU-a,GPU-b,"),
        ((), ["/dev/urandom"], ","),
    ],
)
def test_a_task_opens_the_files_of_its_own_gpus_alone(
    tmp_path: Path, home: CgroupRoot, gpus: tuple[int, ...], opens: list[str], named: str
) -> None:
    """[M2] CUDA_VISIBLE_DEVICES asked a program to leave others' GPUs alone, and nothing made it."""
    found = run_task(Node(tmp_path / "n", cgroup=home, gpu_files=TWO), gpus=gpus)

    assert found == [*opens, named, ME]


def test_another_users_task_is_fenced_as_roots_is(tmp_path: Path, home: CgroupRoot) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts tasks of other users")
    tmp_path.chmod(0o777)
    for above in tmp_path.parents[:3]:
        above.chmod(above.stat().st_mode | 0o011)
    user = pwd.getpwnam("nobody").pw_name

    found = run_task(
        Node(tmp_path / "n", cgroup=home, gpu_files=TWO, run_as="submitter"), gpus=(0,), user=user, cwd="/"
    )

    assert found == ["/dev/full", "/dev/urandom", "GPU-a,", "nobody"]


def test_without_a_fence_a_task_has_the_indexes_of_its_gpus(tmp_path: Path, home: CgroupRoot) -> None:
    assert run_task(Node(tmp_path / "n", cgroup=home), gpus=(1,)) == [*DEVICES, "1,", ME]


# ---------------------------------------------------------------- settings


def test_an_agent_fences_the_declared_gpus_whose_files_it_is_told(tmp_path: Path, home: CgroupRoot) -> None:
    out = tmp_path / "out"
    with fake_manager() as manager:
        config = write_config(
            tmp_path, manager.url, declared_gpus=2, declared_gpu_files="/dev/full, /dev/random+/dev/zero",
            gpu_fence="on", cgroup="auto",
        )  # fmt: skip
        with agent(config):
            until_connected(tmp_path)
            assert status(tmp_path)["gpu_fence"] == "on"
            asked = msgspec.structs.replace(SPEC, argv=("sh", "-c", TRIES), user=ME, gpus=(1,), stdout=str(out))
            manager.send(m.Start(task_id="1.0", start=1, generation=manager.generation, spec=asked))
            until(lambda: out.exists() and out.read_text().endswith(f"{ME}\n"), what="what it could open")

    assert out.read_text().split() == ["/dev/zero", "/dev/random", "/dev/urandom", "1,", ME]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cgroup": "off"}, "gpu_fence: is on; tasks have no cgroup v2 here"),
        ({"declared_gpu_files": "/dev/full"}, "declared_gpu_files: names files of 1 GPUs, and declared_gpus is 2"),
        (
            {"declared_gpu_files": "/dev/full,/nowhere"},
            "declared_gpu_files: /nowhere: No such file or directory; name files that are there",
        ),
        ({"declared_gpu_files": "/dev/full,/etc/passwd"}, "declared_gpu_files: /etc/passwd is no character device"),
        ({"declared_gpus": -1, "declared_gpu_files": "/dev/full"}, "declared_gpu_files: names files of GPUs"),
    ],
)
def test_a_fence_that_would_be_none_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    settings = {"declared_gpus": 2, "declared_gpu_files": "/dev/full,/dev/zero", "gpu_fence": "on", **changes}
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", **settings)) as process:
        _, told = process.communicate(timeout=60)

    assert process.returncode == 2
    assert said in told
    assert "Traceback" not in told


def test_declared_gpus_without_files_are_not_fenced_and_say_so() -> None:
    assert "declared_gpu_files names no files" in DeclaredGpus(2, "x").files.problem
    assert not DeclaredGpus(0, "x").files.problem
    with pytest.raises(ConfigError, match="is no character device"):
        DeclaredGpus(1, "x", [["/etc/passwd"]])
