"""A node that nobody reaches, with real processes: the manager on one machine, an agent on the other, a cable cut."""

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from farside.scheduler.manager.model.check_log import violations
from tests.agent.process import agent, write_config
from tests.live.manager import running_manager
from tests.support.namespaces import FIRST, two_machines
from tests.support.ports import free_port
from tests.support.waiting import text_of, until

LIMIT_S = 180.0  # a connection that nobody closed is given up after its pings are


@pytest.mark.long
def test_a_job_of_a_node_that_is_cut_off_runs_elsewhere_and_its_old_process_ends_when_the_node_is_back(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    script = f"echo $$ >>{begun}; until test -e {tmp_path}/go; do sleep 0.05; done"
    with ExitStack() as stack:
        cable = stack.enter_context(two_machines())
        port = free_port()
        listen = f'["unix:{tmp_path}/m/manager.sock", "tcp:0.0.0.0:{port}"]'
        manager = stack.enter_context(
            running_manager(tmp_path / "m", on=cable.first, listen=listen, plain_http="true", node_timeout_s=6)
        )

        def join(name: str, at: str, on: tuple[str, ...]) -> None:
            folder = tmp_path / name
            folder.mkdir()
            token = manager.node_token(name)
            config = write_config(folder, f"ws://{at}:{port}", token=token, node=name, declared_gpus=4)
            stack.enter_context(agent(config, on=on))
            until(lambda: len(manager.get("nodes")["nodes"]) == len(names), what=f"{name} to join", deadline_s=LIMIT_S)

        names = ["far"]
        join("far", FIRST, cable.second)
        job = manager.submit("sh", "-c", script, gpus=4)
        until(begun.exists, what="the job to begin", deadline_s=LIMIT_S)
        names.append("near")
        join("near", "127.0.0.1", cable.first)

        cable.cut()
        until(lambda: len(text_of(begun).split()) == 2, what="its second start", deadline_s=LIMIT_S)
        old, new = map(int, begun.read_text().split())
        assert psutil.pid_exists(old), "nobody could tell it"
        cable.heal()
        until(lambda: not psutil.pid_exists(old), what="the end of its first start", deadline_s=LIMIT_S)

        assert psutil.pid_exists(new)
        (tmp_path / "go").touch()
        until(lambda: manager.job(job)["state"] == "done", what="the job's end", deadline_s=LIMIT_S)
        ended = manager.job(job)
        assert (ended["exit_code"], ended["starts"], ended["nodes"]) == (0, 2, ["near"])
        assert list(violations(manager.entries(), is_complete=True)) == []
