"""What the profiler's library sees of programs that use a real RDMA device."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from farside.agent.profile.ring import Event
from farside.agent.profile.ring_file import RingFile
from farside.agent.profile.task import task_profile
from farside.kmod_shim.rdma.devices import Gid
from tests.profile.preloaded import ring_file, variables
from tests.support.soft_rdma import roce_gid
from tests.support.waiting import until

PROGRAM = Path(__file__).parents[2] / "profile/training_rdma.py"
TENSORS = (4_000, 300_000, 2_000, 30_000, 1_000)
LIMIT_S = 240

pytestmark = pytest.mark.usefixtures("lasting_rxe0")


@pytest.fixture
def file() -> Iterator[RingFile]:
    with ring_file() as made:
        yield made


def gid_of_rxe0() -> Gid:
    found = roce_gid("rxe0")
    assert found is not None
    return found


def _ended_well(
    client: Sequence[str], told: Mapping[str, str], serving: subprocess.Popen[str]
) -> subprocess.CompletedProcess[str] | None:
    """Its end; None when the server may not listen yet."""
    done = subprocess.run(client, env=told, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done if done.returncode == 0 or serving.poll() is not None else None


def run_both(server: Sequence[str], client: Sequence[str], file: RingFile) -> None:
    """Two processes of one task; both end well, and neither speaks of the library."""
    told = {**variables(file.path), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(server, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as serving:
        try:
            done = until(lambda: _ended_well(client, told, serving), what="the client to end", deadline_s=LIMIT_S)
            assert done is not None
            assert done.returncode == 0, done.stderr
            _, said = serving.communicate(timeout=LIMIT_S)
            assert serving.returncode == 0
            for heard in (done.stderr, said):  # perftest may speak of its device there
                assert "preload" not in heard
                assert "farside" not in heard
        finally:
            serving.kill()


def over_rdma(file: RingFile) -> list[list[Event]]:
    """The RDMA messages of each process: these programs talk over a socket as well."""
    found = ([event for event in process.events if event.flow & 0x8000] for process in file.read().processes)
    return [events for events in found if events]


def test_a_training_job_over_rdma_tells_its_model_and_its_skew(file: RingFile) -> None:
    address = str(gid_of_rxe0().ipv4)
    command = (sys.executable, str(PROGRAM))

    run_both((*command, "server", address, "18515", "12"), (*command, "worker", address, "18515", "12"), file)

    recorded = file.read()
    found = task_profile(recorded)
    assert recorded.problems == ()
    assert (found.problem, found.processes) == ("", 2)
    assert (found.sent_bytes, found.largest_bytes) == (sum(TENSORS), 300_000)
    assert all(len(events) == 12 * len(TENSORS) for events in over_rdma(file))


def test_each_message_of_a_ping_pong_is_seen(file: RingFile) -> None:
    gid = ("-d", "rxe0", "-g", str(gid_of_rxe0().index), "-s", "8192", "-n", "50", "-p", "18516")

    run_both(("ibv_rc_pingpong", *gid), ("ibv_rc_pingpong", *gid, "127.0.0.1"), file)

    # Each side may send one more than it is asked for: the answer to the peer's last.
    assert [{event.bytes for event in events} for events in over_rdma(file)] == [{8192}, {8192}]
    assert all(49 <= len(events) <= 51 for events in over_rdma(file))


@pytest.mark.parametrize("more", [(), ("--use_old_post_send",)], ids=["extended", "old"])
@pytest.mark.parametrize(("program", "is_read"), [("ib_write_lat", False), ("ib_read_lat", True)])
def test_the_calls_of_extended_queue_pairs_are_seen_too(
    program: str, is_read: bool, more: Sequence[str], file: RingFile
) -> None:
    port = str(18520 + os.getpid() % 1000)
    told = (program, "-d", "rxe0", "-x", str(gid_of_rxe0().index), "-s", "4096", "-n", "100", "-p", port, "-F", *more)

    run_both(told, (*told, "127.0.0.1"), file)

    messages = [event for events in over_rdma(file) for event in events]
    assert {(event.bytes, event.is_read) for event in messages} == {(4096, is_read)}
    assert len(messages) >= 100
