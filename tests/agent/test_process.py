"""`farside agent` as a process, against a manager that the test plays."""

import select
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from farside.agent import messages as m
from farside.agent.protocol import CloseCode
from farside.blockdev.peers_file import read_peers
from farside.scrape import SCRAPERS_MAX
from tests.agent.donor import DONOR, serving
from tests.agent.fake_manager import FakeManager, fake_manager
from tests.agent.frames import SPEC
from tests.agent.process import agent, kill, status, until_connected, write_config
from tests.support.ports import free_port
from tests.support.waiting import text_of, until
from tests.train.executors import executor


@pytest.fixture
def manager() -> Iterator[FakeManager]:
    with fake_manager() as made:
        yield made


def start(manager: FakeManager, folder: Path, script: str, *, nth: int = 1, **spec: Any) -> None:
    given = {"argv": ("sh", "-c", script), "gpus": (0,), "stdout": str(folder / "out"), **spec}
    asked = msgspec.structs.replace(SPEC, **given)
    manager.send(m.Start(task_id="1.0", start=nth, generation=manager.generation, spec=asked))


def stop(manager: FakeManager, *, generation: int | None = None) -> None:
    number = manager.generation if generation is None else generation
    manager.send(m.Stop(task_id="1.0", start=1, generation=number, cause="preempted", grace_s=10))


def test_it_says_what_it_is_runs_a_task_and_ends_cleanly(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url)) as process:
        manager.until_hellos(1)
        hello = manager.hellos[0]
        start(manager, tmp_path, "echo $CUDA_VISIBLE_DEVICES; exit 3")
        end = manager.until_state("exited")
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=60) == 0
    assert (hello.node, len(hello.gpus), hello.tasks) == ("n1", 8, ())
    assert hello.headroom_bytes > 0
    assert (end.exit_code, (tmp_path / "out").read_text()) == (3, "0\n")
    assert not (tmp_path / "admin.sock").exists()


def test_a_node_has_the_memory_that_it_is_said_to_have(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url, memory_total_bytes=64 << 20, memory_reserve_bytes=16 << 20)):
        manager.until_hellos(1)

    assert (manager.hellos[0].memory_bytes, manager.hellos[0].headroom_bytes) == (64 << 20, 48 << 20)


def test_states_come_in_order(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url)):
        manager.until_hellos(1)
        start(manager, tmp_path, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        manager.until_state("running")
        stop(manager)
        manager.until_state("exited")

    told = [state.state for report in manager.reports for state in report.tasks]
    seen = list(dict.fromkeys(told))  # a report has each task's newest state: one that lasted no longer may be missing
    assert seen == [state for state in ("starting", "running", "stopping", "exited") if state in seen]
    assert {"running", "exited"} <= set(seen)


def test_reports_come_while_nothing_happens(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url)):
        until(lambda: len(manager.reports) >= 3, what="three reports", deadline_s=30)

    assert [report.seq for report in manager.reports[:3]] == [1, 2, 3]
    assert all(report.tasks == () for report in manager.reports)


def test_a_task_runs_on_while_the_manager_is_away_and_its_end_is_told_later(
    tmp_path: Path, manager: FakeManager
) -> None:
    with agent(write_config(tmp_path, manager.url)):
        manager.until_hellos(1)
        start(manager, tmp_path, f"until test -e {tmp_path}/go; do sleep 0.02; done; exit 6")
        manager.until_state("running")

        manager.vanish()
        (tmp_path / "go").touch()
        until(lambda: status(tmp_path).get("task_counts") == {"exited": 1}, what="the end", deadline_s=30)
        manager.listen()
        end = manager.until_state("exited")

    assert end.exit_code == 6
    assert [state.state for state in manager.hellos[-1].tasks] == ["exited"]


