"""`farside blockdev` as a service whose descriptors systemd keeps: restarts and crashes, under clients."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside import admin
from farside.errors import PeerError
from tests.blockdev.test_process import PAGE, Process
from tests.support.manager import Manager
from tests.support.nbd_client import NbdClient
from tests.support.waiting import until


class Service:
    """A device below a service manager."""

    def __init__(self, folder: Path) -> None:
        self.process = Process(folder, log_level="info")
        self.manager = Manager(folder)

    def start(self) -> None:
        self.manager.forget()
        process = self.process
        process.child = self.manager.start(process.command("--fd-store"), process.log)
        self.manager.until_said("READY=1")

    def client(self) -> NbdClient:
        """One whose connection the manager keeps already; nothing could outlive both processes before that."""
        before = self._connections()
        client = self.process.client()
        until(lambda: self._connections() > before, what="a connection that is kept", deadline_s=30)
        return client

    def _connections(self) -> int:
        return sum("conn." in name for name in list(self.manager.store))

    @property
    def main_pid(self) -> int:
        assert self.process.child is not None
        return self.process.child.pid

    def restart(self) -> int:
        """As `systemctl restart` with our unit does it; returns the old main process's status."""
        admin.call(self.process.admin, "keep")
        status = self.process.end()
        self.start()
        return status

    def kill(self) -> None:
        assert self.process.child is not None
        self.process.child.kill()
        self.process.child.wait()

    def server_pid(self) -> int:
        return int(self.process.status()["server_pid"])

    def until_taken_over(self) -> int:
        """The first server of this supervisor's own."""

        def own() -> int:
            told = self.process.status_or_none()
            return told["server_pid"] if told is not None and told["server_pid"] in self.process.children() else 0

        return until(own, what="a server of the new supervisor's", deadline_s=30)

    def close(self) -> None:
        self.manager.close()
        self.process.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.close()


