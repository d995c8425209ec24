"""Processes are killed and stopped while jobs train: every result stays that of one process, and nobody hangs."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.training.member import PlanSource
from tests.aggregation.service import Service, Training, service, source, training
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
        job.step(1 + rng.randrange(2))
        job.push_some(rng)
        killed_s = time.monotonic()
        kill()
        job.push_rest()
        job.check()
        took_s.append(time.monotonic() - killed_s)
    return took_s


@pytest.mark.parametrize("rule", ["mean", "sgd", "adam"])
def test_a_killed_server_loses_nothing(tmp_path: Path, rule: str) -> None:
    with service(tmp_path, tcp_port=free_port()) as one, training(sources(tmp_path, one), rule) as job:
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
