"""A whole sandbox: how it starts, what it tells, and that nothing of it is left."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farside.errors import ConfigError, PeerError
from farside.sandbox import control, process, session
from farside.sandbox.session import Session, open_sandbox
from tests.support.ports import free_port
from tests.support.programs import nbdsh, outcome, run
from tests.support.sandbox import farside, processes_naming
from tests.support.waiting import until

SMALL = ("--donors", "2", "--donor-memory", "96MiB", "--size", "64MiB", "--slab", "4MiB")
# Of a process that hangs. Far longer than one that does not takes to end.
HANG_LIMIT_S = 3.0
SHORT = (
    f"from farside.sandbox import process; process.END_LIMIT_S = {HANG_LIMIT_S}; from farside.cli import main; main()"
)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A small sandbox that the tests of this file share."""
    with open_sandbox(SMALL, state=tmp_path_factory.mktemp("sandbox") / "state") as session:
        yield session


def test_clients_may_connect_when_it_says_ready(sandbox: Session) -> None:
    assert nbdsh(sandbox.uri, "print(h.get_size())").strip() == str(64 << 20)


def test_the_status_names_every_process_donor_and_slab(sandbox: Session) -> None:
    nbdsh(sandbox.uri, "import os\nfor i in range(16): h.pwrite(os.urandom(1048576), i << 20)")
    until(lambda: control.blockdev_status(sandbox.state)["slabs"], what="a slab to be leased")

    told: dict[str, Any] = json.loads(run(farside("status", "--json", "--state", str(sandbox.state))))

    assert sorted(process["name"] for process in told["processes"]) == ["borrower", "d1", "d2"]
    assert all(process["pid"] > 0 and process["answers"] for process in told["processes"])
    assert sorted(donor["node"] for donor in told["blockdevs"][0]["donors"]) == ["d1", "d2"]
    assert {slab["donor"] for slab in told["blockdevs"][0]["slabs"]} <= {"d1", "d2"}
    assert sorted(daemon["node"] for daemon in told["daemons"]) == ["d1", "d2"]


def test_the_tables_of_the_status_name_the_donors(sandbox: Session) -> None:
    printed = run(farside("status", "--state", str(sandbox.state)))

    assert "d1" in printed
    assert "headroom" in printed


def test_a_killed_donor_is_noticed_and_comes_back_when_asked(sandbox: Session) -> None:
    control.kill_donor(sandbox.state, "d2")
    assert control.record(sandbox.state).donor("d2").pid == 0

    control.start_donor(sandbox.state, "d2")

    assert control.record(sandbox.state).donor("d2").pid > 0
    until(lambda: _donor_state(sandbox, "d2") == "up", what="the borrower to reach it again", deadline_s=20)


def test_a_running_donor_is_not_started_twice(sandbox: Session) -> None:
    with pytest.raises(PeerError, match="is running"):
        control.start_donor(sandbox.state, "d1")


def test_a_donor_that_is_not_there_is_named(sandbox: Session) -> None:
    with pytest.raises(ConfigError, match="no donor 'd9'"):
        control.squeeze(sandbox.state, "d9", 0)


def test_a_second_sandbox_in_the_same_folder_is_refused_in_one_line(sandbox: Session) -> None:
    done = outcome(farside("sandbox", *SMALL, "--state", str(sandbox.state)))

    assert done.status != 0
    assert "runs in" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_second_sandbox_on_the_listener_of_another_leaves_it_its_clients(sandbox: Session, tmp_path: Path) -> None:
    listener = sandbox.uri.partition("socket=")[2]

    done = outcome(farside("sandbox", *SMALL, "--state", str(tmp_path / "other"), "--listen", f"unix:{listener}"))

    assert done.stderr == (
        f"farside: --listen {listener}: another process serves it; end that one, or name another path\n"
    )
    assert nbdsh(sandbox.uri, "print(h.get_size())").strip() == str(64 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_state_without_a_sandbox_is_one_line(tmp_path: Path) -> None:
    done = outcome(farside("status", "--state", str(tmp_path)))

    assert done.status != 0
    assert "no sandbox runs" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_it_ends_clean_and_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    argv = farside("sandbox", *SMALL, "--state", str(tmp_path / "state"), "--listen", f"unix:{tmp_path / 's'}")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready nbd+unix://")
        with connected_client(tmp_path / "s"):
            process.send_signal(number)

            assert process.wait(timeout=60) == 0
    assert list(tmp_path.iterdir()) == []
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.long
def test_one_whose_processes_all_hang_ends_them_and_says_nothing_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kills one after the other, each after its own time; whoever waits for it has to wait for all of them."""
    # A shorter time for each, in the sandbox and for whoever waits for it.
    monkeypatch.setattr(process, "END_LIMIT_S", HANG_LIMIT_S)
    monkeypatch.setattr(session, "command", lambda *words: [sys.executable, "-c", SHORT, *words])
    state = tmp_path / "state"
    with open_sandbox((*SMALL, "--cluster", "1x1"), state=state):
        told: dict[str, Any] = json.loads(run(farside("status", "--json", "--state", str(state))))
        pids = [one["pid"] for one in told["processes"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    assert len(pids) == 5
    assert processes_naming(str(state)) == []


def test_one_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    argv = farside("sandbox", *SMALL, "--state", str(tmp_path / "state"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")

        process.kill()
        process.wait()

    until(lambda: not processes_naming(str(tmp_path)), what="every process to end", deadline_s=15)


OPENED = """
import sys
from pathlib import Path
from farside.sandbox.session import open_sandbox
with open_sandbox(sys.argv[2:], state=Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_one_whose_program_is_killed_ends(tmp_path: Path) -> None:
    """A benchmark that was killed left its sandbox running."""
    state = tmp_path / "state"
    argv = [sys.executable, "-c", OPENED, os.fspath(state), *SMALL]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.kill()

    until(lambda: not processes_naming(os.fspath(state)), what="all of its processes to end")


@pytest.mark.long
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_what_a_killed_one_left_is_cleared_by_the_next(tmp_path: Path, transport: str) -> None:
    state, listen = tmp_path / "state", ("--listen", f"unix:{tmp_path / 's'}")
    options = (*SMALL, "--transport", transport, *listen)
    with subprocess.Popen(farside("sandbox", *options, "--state", str(state)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with connected_client(tmp_path / "s"):  # for whose sake its borrower goes on
            process.kill()
            process.wait()

            with open_sandbox(options, state=state) as session:
                assert nbdsh(session.uri, "print(h.get_size())").strip() == str(64 << 20)

    assert list(tmp_path.iterdir()) == [state]
    assert list(state.iterdir()) == []


@pytest.mark.long
def test_a_start_that_fails_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", taken := free_port())):
        done = outcome(
            farside("sandbox", *SMALL, "--state", str(tmp_path / "state"), "--listen", f"tcp:127.0.0.1:{taken}")
        )

    assert done.status != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(taken) in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert processes_naming(str(tmp_path)) == []


@contextmanager
def connected_client(path: Path) -> Iterator[None]:
    """A client that is connected to the listener at `path` and asks nothing."""
    argv = ["/usr/bin/python3", "-m", "nbd", "-u", f"nbd+unix:///?socket={path}", "-c", _STAY]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"connected\n"
        try:
            yield
        finally:
            client.kill()


_STAY = "print('connected', flush=True)\nimport time\ntime.sleep(60)"


def _donor_state(sandbox: Session, name: str) -> str:
    donors = control.blockdev_status(sandbox.state)["donors"]
    return next((str(donor["state"]) for donor in donors if donor["node"] == name), "")
