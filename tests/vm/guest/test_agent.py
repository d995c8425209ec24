"""Tasks in a guest with systemd and every cgroup controller: limits hold, scopes come and go, nothing is left."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.agent.run.containment import CgroupRoot, cgroup_root
from farside.agent.run.task_folder import Recipe, read
from tests.agent.node import Node, node
from tests.support.waiting import until

FOLDER = Path("/sys/fs/cgroup/farside-test")
PROCESSES = 64
EAT = "python3 -c 'a = bytearray(200 << 20); print(len(a))'"


@pytest.fixture(params=["scope", "folder"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A node whose tasks are systemd's scopes, and one that has a folder of its own."""
    home = cgroup_root("auto" if request.param == "scope" else str(FOLDER))
    assert home == CgroupRoot(
        folder=Path("/sys/fs/cgroup/farside.slice") if request.param == "scope" else FOLDER,
        by_systemd=request.param == "scope",
        limits_swap=True,
    )
    with node(tmp_path, cgroup=home, has_swap=lambda: True, processes=PROCESSES) as made:
        yield made


def cgroup_of(made: Node) -> Path:
    recipe = read(made.folder / "tasks" / "1.0-1", Recipe)
    assert recipe is not None
    return Path(recipe.cgroup)


def test_a_task_that_takes_more_memory_than_its_limit_is_killed_and_says_so(held: Node) -> None:
    held.start(EAT, memory_bytes=100 << 20)

    end = held.ended()

    assert "200" not in held.output()
    assert end.cause == f"out of memory: its limit is {100 << 20} bytes"


def test_a_task_within_its_limit_ends_well(held: Node) -> None:
    held.start(EAT, memory_bytes=400 << 20)

    assert held.ended().exit_code == 0


def test_a_limit_on_cpus_is_the_kernels(held: Node) -> None:
    held.start("sleep 600", cpus=0.5)
    held.until("running")

    folder = cgroup_of(held)
    limits = [file.read_text().split() for one in (folder, folder.parent) if (file := one / "cpu.max").exists()]
    assert ["50000", "100000"] in limits


@pytest.mark.parametrize("swap_bytes", [0, 64 << 20])
def test_a_task_may_swap_as_much_as_it_asked_for(held: Node, swap_bytes: int) -> None:
    held.start("sleep 600", memory_bytes=100 << 20, swap_bytes=swap_bytes)
    held.until("running")

    folder = cgroup_of(held)
    limits = [file.read_text().strip() for one in (folder, folder.parent) if (file := one / "memory.swap.max").exists()]
    assert str(swap_bytes) in limits


def test_a_task_has_no_more_processes_than_its_node_allows(held: Node) -> None:
    held.start(f"for n in $(seq {PROCESSES}); do sleep 600 & done")

    assert held.ended().exit_code == 2
    assert "Cannot fork" in held.output()


def test_exit_codes_and_grace_are_as_elsewhere(held: Node) -> None:
    held.start("trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    held.says("ready")
    held.stop()

    assert held.ended().exit_code == 7
    assert "saved" in held.output()


def test_nothing_is_left_of_a_task_or_its_cgroup(held: Node) -> None:
    held.start("(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' &); sleep 0.5; exit 0")
    folder = cgroup_of(held)
    held.ended()

    until(lambda: not folder.exists(), what="the end of its cgroup", deadline_s=60)
    until(lambda: units() == "", what="the end of its unit", deadline_s=60)


def units() -> str:
    argv = ["systemctl", "list-units", "--no-legend", "farside-*.scope"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