def test_reports_without_an_answer_come_again_first_and_in_order(tmp_path: Path, manager: FakeManager) -> None:
    manager.acknowledges = False
    with agent(write_config(tmp_path, manager.url)):
        until(lambda: len(manager.reports) >= 3, what="three reports", deadline_s=30)
        manager.vanish()
        before = list(manager.reports)
        manager.acknowledges = True
        manager.listen()
        until(lambda: len(manager.reports) > 2 * len(before), what="more reports", deadline_s=30)

    again = manager.reports[len(before) :]
    assert again[: len(before)] == before
    assert [report.seq for report in again] == list(range(1, len(again) + 1))


def test_a_killed_agent_loses_no_task_and_no_exit_code(tmp_path: Path, manager: FakeManager) -> None:
    config = write_config(tmp_path, manager.url)
    with agent(config) as first:
        manager.until_hellos(1)
        start(manager, tmp_path, f"echo once; until test -e {tmp_path}/go; do sleep 0.02; done; exit 9")
        manager.until_state("running")
        kill(first)
        (tmp_path / "go").touch()

        with agent(config):
            manager.until_hellos(2)
            start(manager, tmp_path, "echo twice")
            end = manager.until_state("exited")

    assert (end.exit_code, (tmp_path / "out").read_text()) == (9, "once\n")


def test_sigterm_leaves_tasks_running(tmp_path: Path, manager: FakeManager) -> None:
    config = write_config(tmp_path, manager.url)
    with agent(config) as first:
        manager.until_hellos(1)
        start(manager, tmp_path, "sleep 600")
        manager.until_state("running")
        first.terminate()
        first.wait(60)
        with agent(config):
            manager.until_hellos(2)

            assert [state.state for state in manager.hellos[-1].tasks] == ["running"]


def test_sigterm_ends_tasks_where_that_is_asked_for(tmp_path: Path, manager: FakeManager) -> None:
    config = write_config(tmp_path, manager.url, on_stop="end")
    with agent(config) as first:
        manager.until_hellos(1)
        start(manager, tmp_path, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        until(lambda: "ready" in text_of(tmp_path / "out"), what="ready")
        first.terminate()

        assert first.wait(60) == 0
    assert (tmp_path / "out").read_text().endswith("saved\n")


def test_a_manager_of_an_older_generation_is_hung_up_on(tmp_path: Path, manager: FakeManager) -> None:
    manager.generation = 5
    with agent(write_config(tmp_path, manager.url)):
        manager.until_hellos(1)
        stop(manager)
        manager.until_state("lost")
        manager.vanish()
        manager.generation = 4
        manager.listen()
        until(lambda: any(code == CloseCode.FENCED for code, _ in manager.closed), what="the hang-up", deadline_s=30)

        assert (CloseCode.FENCED, "generation 4 is over, this node obeys 5") in manager.closed
        until(lambda: "generation 4 is over" in str(status(tmp_path).get("problem")), what="the problem told")


def test_a_wrong_token_is_one_clear_line_and_tried_again(tmp_path: Path, manager: FakeManager) -> None:
    config = write_config(tmp_path, manager.url, token="wrong")
    with agent(config):
        until(
            lambda: status(tmp_path).get("problem") == "the manager does not know this node's token",
            what="the problem",
            deadline_s=30,
        )
        write_config(tmp_path, manager.url)

        until_connected(tmp_path)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"manager": "http://x"}, "manager: 'http://x' is no manager's address"),
        ({"token_file": "/no/such/file"}, "token_file /no/such/file: No such file or directory"),
        ({"users": "alice, b b"}, "users: 'b b' is no user's name"),
        ({"cgroup": "here"}, "cgroup: 'here' is neither auto, off nor a path"),
        ({"gpus": 8}, "gpus: no such setting"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with agent(write_config(tmp_path, "ws://127.0.0.1:1", **more)) as process:
        _, errors = process.communicate(timeout=60)

        assert process.returncode == 2
    assert errors.count("\n") == 1
    assert says in errors


def test_a_second_agent_in_one_state_folder_is_refused(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url)):
        manager.until_hellos(1)
        other = tmp_path / "other"
        other.mkdir()
        with agent(write_config(other, manager.url, state_dir=str(tmp_path / "state"))) as second:
            _, errors = second.communicate(timeout=60)

    assert errors == f"farside: state_dir {tmp_path}/state: another agent works in it; end that agent\n"


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, "ws://127.0.0.1:1")
    (tmp_path / "agent.token").chmod(0o644)
    with agent(config) as process:
        _, errors = process.communicate(timeout=60)

    assert "others may read it; chmod 600" in errors


