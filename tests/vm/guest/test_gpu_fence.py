"""The fence around a task's GPUs in a systemd scope, where the cgroups are systemd's own [M2]."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from farside.agent import messages as m
from tests.agent.fake_manager import fake_manager
from tests.agent.frames import SPEC
from tests.agent.node import ME
from tests.agent.process import agent, status, write_config
from tests.support.waiting import until

LIMIT_S = 600.0
TRIES = "for f in /dev/full /dev/zero /dev/urandom; do head -c 0 $f 2>/dev/null && echo $f; done; echo end"


def test_a_task_in_a_scope_opens_the_files_of_its_own_gpu_alone(tmp_path: Path) -> None:
    """[M2] It could open others' GPUs, as root or any user."""
    out = tmp_path / "out"
    fenced: dict[str, Any] = {
        "declared_gpus": 2,
        "declared_gpu_files": "/dev/full,/dev/zero",
        "gpu_fence": "on",
        "cgroup": "auto",
    }
    with fake_manager() as manager, agent(write_config(tmp_path, manager.url, **fenced)):
        until(lambda: status(tmp_path).get("connected"), what="the agent", deadline_s=LIMIT_S)
        asked = replace(SPEC, argv=("sh", "-c", TRIES), user=ME, gpus=(1,), stdout=str(out))
        manager.send(m.Start(task_id="1.0", start=1, generation=manager.generation, spec=asked))
        until(lambda: out.exists() and out.read_text().endswith("end\n"), what="what it opened", deadline_s=LIMIT_S)

    assert out.read_text().split() == ["/dev/zero", "/dev/urandom", "end"]
