"""Memory of tasks whose jobs name none [M3]."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.run.containment import cgroup_root
from farside.agent.run.task_folder import Recipe, read
from farside.agent.run.task_memory import TaskMemory
from farside.units import GIB, MIB
from tests.agent.fake_manager import FakeManager, fake_manager
from tests.agent.frames import SPEC
from tests.agent.node import ME
from tests.agent.process import agent, until_connected, write_config
from tests.support.waiting import until


def memory(mode: str = "limit", **changes: int) -> TaskMemory:
    found = {"bytes_per_device": 0, "jobs_bytes": 80 * GIB, "devices": 8, **changes}
    return TaskMemory(mode=mode, **found)


def spec(*, gpus: int, memory_bytes: int = 0) -> m.TaskSpec:
    return msgspec.structs.replace(SPEC, gpus=tuple(range(gpus)), memory_bytes=memory_bytes)


@pytest.mark.parametrize(("gpus", "share"), [(1, 10 * GIB), (4, 40 * GIB), (8, 80 * GIB), (0, 10 * GIB)])
def test_a_task_gets_its_gpus_share(gpus: int, share: int) -> None:
    assert memory().limited(spec(gpus=gpus)).memory_bytes == share


def test_the_setting_goes_before_the_share_and_what_a_job_names_before_both() -> None:
    assert memory(bytes_per_device=GIB).limited(spec(gpus=2)).memory_bytes == 2 * GIB
    assert memory(bytes_per_device=GIB).limited(spec(gpus=2, memory_bytes=MIB)).memory_bytes == MIB


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_elsewhere_it_has_no_limit(mode: str) -> None:
    assert memory(mode).limited(spec(gpus=1)).memory_bytes == 0
    assert memory(mode).watched_bytes(limit_bytes=0, devices=1) == (10 * GIB if mode == "warn" else 0)


@given(st.lists(st.integers(1, 8), max_size=8), st.integers(1, 8), st.integers(0, 1 << 45))
def test_tasks_that_share_the_gpus_never_get_more_than_there_is(wanted: list[int], devices: int, total: int) -> None:
    taken, sizes = 0, []
    for count in wanted:
        if taken + count <= devices:
            taken += count
            sizes.append(count)
    shares = memory(jobs_bytes=total, devices=devices)

    assert sum(shares.share_bytes(count) for count in sizes) <= total


@pytest.mark.parametrize(
    ("changes", "is_limited", "why"),
    [
        ({}, False, "no cgroup v2 that limits memory"),
        ({"jobs_bytes": 0}, True, "memory_reserve_bytes leaves tasks nothing"),
        ({"jobs_bytes": 0, "bytes_per_device": GIB}, True, ""),
        ({}, True, ""),
    ],
)
def test_a_limit_that_would_be_none_has_a_reason(changes: dict[str, int], is_limited: bool, why: str) -> None:
    told = memory("limit", **changes).problem(is_limited=is_limited)

    assert why in told
    assert bool(why) == bool(told)
    assert not memory("warn", **changes).problem(is_limited=is_limited)


def test_a_limit_without_cgroups_is_refused_in_one_line(tmp_path: Path) -> None:
    """[M3] It was taken, and limited nothing."""
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", task_memory="limit")) as process:
        _, said = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "task_memory: is limit; no cgroup v2 that limits memory is here" in said
    assert "Traceback" not in said


def reports_of_it(manager: FakeManager) -> int:
    """Readings since the task ran, each of which looks at its memory."""
    ran = [at for at, one in enumerate(manager.reports) if any(task.state == "running" for task in one.tasks)]
    return len(manager.reports) - ran[0] if ran else 0


def run_one(folder: Path, **settings: Any) -> tuple[int, str]:
    """The limit of a task that names none, and what the agent says of it while it runs."""
    with fake_manager() as manager:
        config = write_config(folder, manager.url, memory_total_bytes="8GiB", memory_reserve_bytes="4GiB", **settings)
        with agent(config) as process:
            until_connected(folder)
            begun = folder / "begun"
            argv = ("sh", "-c", f"touch {begun}; exec sleep 60")
            asked = msgspec.structs.replace(SPEC, argv=argv, user=ME, gpus=(0,), memory_bytes=0, stdout="")
            manager.send(m.Start(task_id="1.0", start=1, generation=manager.generation, spec=asked))
            until(begun.exists, what="the task", deadline_s=30)
            recipe = read(folder / "state/tasks/1.0-1", Recipe)
            assert recipe is not None
            until(lambda: reports_of_it(manager) >= 3, what="reports that have it", deadline_s=30)
            process.terminate()
            _, said = process.communicate(timeout=60)
    return recipe.start.spec.memory_bytes, said


def test_a_node_that_is_told_to_limits_such_tasks(tmp_path: Path) -> None:
    """[M3] One job without a limit took all of a node's memory, and other users' jobs with it."""
    home = cgroup_root("auto")
    if home is None or not home.limits_memory:
        pytest.skip("no cgroup v2 that this process may write and that limits memory")
    limit_bytes, _ = run_one(tmp_path, task_memory="limit", cgroup="auto")

    assert limit_bytes == 512 * MIB


def test_by_default_a_node_warns_once_of_a_task_above_its_share(tmp_path: Path) -> None:
    """[M3]"""
    limit_bytes, said = run_one(tmp_path, task_memory_bytes="64KiB")

    assert limit_bytes == 0
    assert said.count("uses more than its share") == 1
    assert "64 KiB" in said


@pytest.mark.parametrize(("is_limited", "told"), [(True, "warn"), (False, "none")])
def test_the_manager_is_told_what_a_task_gets_here(is_limited: bool, told: str) -> None:
    assert memory("warn").told(is_limited=is_limited) == told


def test_an_agent_without_cgroups_tells_the_manager_that_nothing_limits_memory(tmp_path: Path) -> None:
    with fake_manager() as manager, agent(write_config(tmp_path, manager.url)):
        until_connected(tmp_path)

    assert manager.hellos[0].task_memory == "none"