@pytest.mark.parametrize("names_jobs", [False, True])
def test_metrics_tell_of_gpus_and_tasks(names_jobs: bool, tmp_path: Path, manager: FakeManager) -> None:
    """[L5] And of jobs and their users only where that is set: whoever reaches the address reads them."""
    port = free_port()
    config = write_config(tmp_path, manager.url, metrics_listen=f"127.0.0.1:{port}", metrics_jobs=names_jobs)
    with agent(config):
        manager.until_hellos(1)
        start(manager, tmp_path, "sleep 600", gpus=(2,))
        manager.until_state("running")

        def scraped() -> list[Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                families = text_string_to_metric_families(answer.read().decode())
                return [sample for family in families for sample in family.samples]

        def samples() -> dict[tuple[str, str], float]:
            return {(one.name, one.labels.get("gpu", one.labels.get("state", ""))): one.value for one in scraped()}

        until(lambda: samples().get(("farside_agent_tasks", "running")) == 1, what="the running task", deadline_s=10)
        found = samples()
        holders = [one.labels for one in scraped() if one.name == "farside_agent_gpu_job_info"]

    assert holders == ([{"gpu": "2", "part": "", "job": "1", "user": SPEC.user}] if names_jobs else [])
    assert found["farside_agent_gpu_info", "2"] == 1
    assert found["farside_agent_gpu_in_use", "2"] == 1
    assert found["farside_agent_gpu_in_use", "3"] == 0
    assert found["farside_agent_manager_connected", ""] == 1
    assert found["farside_agent_headroom_bytes", ""] > 0


def test_a_job_has_nothing_open_that_who_started_the_agent_had(tmp_path: Path, manager: FakeManager) -> None:
    with agent(write_config(tmp_path, manager.url), on=("/bin/sh", "-c", 'exec "$@" 9</etc/passwd', "sh")):
        manager.until_hellos(1)
        start(manager, tmp_path, "test ! -e /proc/$$/fd/9")

        assert manager.until_state("exited").exit_code == 0


def test_silent_peers_at_the_metrics_port_cost_an_agent_no_more_than_a_few_descriptors(
    tmp_path: Path, manager: FakeManager
) -> None:
    port, peers = free_port(), 3 * SCRAPERS_MAX
    with ExitStack() as stack:
        stack.enter_context(agent(write_config(tmp_path, manager.url, metrics_listen=f"127.0.0.1:{port}")))
        manager.until_hellos(1)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(peers)]

        until(
            lambda: len(select.select(silent, [], [], 0)[0]) == peers - SCRAPERS_MAX,
            what="the end of all connections but a few",
            deadline_s=10,
        )


def test_an_agent_keeps_a_peers_file_as_the_manager_knows_the_donors(tmp_path: Path, manager: FakeManager) -> None:
    peers = tmp_path / "peers.toml"
    donors = tuple(m.DonorAddress(node=name, control=f"tcp:{name}:7677") for name in ("d1", "d2"))
    config = write_config(tmp_path, manager.url, peers_file=str(peers))
    with agent(config):
        manager.until_hellos(1)
        manager.send(m.Donors(donors=donors))
        until(lambda: len(read_peers(peers)) == 2, what="two donors", deadline_s=30)
        manager.vanish()
        told = until_problem(tmp_path)
    with agent(config):
        after = until(lambda: status(tmp_path), what="an agent", deadline_s=30)

    assert "donors" in manager.hellos[0].can
    assert (told["peers_file"], told["peers"], told["peers_problem"]) == (str(peers), 2, "")
    assert [peer.node for peer in read_peers(peers)] == ["d1", "d2"]
    assert after is not None
    assert after["peers"] == 2


