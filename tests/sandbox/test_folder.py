"""Whose folder it is: what a sandbox takes, what it leaves alone, and what it removes."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.sandbox.folder import check_length, claimed
from farside.sandbox.layout import ProcessRecord, SandboxRecord, read_record, write_record
from farside.sandbox.main import run
from farside.units import MIB

NOBODY = 65534


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder and what is in it."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A unix socket that somebody serves."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def record(state: Path, *, pid: int, uris: tuple[str, ...] = ()) -> SandboxRecord:
    """What a sandbox with one process besides its borrower says of itself."""
    borrower, donor = (
        ProcessRecord(name=name, pid=number, admin_socket="", config=f"{state}/{name}", log="")
        for name, number in (("borrower", 0), ("d1", pid))
    )
    return SandboxRecord(
        pid=1,
        admin_socket="",
        transport="tcp",
        protection="disk",
        size_bytes=0,
        slab_bytes=0,
        donor_memory_bytes=0,
        headroom_bytes=0,
        uris=uris,
        donors=(donor,),
        blockdev=borrower,
    )


def left_behind(state: Path, *, pid: int = 0, uris: tuple[str, ...] = ()) -> None:
    """Makes the folder look as a killed sandbox leaves it."""
    (state / "donors" / "d1").mkdir(parents=True)
    for name in ("sandbox.lock", "cluster.key", "disk", "donors/d1/log"):
        (state / name).write_text("ours")
    write_record(state, record(state, pid=pid, uris=uris))


@contextmanager
def sleeper(word: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this word in its command line."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", word]) as process:
        try:
            yield process
        finally:
            process.kill()


def connected_as(uid: int, path: Path) -> str:
    """Why this user can't connect to the socket; empty: it can."""
    program = f"""
import os, socket
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
try:
    socket.socket(socket.AF_UNIX).connect({str(path)!r})
except OSError as error:
    print(error.strerror)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_folder_that_is_not_there_is_made_with_its_parents_and_goes_again(tmp_path: Path) -> None:
    state = tmp_path / "a" / "b"

    with claimed(state):
        assert state.stat().st_mode & 0o777 == 0o700

    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_taken_and_stays(tmp_path: Path) -> None:
    with claimed(tmp_path):
        (tmp_path / "disk").touch()

    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_that_no_sandbox_made_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in ("donors/keep", "blockdev/keep", "disk", "peers.toml", "cluster.key", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("precious")
    before = tree(tmp_path)

    with pytest.raises(ConfigError, match="holds files that no sandbox made"):
        run(state=tmp_path)

    assert tree(tmp_path) == before


def test_what_a_killed_sandbox_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    left_behind(tmp_path)
    (tmp_path / "notes").write_text("mine")

    with claimed(tmp_path):
        assert tree(tmp_path) == {"sandbox.lock": "ours", "notes": "mine"}

    assert tree(tmp_path) == {"notes": "mine"}


def test_the_processes_that_a_killed_sandbox_left_are_ended(tmp_path: Path) -> None:
    with sleeper(f"{tmp_path}/d1") as leftover:
        left_behind(tmp_path, pid=leftover.pid)

        with claimed(tmp_path):
            assert leftover.poll() is not None


def test_a_process_that_has_the_number_of_one_that_is_gone_lives(tmp_path: Path) -> None:
    with sleeper("another") as innocent:
        left_behind(tmp_path, pid=innocent.pid)

        with claimed(tmp_path):
            assert innocent.poll() is None


def test_the_listeners_that_a_killed_sandbox_left_are_removed_but_not_one_that_is_served(tmp_path: Path) -> None:
    stale, served, state = tmp_path / "stale", tmp_path / "served", tmp_path / "state"
    with listening(stale):
        pass
    left_behind(state, uris=tuple(f"nbd+unix:///?socket={path}" for path in (stale, served)))

    with listening(served), claimed(state):
        assert not stale.exists()
        assert served.exists()


def test_an_empty_folder_that_others_may_enter_is_closed_to_them_meanwhile(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    with claimed(tmp_path):
        during = tmp_path.stat().st_mode & 0o777

    assert (during, tmp_path.stat().st_mode & 0o777) == (0o700, 0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_no_other_user_reaches_a_socket_in_the_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        state = Path(name) / "state"
        state.mkdir(mode=0o755)
        with claimed(state), listening(state / "manager.sock"):
            (state / "manager.sock").chmod(0o666)

            said = connected_as(NOBODY, state / "manager.sock")

    assert said == "Permission denied"


def test_a_folder_with_files_where_others_may_write_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    left_behind(tmp_path)
    tmp_path.chmod(0o777)
    before = tree(tmp_path)

    with pytest.raises(ConfigError, match=f"others may write there; .*chmod 700 {tmp_path}"), claimed(tmp_path):
        pass

    assert (tree(tmp_path), tmp_path.stat().st_mode & 0o777) == (before, 0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)

    with pytest.raises(ConfigError, match=r"belongs to .*; name a folder of your own"), claimed(state):
        pass

    assert list(state.iterdir()) == []


def test_two_sandboxes_do_not_share_a_folder(tmp_path: Path) -> None:
    with claimed(tmp_path):
        (tmp_path / "disk").write_text("in use")

        with pytest.raises(ConfigError, match=f"a sandbox runs in {tmp_path} already"), claimed(tmp_path):
            pass

        assert (tmp_path / "disk").read_text() == "in use"


@pytest.mark.parametrize("state", ["/proc/foo", "file", "file/below"])
def test_a_folder_that_can_not_be_is_one_line(tmp_path: Path, state: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=rf"--state \S*{state}: .*; name a folder"):
        run(state=tmp_path / state)


@pytest.mark.parametrize(
    ("has_cluster", "longest"), [(False, "/donors/d64/control.sock"), (True, "/agents/n64/state/agent.notify")]
)
def test_a_folder_whose_sockets_would_have_too_long_a_path_is_refused(has_cluster: bool, longest: str) -> None:
    fits = Path("/" + "s" * (107 - 1 - len(longest)))

    check_length(fits, has_cluster=has_cluster)
    with pytest.raises(ConfigError, match="name a shorter path"):
        check_length(Path(f"{fits}s"), has_cluster=has_cluster)


def test_a_listener_that_is_a_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("precious")

    with pytest.raises(ConfigError, match=f"--listen {tmp_path}/plain: a file that is no socket is there"):
        run(listen=(f"unix:{tmp_path}/plain",), size_bytes=64 * MIB, state=tmp_path / "state")

    assert tree(tmp_path) == {"plain": "precious"}


def test_a_listener_that_another_process_serves_is_refused_and_stays(tmp_path: Path) -> None:
    with listening(tmp_path / "s"):
        with pytest.raises(ConfigError, match=f"--listen {tmp_path}/s: another process serves it"):
            run(listen=(f"unix:{tmp_path}/s",), size_bytes=64 * MIB, state=tmp_path / "state")

        assert (tmp_path / "s").exists()


def test_a_listener_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .*/deep/er"):
        run(state=tmp_path / "state", listen=(f"unix:{tmp_path}/deep/er/x.sock",))

    assert list(tmp_path.iterdir()) == []


def test_a_record_with_text_that_is_no_utf8_is_said_to_be_damaged(tmp_path: Path) -> None:
    write_record(tmp_path, record(tmp_path, pid=1))
    (file,) = (path for path in tmp_path.iterdir() if path.is_file())
    file.write_bytes(file.read_bytes().replace(b"tcp", b"\xff\xfe"))

    with pytest.raises(ConfigError, match="is damaged"):
        read_record(tmp_path)
