"""What is said to the service manager, and taken from it."""

import os
import socket
from pathlib import Path

import pytest

from farside.notify import notify_systemd, take_given_fds, watchdog_period_s
from tests.support.manager import Manager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    made = Manager(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify.sock"))
    return made


def test_a_message_arrives(manager: Manager) -> None:
    notify_systemd("READY=1\nSTATUS=Serving")
    manager.listen()
    manager.close()

    assert manager.said == ["READY=1\nSTATUS=Serving"]


def test_nothing_happens_without_a_manager_or_where_it_has_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify_systemd("READY=1")


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0farside-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@farside-test-{os.getpid()}")

        notify_systemd("READY=1")

        assert sock.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("usec", "pid", "period_s"), [("10000000", None, 5.0), ("10000000", "1", 0.0), ("", None, 0.0), ("x", None, 0.0)]
)
def test_the_watchdog_is_fed_twice_as_often_as_it_asks(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str | None, period_s: float
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))

    assert watchdog_period_s() == period_s


def test_descriptors_that_are_meant_for_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "2")

    assert take_given_fds() == ({}, [])
    assert "LISTEN_FDS" not in os.environ
