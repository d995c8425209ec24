"""Listening sockets: what is taken over, and what is left alone."""

import os
import socket
import stat
from pathlib import Path

import pytest

from farside.endpoint import UNIX_PATH_BYTES_MAX
from farside.errors import ConfigError
from farside.listen import close_listener, open_listener


def test_a_unix_socket_is_its_owners_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    listener = open_listener(f"unix:{tmp_path}/made/on/the/way.sock")
    mode = stat.S_IMODE((tmp_path / "made/on/the/way.sock").stat().st_mode)

    close_listener(listener)

    assert mode == 0o600
    assert list((tmp_path / "made/on/the").iterdir()) == []


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    open_listener(f"unix:{tmp_path}/s").close()

    with open_listener(f"unix:{tmp_path}/s"), socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{tmp_path}/s")


def test_a_live_socket_is_not_taken_even_when_its_queue_is_full(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as waiting:
        live.bind(f"{tmp_path}/s")
        live.listen(0)
        waiting.connect(f"{tmp_path}/s")

        with pytest.raises(ConfigError, match="another process serves it"):
            open_listener(f"unix:{tmp_path}/s")

        live.accept()[0].close()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    if kind == "folder":
        precious.mkdir()
    else:
        (tmp_path / "target").write_text("text")
        precious.write_text("text") if kind == "file" else precious.symlink_to(tmp_path / "target")

    with pytest.raises(ConfigError, match="no socket is there"):
        open_listener(f"unix:{precious}")

    assert precious.is_dir() if kind == "folder" else precious.read_text() == "text"


def test_closing_leaves_the_socket_of_whoever_listens_there_by_now(tmp_path: Path) -> None:
    ours = open_listener(f"unix:{tmp_path}/s")
    os.unlink(tmp_path / "s")

    with open_listener(f"unix:{tmp_path}/s"):
        close_listener(ours)

        assert (tmp_path / "s").exists()


def test_a_path_too_long_for_a_unix_socket_is_one_clear_line(tmp_path: Path) -> None:
    longest = f"{tmp_path}/".ljust(UNIX_PATH_BYTES_MAX, "x")
    open_listener(f"unix:{longest}").close()

    with pytest.raises(
        ConfigError, match=r"^listen unix:.*is longer than the 107 bytes of a unix socket's path; name a shorter one$"
    ):
        open_listener(f"unix:{longest}x")


def test_an_address_that_can_not_be_is_one_line_with_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^metrics_listen tcp:192.0.2.1:1: Cannot assign"):
        open_listener("tcp:192.0.2.1:1", setting="metrics_listen")


def test_a_port_in_use_says_what_to_do() -> None:
    with open_listener("tcp:127.0.0.1:0") as taken, pytest.raises(ConfigError, match="in use; end who listens there"):
        open_listener(f"tcp:127.0.0.1:{taken.getsockname()[1]}")