def until_problem(folder: Path) -> dict[str, Any]:
    def away() -> dict[str, Any] | None:
        told = status(folder)
        return told if told and not told["connected"] else None

    return until(away, what="an agent without a manager", deadline_s=30) or {}


def test_what_the_donor_of_a_node_says_is_in_hello_and_in_reports(tmp_path: Path, manager: FakeManager) -> None:
    with (
        serving(tmp_path / "donor.sock", DONOR),
        agent(
            write_config(
                tmp_path, manager.url, daemon_socket=str(tmp_path / "donor.sock"), donor_control="tcp:10.9.0.7:1"
            )
        ),
    ):
        until(lambda: manager.reports, what="a report", deadline_s=30)

    for told in (manager.hellos[0].donor, manager.reports[0].donor):
        assert told is not None
        assert (told.node, told.control, told.lends) == ("d1", "tcp:10.9.0.7:1", True)
    # It keeps no peers file.
    services = ("donor", "donor:2", "borrower", "aggregator", "aggregator:2", "executor", "executor:2", "swap")
    assert manager.hellos[0].can == ("probe", "lending", *(f"service:{name}" for name in services))


WORKER = """
import time
from farside.agent.training.subtask import INIT_COMP
from farside.training.loop.turns import EXECUTOR, SharedNode
import os
turns = SharedNode(os.environ[EXECUTOR], job=f"any name {os.getpid()}", worker=0, workers=1)
for position in range(INIT_COMP, 40):
    turns.ask(position)
    turns.done()
print("played", flush=True)
time.sleep(60)
"""


TURNS = 42


def test_a_task_takes_turns_at_the_executor_of_its_node_and_the_manager_hears_of_it(
    tmp_path: Path, manager: FakeManager
) -> None:
    def takers() -> tuple[m.TurnTaker, ...]:
        said = manager.reports[-1].services["executor"] if manager.reports else b"{}"
        found = msgspec.json.decode(said, type=m.ExecutorFacts).takers
        return tuple(one for one in found if one.iteration_s and one.turns + one.let_through == TURNS)

    with executor(tmp_path), agent(write_config(tmp_path, manager.url)):
        manager.until_hellos(1)
        start(manager, tmp_path, f"{sys.executable} -c '{WORKER}'; exit 5")
        (taker,) = until(takers, what="a task that has taken all its turns", deadline_s=30)
        stop(manager)
        manager.until_state("exited")

    assert (taker.job, taker.rank, taker.start) == ("1", 0, 1)


def test_a_node_is_shut_down_by_the_order_that_closed_it_and_not_while_it_has_a_task(
    tmp_path: Path, manager: FakeManager
) -> None:
    off = tmp_path / "off"

    def closed_by() -> int:
        reports = manager.reports
        return reports[-1].drained.number if reports and reports[-1].drained else 0

    with agent(write_config(tmp_path, manager.url, power_off=f"touch {off}")):
        manager.until_hellos(1)
        start(manager, tmp_path, "sleep 600")
        manager.until_state("running")
        manager.send(m.Lending(closed_by=5, generation=1, deadline_s=10.0))
        until(lambda: closed_by() == 5, what="a closed node", deadline_s=30)
        manager.send(m.PowerOff(closed_by=5, generation=1))  # it has a task
        manager.send(m.Stop(task_id="1.0", start=1, generation=1, cause="test", grace_s=0))
        manager.until_state("exited")
        manager.send(m.PowerOff(closed_by=4, generation=1))  # it comes late
        manager.send(m.Lending(closed_by=6, generation=1, deadline_s=10.0))
        until(lambda: closed_by() == 6, what="a node that has done what came before", deadline_s=30)
        assert not off.exists()

        manager.send(m.PowerOff(closed_by=6, generation=1))

        until(off.exists, what="a node that is shut down", deadline_s=30)
    assert "power-off" in manager.hellos[0].can