class Load:
    """A client that writes and reads back until it is told to stop."""

    def __init__(self, client: NbdClient) -> None:
        self._client = client
        self._stop = threading.Event()
        self.rounds = 0
        self.trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                page = self.rounds.to_bytes(8, "little") * (PAGE // 8)
                self._client.write(self.rounds % 64 * PAGE, page)
                assert self._client.read(self.rounds % 64 * PAGE, PAGE) == page
                self.rounds += 1
        except BaseException as error:  # shown by end()
            self.trouble = error

    def until_on(self) -> None:
        began = self.rounds
        until(lambda: self.rounds > began + 10 or self.trouble, what="requests served", deadline_s=30)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.trouble is not None:
            raise self.trouble


def test_a_restart_replaces_supervisor_and_server_under_load(service: Service) -> None:
    service.start()
    load = Load(service.client())
    main, server = service.main_pid, service.server_pid()
    load.until_on()

    status = service.restart()
    second = service.until_taken_over()
    load.until_on()

    load.end()
    assert status == 0
    assert service.main_pid != main
    assert second != server
    assert service.process.status()["supervisor_pid"] == service.main_pid
    until(lambda: not Path(f"/proc/{server}").exists(), what="the old server's end")


def test_pages_are_served_while_there_is_no_supervisor(service: Service) -> None:
    service.start()
    client = service.client()
    admin.call(service.process.admin, "keep")
    assert service.process.end() == 0

    client.write(0, b"x" * PAGE)

    assert client.read(0, PAGE) == b"x" * PAGE
    service.start()
    service.until_taken_over()
    assert client.read(0, PAGE) == b"x" * PAGE


def test_keep_counts_for_a_signal_that_comes_with_it_and_with_news_before_it(service: Service) -> None:
    service.start()
    service.process.status()
    main = service.main_pid
    os.kill(main, signal.SIGSTOP)
    try:
        client = service.process.client()
        client.write(0, b"x" * PAGE)
        admin.call(service.process.admin, "keep")
        os.kill(main, signal.SIGTERM)
    finally:
        os.kill(main, signal.SIGCONT)

    assert service.process.child is not None
    assert service.process.child.wait(60) == 0
    assert client.read(0, PAGE) == b"x" * PAGE


@pytest.mark.long
def test_restarts_in_a_row_lose_no_connection(service: Service) -> None:
    service.start()
    load = Load(service.client())
    for _ in range(4):  # some while the last one's handover is still under way
        service.restart()
    service.until_taken_over()
    load.until_on()
    load.end()


def test_the_supervisors_death_stops_nothing(service: Service) -> None:
    service.start()
    load = Load(service.client())
    load.until_on()

    service.kill()
    load.until_on()
    service.start()
    service.until_taken_over()

    load.until_on()
    load.end()


def test_the_death_of_both_loses_no_connection(service: Service) -> None:
    service.start()
    client = service.client()
    client.write(0, b"x" * PAGE)
    server = service.server_pid()

    service.kill()
    os.kill(server, signal.SIGKILL)
    service.start()

    assert client.read(0, PAGE) == b"x" * PAGE


@pytest.mark.long
def test_a_guarded_device_stays_guarded(service: Service) -> None:
    service.start()
    admin.call(service.process.admin, "guard", timeout_s=60)

    service.restart()
    second = service.until_taken_over()

    assert b"\0guarded\0" in Path(f"/proc/{second}/cmdline").read_bytes()


def test_a_stop_waits_for_the_clients_and_ends_the_server(service: Service) -> None:
    service.start()
    client = service.client()
    server = service.server_pid()
    assert service.process.child is not None
    service.process.child.send_signal(signal.SIGTERM)
    service.manager.until_said("STOPPING=1")
    client.write(0, b"x" * PAGE)

    client.disconnect()

    assert service.process.child.wait(60) == 0
    assert not Path(f"/proc/{server}").exists()


@pytest.mark.long
def test_a_stop_that_comes_while_nobody_serves_waits_for_the_clients_all_the_same(service: Service) -> None:
    service.start()
    client = service.client()
    client.write(0, b"x" * PAGE)
    server = service.server_pid()
    service.kill()
    os.kill(server, signal.SIGKILL)

    # Blocked in what is started, too, as our unit has it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        service.process.child = service.manager.start(service.process.command("--fd-store"), service.process.log)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    service.process.child.send_signal(signal.SIGTERM)

    assert client.read(0, PAGE) == b"x" * PAGE
    client.disconnect()
    assert service.process.child.wait(60) == 0


@pytest.mark.long
def test_a_server_that_dies_while_its_clients_are_waited_for_is_succeeded(service: Service) -> None:
    service.start()
    client = service.client()
    client.write(0, b"x" * PAGE)
    server = service.server_pid()
    assert service.process.child is not None
    service.process.child.send_signal(signal.SIGTERM)
    service.manager.until_said("STOPPING=1")

    os.kill(server, signal.SIGKILL)

    assert client.read(0, PAGE) == b"x" * PAGE
    client.disconnect()
    assert service.process.child.wait(60) == 0


@pytest.mark.long
def test_settings_that_changed_count_after_a_stop_only(service: Service) -> None:
    service.start()
    with (service.process.folder / "config.toml").open("a") as config:
        config.write("\nhedge_s = 1\n")

    service.restart()
    service.until_taken_over()

    service.process.until_said("the device keeps the settings of its start; new ones apply")


@pytest.mark.long
def test_settings_that_became_unusable_do_not_end_the_device(service: Service) -> None:
    service.start()
    load = Load(service.client())
    (service.process.folder / "config.toml").write_text("this is no TOML")

    service.restart()
    service.until_taken_over()
    load.until_on()

    load.end()
    service.process.until_said("the settings are not valid any more")


def test_both_processes_are_spared_by_the_last_killing_of_a_shutdown(service: Service) -> None:
    service.start()

    for pid in (service.main_pid, service.server_pid()):
        assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"@")


def test_without_a_manager_that_keeps_descriptors_nothing_can_be_kept(tmp_path: Path) -> None:
    process = Process(tmp_path)
    try:
        process.start()

        with pytest.raises(PeerError, match="--fd-store"):
            admin.call(process.admin, "keep")
    finally:
        process.close()
