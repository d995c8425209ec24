"""A manager and an agent as processes: the idle node turns down, and up for a job, at the end, and after a kill."""

import signal
from pathlib import Path

import pytest

from tests.agent.fake_systemd import machine
from tests.agent.process import agent, kill, write_config
from tests.live.manager import running_manager
from tests.support.waiting import until

QUIET = "0.50 4.00 4.00 1/100 1\n"
GOVERNOR = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"


@pytest.mark.long
def test_an_idle_node_turns_down_and_what_was_set_comes_back_whatever_ends_it(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", 64 << 20)
    file = root / GOVERNOR
    file.parent.mkdir(parents=True)
    file.write_text("performance\n")
    (file.parent / "scaling_available_governors").write_text("performance powersave\n")
    load = root / "proc/loadavg"
    load.unlink()  # of the machine that the tests run on
    load.write_text(QUIET)
    (tmp_path / "a").mkdir()

    def is_set(governor: str) -> bool:
        return file.read_text().strip() == governor

    with running_manager(tmp_path / "m", token_submit="true", rest_after_s=1) as manager:
        token, proc = manager.node_token("n1"), str(root / "proc")
        config = write_config(tmp_path / "a", manager.url, token=token, proc_root=proc, rest="cpu")

        with agent(config) as process:
            until(lambda: is_set("powersave"), what="the idle node turned down", deadline_s=60)
            until(
                lambda: manager.get("nodes", "n1")["services"].get("rest", {}).get("rests"),
                what="the manager knows", deadline_s=60,
            )  # fmt: skip
            load.write_text("0.60 0.00 0.00 1/100 1\n")
            until(lambda: is_set("performance"), what="turned up for a program of somebody else", deadline_s=60)
            load.write_text(QUIET)
            until(lambda: is_set("powersave"), what="the node idle again", deadline_s=60)
            job = manager.submit("sh", "-c", "until test -e end; do sleep 0.05; done", cwd=str(tmp_path), gpus=1)
            until(lambda: manager.job(job)["state"] == "running", what="a job that runs", deadline_s=60)
            until(lambda: is_set("performance"), what="the node turned up for the job", deadline_s=60)
            (tmp_path / "end").touch()
            until(lambda: is_set("powersave"), what="the node idle again", deadline_s=60)
            kill(process)

        assert is_set("powersave")  # nobody was left to put it back
        manager.stop()
        with agent(config) as process:  # there is no manager, so it may not rest
            until(lambda: is_set("performance"), what="put back by the next agent", deadline_s=60)
            manager.start()
            until(lambda: is_set("powersave"), what="the idle node turned down once more", deadline_s=60)
            process.send_signal(signal.SIGTERM)
            process.wait(30)

        assert is_set("performance")
