"""Memory of a task whose job names none, in a guest whose kernel limits it."""

from pathlib import Path

from msgspec.structs import replace

from farside.agent import messages as m
from tests.agent.fake_manager import fake_manager
from tests.agent.frames import SPEC
from tests.agent.node import ME
from tests.agent.process import agent, status, write_config
from tests.support.waiting import until

LIMIT_S = 600.0
SHARE_MIB = 100
EAT = ("python3", "-c", "a = bytearray(200 << 20)")


def test_a_task_whose_job_names_no_memory_is_killed_above_its_gpus_share(tmp_path: Path) -> None:
    """[M3] It took all of the node's memory, and other users' jobs with it."""
    share = {"task_memory": "limit", "task_memory_bytes": f"{SHARE_MIB}MiB"}
    with fake_manager() as manager, agent(write_config(tmp_path, manager.url, cgroup="auto", **share)):
        until(lambda: status(tmp_path).get("connected"), what="the agent", deadline_s=LIMIT_S)
        eater = replace(SPEC, argv=EAT, user=ME, memory_bytes=0, stdout="")
        manager.send(m.Start(task_id="1.0", start=1, generation=manager.generation, spec=eater))

        def ended() -> m.TaskState | None:
            state = manager.state()
            return state if state is not None and state.state == "exited" else None

        state = until(ended, what="the task's end", deadline_s=LIMIT_S)

    assert state is not None
    assert state.cause == f"out of memory: its limit is {SHARE_MIB << 20} bytes"
