"""Prolog and epilog: what they are told, and what becomes of a task whose node can't be prepared or cleaned."""

import os
import pwd
import signal
from pathlib import Path

import psutil
import pytest

from farside.agent.messages import EndKind
from farside.agent.run.hook import Hooks, hooks_of, run_hook
from farside.errors import ConfigError
from tests.agent.node import node
from tests.support.waiting import until


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def test_a_prolog_runs_before_the_task_and_knows_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    hooks = Hooks(prolog=shell(f"echo $FARSIDE_JOB $FARSIDE_START $CUDA_VISIBLE_DEVICES >{told}"))
    with node(tmp_path, hooks=hooks) as made:
        made.start(f"cat {told}", task_id="7.0", gpus=(1, 2))

        end = made.ended("7.0")

    assert (end.exit_code, made.output(), end.unfit) == (0, "7 1 1,2\n", "")


def test_a_prolog_that_fails_is_the_cause_and_the_task_never_runs(tmp_path: Path) -> None:
    hooks = Hooks(prolog=shell("echo no scratch space; exit 3"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran")

        end = made.ended()

    assert (end.exit_code, end.signal, made.output()) == (None, None, "")
    assert end.cause == end.unfit == "prolog: /bin/sh ended with exit code 3: no scratch space"
    assert end.kind is EndKind.UNPREPARED


def test_an_epilog_knows_the_end_and_one_that_fails_leaves_the_exit_code_as_it_is(tmp_path: Path) -> None:
    hooks = Hooks(epilog=shell(f"echo $FARSIDE_EXIT_CODE >{tmp_path}/told; exit 1"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("exit 5")

        end = made.ended()

    assert (end.exit_code, end.cause) == (5, "exit code 5")
    assert end.unfit == "epilog: /bin/sh ended with exit code 1"
    assert (tmp_path / "told").read_text() == "5\n"


def test_a_hook_that_takes_too_long_has_failed_and_is_killed(tmp_path: Path) -> None:
    hooks = Hooks(prolog=shell("trap '' TERM; sleep 600"), limit_s=0.2)
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran")

        assert made.ended().unfit == "prolog: /bin/sh has not ended within 0.2 s"


def test_a_hook_that_has_ended_keeps_its_number_until_what_it_left_behind_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[str] = []
    kill = os.killpg

    def killpg(group: int, number: int) -> None:
        owners.append(psutil.Process(group).status())
        kill(group, number)

    monkeypatch.setattr(os, "killpg", killpg)

    assert run_hook(shell("exit 0"), Hooks(), tmp_path, {}, wait=lambda _: False) == ""
    assert owners == [psutil.STATUS_ZOMBIE]


def test_a_hook_that_is_not_there_has_failed(tmp_path: Path) -> None:
    with node(tmp_path, hooks=Hooks(prolog=("/no/such/program",))) as made:
        made.start("echo ran")

        assert made.ended().unfit == "prolog: /no/such/program: No such file or directory"


def test_a_task_that_is_stopped_during_its_prolog_never_runs_and_the_node_is_as_good_as_before(tmp_path: Path) -> None:
    hooks = Hooks(prolog=shell(f"touch {tmp_path}/begun; sleep 600"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran")
        until((tmp_path / "begun").exists, what="the prolog")

        made.stop()
        end = made.ended()

    assert (end.state, end.exit_code, end.cause, end.unfit) == ("exited", None, "preempted", "")
    assert made.output() == ""


def test_the_next_agent_can_stop_a_task_in_its_prolog_too(tmp_path: Path) -> None:
    hooks = Hooks(prolog=shell(f"touch {tmp_path}/begun; sleep 600"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran")
        until((tmp_path / "begun").exists, what="the prolog")

        after = made.restarted()
        after.stop()

        assert after.ended().cause == "preempted"


def test_gpus_are_in_use_until_the_epilog_has_ended(tmp_path: Path) -> None:
    go = tmp_path / "go"
    hooks = Hooks(epilog=shell(f"until test -e {go}; do sleep 0.02; done"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran", gpus=(0,))
        made.says("ran")
        during = made.state().state
        made.start("true", task_id="2.0", gpus=(0,))
        refused = made.ended("2.0")
        go.touch()

        end = made.ended()

    assert during != "exited"
    assert "GPU 0 is in use by job 1," in refused.cause
    assert end.exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_hooks_run_as_who_the_settings_name(tmp_path: Path) -> None:
    nobody = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
    with node(tmp_path, hooks=Hooks(prolog=shell("id -u; exit 1"), user=nobody.pw_name)) as made:
        made.start("true")

        assert made.ended().unfit.endswith(f": {nobody.pw_uid}")


def test_a_killed_supervisor_takes_its_prolog_along(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hooks = Hooks(prolog=shell(f"echo $$ >{pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 600"))
    with node(tmp_path, hooks=hooks) as made:
        made.start("echo ran")
        until(pid_file.exists, what="the prolog")
        pid = int(pid_file.read_text())

        os.kill(next(iter(made.runner.supervisor_pids().values())), signal.SIGKILL)

        until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not _cmdline(pid), what="the prolog has gone")
        assert made.until("exited").state == "lost"


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("prolog", "user", "says"),
    [
        ("check 'this", "", "prolog: No closing quotation"),
        ("clean.sh", "", "prolog: clean.sh is not an absolute path"),
        ("/bin/true", "nobody-of-that-name", "hook_user: there is no user"),
    ],
)
def test_a_wrong_hook_is_one_clear_line(prolog: str, user: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        hooks_of(prolog, "", user=user, limit_s=1.0)


def test_a_hook_is_split_as_a_shell_would() -> None:
    assert hooks_of("/bin/check 'a b'", "", user="", limit_s=1.0).prolog == ("/bin/check", "a b")
