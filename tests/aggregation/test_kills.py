"""Processes are killed and stopped while jobs train: every result stays that of one process, and nobody hangs."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from farside.training.member import PlanSource
from tests.aggregation.service import Service, Training, service, source, training, write_key
from tests.support.ports import free_port
from tests.support.waiting import until

pytest.importorskip("farside.kmod_shim.engine.binding", reason="the engine is not built")


def sources(folder: Path, one: Service, *, members: int = 2, job: str = "j") -> list[PlanSource]:
    """The first by shared memory, the others by TCP."""
    return [source(folder, [one.tcp if rank else one.unix], rank, members=members, job=job) for rank in range(members)]


def kill_at_moments(job: Training, kill: Callable[[], object], *, moments: int, seed: int) -> list[float]:
    """Trains on while something is killed again and again, at random moments; seconds to the end of the next step."""
    rng, took_s = random.Random(seed), []
    for _moment in range(moments):
        job.step(rng.randrange(3))
        job.push_some(rng)
        killed_s = time.monotonic()
        kill()
        job.push_rest()
        job.check()
        took_s.append(time.monotonic() - killed_s)
    return took_s


@pytest.mark.parametrize("rule", ["mean", "sgd", "adam", "sum"])
def test_a_killed_server_loses_nothing(tmp_path: Path, rule: str) -> None:
    hold = rule == "sum"  # programs on NumPy train so
    with service(tmp_path, tcp_port=free_port()) as one, training(sources(tmp_path, one), rule, hold=hold) as job:
        kill_at_moments(job, one.kill_server, moments=3, seed=1)

        assert one.status()["restarts"] == 3


def test_a_killed_parent_takes_its_server_along_and_the_next_one_loses_nothing(tmp_path: Path) -> None:
    with service(tmp_path, tcp_port=free_port()) as one, training(sources(tmp_path, one), "adam") as job:
        pid = one.server_pid

        def kill() -> None:
            one.kill()
            until(lambda: not Path(f"/proc/{pid}").exists(), what="the server's end")
            one.start_again()

        kill_at_moments(job, kill, moments=1, seed=2)


def test_a_stopped_server_is_killed_and_replaced(tmp_path: Path) -> None:
    with service(tmp_path, tcp_port=free_port()) as one, training(sources(tmp_path, one), "sgd") as job:
        kill_at_moments(job, lambda: one.kill_server(signal.SIGSTOP), moments=1, seed=3)

        assert one.status()["restarts"] == 1
        assert "shows no life" in one.log.read_text()


# --- members that are processes


def start_member(
    folder: Path, endpoint: str, rank: int, rule: str, steps: int, children: int = 0, job: str = "j"
) -> Any:
    """A member that trains to iteration ``steps``; what it prints is read from its standard output."""
    words = [str(folder), endpoint, str(rank), "2", rule, str(steps), str(children), job]
    argv = [sys.executable, "-m", "tests.aggregation.member_process", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def iterations_of(member: Any) -> dict[int, str]:
    """The hashes of its results by iteration; waits for its end."""
    text, _ = member.communicate(timeout=60)
    return {int(line.split()[0]): line.split()[1] for line in text.splitlines() if line[0].isdigit()}


@pytest.mark.long
def test_a_killed_member_with_forked_children_pauses_its_own_job_only_and_its_rank_comes_back(tmp_path: Path) -> None:
    rule = "adam"
    with service(tmp_path) as one, ExitStack() as stack:
        write_key(tmp_path)
        first = stack.enter_context(start_member(tmp_path, one.unix, 0, rule, 40))
        stack.callback(first.kill)
        second = stack.enter_context(start_member(tmp_path, one.unix, 1, rule, 40, children=2))
        stack.callback(second.kill)
        children = [int(word) for word in second.stdout.readline().split()[1:]]
        for child in children:
            stack.callback(os.kill, child, signal.SIGKILL)
        before = dict(second.stdout.readline().split() for _line in range(3))

        second.kill()

        until(lambda: waits_for(one, "j") == 1, what="the job waits for rank 1")
        with training([source(tmp_path, [one.unix], rank, job="other") for rank in (0, 1)], rule) as other:
            other.step(2)
        again = stack.enter_context(start_member(tmp_path, one.unix, 1, rule, 40))
        stack.callback(again.kill)
        theirs, ours = iterations_of(again), iterations_of(first)

    assert max(theirs) == max(ours) == 40
    assert {**{int(number): digest for number, digest in before.items()}, **theirs}.items() <= ours.items()


def waits_for(one: Service, job: str) -> int | None:
    """The rank that a job waits for."""
    return next((found["waits_for"] for found in one.status().get("jobs", ()) if found["job"] == job), None)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rule", ["mean", "sgd", "adam"])
def test_twenty_kills_lose_nothing(tmp_path: Path, rule: str, number: signal.Signals) -> None:
    with service(tmp_path, tcp_port=free_port()) as one, training(sources(tmp_path, one), rule) as job:
        kill_at_moments(job, lambda: one.kill_server(number), moments=20, seed=5)
