"""The manager of this machine, which an agent knows by the user who listens on its unix socket [H2]."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from farside.agent.near_manager import connect_near, manager_uids
from farside.errors import ConfigError

NOBODY = 65534
# Takes the place of a manager that is away, and says what it was sent.
IMPOSTOR = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
print(listener.accept()[0].recv(65536), flush=True)
"""


@contextmanager
def impostor(path: Path, uid: int) -> Iterator["subprocess.Popen[str]"]:
    command = [os.path.realpath(sys.executable), "-IS", "-c", IMPOSTOR, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=uid) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may write; pytest's own only root may pass."""
    with TemporaryDirectory(prefix="farside-near-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's program can be started by root only")
def test_a_program_of_another_user_in_the_managers_place_is_sent_nothing(folder: Path) -> None:
    path = folder / "manager.sock"
    with impostor(path, NOBODY) as process:
        with pytest.raises(ConfigError, match=rf"{path}: a program of uid {NOBODY} listens in the manager's place"):
            connect_near(str(path))

        assert process.stdout is not None
        assert process.stdout.readline() == "b''\n"


def test_the_managers_user_root_and_our_own_are_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "manager.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with connect_near(path) as sock:
            assert sock.getpeername() == path

    assert {0, os.geteuid()} <= manager_uids()


def test_a_manager_that_is_away_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError, match="no manager listens on this socket"):
        connect_near(str(tmp_path / "manager.sock"))
