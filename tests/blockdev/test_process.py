"""`farside blockdev` as processes: replaced, killed, ended, activated. No donors; the disk serves."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farside import admin
from farside.blockdev.client.handshake import Export, Handshake
from farside.errors import PeerError
from tests.support.nbd_client import NbdClient
from tests.support.ports import free_port
from tests.support.waiting import until

MIB = 1 << 20
PAGE = 4096
MANUAL = Path(__file__).parents[2] / "docs/operating.md"


class Process:
    """One supervisor and the server below it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.nbd = folder / "nbd.sock"
        self.admin = folder / "admin.sock"
        (folder / "key").write_text("ab" * 32)
        (folder / "key").chmod(0o600)
        (folder / "peers.toml").write_text("")
        values: dict[str, object] = {
            "size_bytes": "64MiB",
            "slab_bytes": "8MiB",
            "pending_bytes": "16MiB",
            "workers": 2,
            "listen": [f"unix:{self.nbd}"],
            "key_file": str(folder / "key"),
            "peers_file": str(folder / "peers.toml"),
            "disk_path": str(folder / "disk"),
            "state_dir": str(folder / "state"),
            "admin_socket": str(self.admin),
        } | settings
        lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
        (folder / "config.toml").write_text("\n".join(lines))
        self.log = (folder / "log").open("wb")
        self.child: subprocess.Popen[bytes] | None = None
        self.sockets: list[socket.socket] = []

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "farside", "blockdev", "--config", str(self.folder / "config.toml"), *more]

    def start(self, first: str = "") -> "Process":
        """Starts it; ``first``: Python that its process runs before, to change its constants."""
        command = self.command()
        if first:
            command[1:3] = ["-c", f"{first}\nfrom farside.cli import main\nmain()"]
        self.child = subprocess.Popen(command, stderr=self.log, stdin=subprocess.DEVNULL)
        until(lambda: self.status_or_none(), what="the device is up", deadline_s=30)
        return self

    def status(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = admin.call(self.admin, "status")
        return answer

    def status_or_none(self) -> Mapping[str, Any] | None:
        try:
            return self.status()
        except PeerError:
            return None

    def until_another_serves(self, pid: int) -> Mapping[str, Any]:
        def look() -> Mapping[str, Any] | None:
            told = self.status_or_none()
            return told if told and told["server_pid"] != pid else None

        found = until(look, what="another server process", deadline_s=30)
        assert found is not None
        return found

    def client(self) -> NbdClient:
        return self.adopt(_connected(self.nbd))

    def adopt(self, sock: socket.socket) -> NbdClient:
        """A client behind the shortest handshake; its socket is closed with the process."""
        self.sockets.append(sock)
        return NbdClient(greet(sock))

    def children(self) -> set[int]:
        """Server processes: the one that serves, a spare, one that comes or goes."""
        assert self.child is not None
        return {
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/stat")
            if _parent(path) == self.child.pid and not _is_zombie(int(path.parent.name))
        }

    def until_spare(self) -> int:
        """The process that waits for the serving one's death."""
        pid = self.status()["server_pid"]
        until(lambda: len(self.children()) == 2, what="a spare", deadline_s=30)
        return next(iter(self.children() - {pid}))

    def replace(self) -> None:
        """Has another server process take over; see `until_another_serves`."""
        assert self.child is not None
        self.child.send_signal(signal.SIGHUP)

    def until_said(self, text: str) -> None:
        until(lambda: text.encode() in (self.folder / "log").read_bytes(), what=text, deadline_s=30)

    def end(self, *, limit_s: float = 60) -> int:
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(limit_s)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        if self.child is not None and self.child.poll() is None:
            told = self.status_or_none()
            self.child.kill()
            self.child.wait()
            if told:
                _kill(told["server_pid"])
        self.log.close()


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(str(path))
    return sock


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it has ended


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f'"{v}"' for v in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'


def greet(sock: socket.socket) -> socket.socket:
    """The client's side of the shortest handshake: NBD_OPT_EXPORT_NAME of the default export."""
    assert _exactly(sock, 18) == Handshake(Export(name="", description="", size_bytes=0)).greeting()
    sock.sendall((3).to_bytes(4, "big") + b"IHAVEOPT" + (1).to_bytes(4, "big") + bytes(4))
    assert len(_exactly(sock, 10)) == 10
    return sock


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the server hung up")
        data += part
    return data


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.close()


class Load:
    """A client that writes and reads back until told to stop; its slowest request and its troubles."""

    def __init__(self, client: NbdClient) -> None:
        self.slowest_s = 0.0
        self.requests = 0
        self.trouble = ""
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.trouble == ""

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._round(self.requests)
        except (OSError, AssertionError) as error:
            self.trouble = repr(error)

    def _round(self, number: int) -> None:
        offset = number * 13 % 4096 * PAGE
        data = number.to_bytes(8, "little") * (PAGE // 8)
        began_s = time.monotonic()
        self._client.write(offset, data)
        assert self._client.read(offset, PAGE) == data
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        self.requests += 1


def test_a_server_is_replaced_under_load_without_an_error(process: Process) -> None:
    process.start()
    before = process.status()
    load = Load(process.client())
    until(lambda: load.requests > 100, what="the load runs")

    answer = admin.call(process.admin, "replace", timeout_s=60)
    seen = load.requests
    until(lambda: load.requests > seen + 100, what="the load goes on")
    load.end()

    after = process.status()
    assert after["server_pid"] == answer["server_pid"] != before["server_pid"]
    assert after["supervisor_pid"] == before["supervisor_pid"]
    assert after["counters"]["takeovers"] == 1


def test_a_killed_server_is_succeeded_under_load_without_an_error(process: Process) -> None:
    process.start()
    load = Load(process.client())

    for turn in range(1, 4):
        seen = load.requests
        until(lambda seen=seen: load.requests > seen + 100, what="the load runs")  # type: ignore[misc]  # bound on purpose
        pid = process.status()["server_pid"]
        os.kill(pid, signal.SIGKILL)
        assert process.until_another_serves(pid)["counters"]["takeovers"] == turn

    seen = load.requests
    until(lambda: load.requests > seen + 100, what="the load goes on")
    load.end()


def test_sighup_replaces_the_server(process: Process) -> None:
    process.start()
    pid = process.status()["server_pid"]

    assert process.child is not None
    process.child.send_signal(signal.SIGHUP)

    process.until_another_serves(pid)


def test_a_client_that_leaves_frees_its_worker_also_after_a_takeover(process: Process) -> None:
    process.start()
    first, second = process.client(), process.client()
    pid = process.status()["server_pid"]
    os.kill(pid, signal.SIGKILL)
    process.until_another_serves(pid)

    first.disconnect()
    until(lambda: process.status()["connections"] == 1, what="one client left")

    process.client().write(0, bytes(PAGE))
    second.write(0, bytes(PAGE))


def test_what_prometheus_has_seen_no_takeover_takes_back(tmp_path: Path) -> None:
    port = free_port()
    process = Process(tmp_path, metrics_listen=f"127.0.0.1:{port}").start()

    def scraped() -> Mapping[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        counted = ("_total", "_bucket", "_count", "_sum")
        return {f"{s.name} {s.labels}": s.value for f in families for s in f.samples if s.name.endswith(counted)}

    client = process.client()
    for number in range(50):
        client.write(number * PAGE, b"x" * PAGE)
        client.read(number * PAGE, PAGE)
    before = scraped()
    pid = process.status()["server_pid"]
    os.kill(pid, signal.SIGKILL)
    process.until_another_serves(pid)
    after = scraped()
    process.close()

    assert sum(before.values()) > 200
    assert {name for name, value in before.items() if after[name] < value} == set()


def test_the_metrics_of_the_manual_and_of_late_donors_are_told(tmp_path: Path) -> None:
    port, nobody = free_port(), free_port()
    process = Process(tmp_path, metrics_listen=f"127.0.0.1:{port}")
    (tmp_path / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "tcp:127.0.0.1:{nobody}"\n')
    process.start()

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    donors = process.status()["donors"]
    process.close()

    told = {family.name for family in families}
    in_manual = {name.removesuffix("_total") for name in re.findall(r"farside_blockdev_\w+", MANUAL.read_text())}
    assert in_manual - told == set()
    assert {name for name in told if "hedge" in name} - in_manual == set()
    late = next(family for family in families if family.name == "farside_blockdev_hedge_after_seconds")
    assert [(sample.labels, sample.value) for sample in late.samples] == [({"donor": "d1"}, 0.005)]
    assert [donor["hedge_after_s"] for donor in donors] == [0.005]


def test_where_nothing_is_hedged_no_donor_has_an_age_to_be_hedged_at(tmp_path: Path) -> None:
    process = Process(tmp_path, hedge_s=0)
    (tmp_path / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "tcp:127.0.0.1:{free_port()}"\n')

    donors = process.start().status()["donors"]
    process.close()

    assert [donor["hedge_after_s"] for donor in donors] == [None]


def test_a_client_beyond_the_workers_is_refused_and_the_others_go_on(process: Process) -> None:
    process.start()
    clients = [process.client(), process.client()]

    with pytest.raises(ConnectionResetError):
        process.client()

    for client in clients:
        client.write(0, bytes(PAGE))


def test_sigterm_without_clients_ends_clean(process: Process) -> None:
    process.start()

    assert process.end() == 0

    assert not process.nbd.exists()
    assert not process.admin.exists()


def test_sigterm_waits_for_clients_and_lets_no_new_one_in(process: Process) -> None:
    process.start()
    client = process.client()
    assert process.child is not None

    process.child.send_signal(signal.SIGTERM)
    until(lambda: b"waiting for clients" in (process.folder / "log").read_bytes(), what="it waits")
    with pytest.raises(ConnectionError):
        process.client()
    client.write(0, bytes(PAGE))
    client.disconnect()

    assert process.child.wait(60) == 0


@pytest.mark.long
def test_a_second_sigterm_ends_at_once(process: Process) -> None:
    process.start()
    process.client()
    assert process.child is not None

    process.child.send_signal(signal.SIGTERM)
    until(lambda: b"waiting for clients" in (process.folder / "log").read_bytes(), what="it waits")
    process.child.send_signal(signal.SIGTERM)

    assert process.child.wait(60) == 0


@pytest.mark.long
def test_a_server_that_dies_again_and_again_is_started_again_after_a_pause(process: Process) -> None:
    # However long a busy machine takes for five servers, they died one after another.
    process.start("from farside.blockdev import supervisor\nsupervisor.CRASH_WINDOW_S = 3600.0")
    for _ in range(5):
        pid = process.status()["server_pid"]
        os.kill(pid, signal.SIGKILL)
        process.until_another_serves(pid)

    assert b"keeps crashing" in (process.folder / "log").read_bytes()


@pytest.mark.long
def test_a_successor_that_dies_while_the_old_server_stops_is_followed_by_a_third(process: Process) -> None:
    process.start()
    load = Load(process.client())
    old, spare = process.status()["server_pid"], process.until_spare()
    assert process.child is not None

    os.kill(old, signal.SIGSTOP)
    process.child.send_signal(signal.SIGHUP)
    process.until_said("the replacement is loaded")
    (successor,) = process.children() - {old, spare}
    os.kill(successor, signal.SIGKILL)
    process.until_said("the replacement ended before it was ready")
    os.kill(old, signal.SIGCONT)

    process.until_another_serves(old)
    seen = load.requests
    until(lambda: load.requests > seen + 100, what="the load goes on")
    load.end()


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """A process that can open nothing more, and so can start no other."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_replacement_that_can_not_be_started_leaves_the_old_server_serving(process: Process) -> None:
    process.start()
    load = Load(process.client())
    pid = process.status()["server_pid"]
    process.until_spare()
    assert process.child is not None

    with no_descriptor_left(process.child.pid):
        process.child.send_signal(signal.SIGHUP)
        process.until_said("a server process could not be started")

    assert process.status()["server_pid"] == pid
    admin.call(process.admin, "replace", timeout_s=60)
    load.end()


@pytest.mark.long
def test_a_spare_that_can_not_be_started_is_started_later(process: Process) -> None:
    process.start()
    load = Load(process.client())
    process.until_spare()
    pid = process.status()["server_pid"]
    assert process.child is not None

    with no_descriptor_left(process.child.pid):
        os.kill(pid, signal.SIGKILL)
        process.until_another_serves(pid)
        process.until_said("a server process could not be started")

    process.until_spare()
    load.end()


@pytest.mark.long
def test_a_server_that_can_not_be_started_is_started_later(process: Process) -> None:
    process.start()
    load = Load(process.client())
    spare = process.until_spare()
    pid = process.status()["server_pid"]
    assert process.child is not None

    with no_descriptor_left(process.child.pid):
        os.kill(spare, signal.SIGKILL)
        until(lambda: process.children() == {pid}, what="the spare is gone")
        os.kill(pid, signal.SIGKILL)
        process.until_said("a server process could not be started")

    process.until_another_serves(pid)
    load.end()


def test_a_spare_that_is_stuck_holds_up_no_replacement(process: Process) -> None:
    process.start()
    os.kill(process.until_spare(), signal.SIGSTOP)

    admin.call(process.admin, "replace", timeout_s=60)


def test_a_version_that_does_not_know_the_devices_layout_leaves_the_old_server_serving(process: Process) -> None:
    process.start()
    load = Load(process.client())
    pid = process.status()["server_pid"]
    process.until_spare()
    assert process.child is not None
    state = next(
        path for path in Path(f"/proc/{process.child.pid}/fd").iterdir() if "-state" in os.readlink(path)
    )  # fmt: skip

    with state.open("r+b") as file:  # as if another version had written it
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    with pytest.raises(PeerError, match="the old server stays"):  # said when it is known, not at a deadline
        admin.call(process.admin, "replace", timeout_s=60)
    process.until_said("this version can't go on with the running device")
    process.until_said("the old server stays")

    assert process.status()["server_pid"] == pid
    seen = load.requests
    until(lambda: load.requests > seen + 100, what="the load goes on")
    load.end()


@pytest.mark.parametrize("setting", ["admin_socket", "metrics_listen"])
def test_a_device_that_can_not_start_ends_with_one_line(process: Process, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as owned:
        owned.bind(str(process.folder / "taken"))
        owned.listen()
        values = {"admin_socket": process.folder / "taken", "metrics_listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        (process.folder / "second").mkdir()
        second = Process(process.folder / "second", **{setting: str(values[setting])})

        ended = subprocess.run(second.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        second.close()

    assert ended.returncode == 2
    assert setting in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert "never awaited" not in ended.stderr


def refused(folder: Path, **settings: object) -> str:
    """What a device that can't start says last."""
    device = Process(folder, **settings)
    ended = subprocess.run(device.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    device.close()
    assert ended.returncode == 2
    return ended.stderr.splitlines()[-1]


def test_a_listener_that_fails_takes_the_earlier_ones_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused(tmp_path, listen=[f"unix:{tmp_path}/q", f"tcp:127.0.0.1:{taken.getsockname()[1]}"])

    assert "in use" in said
    assert not (tmp_path / "q").exists()


def test_a_listener_that_others_reach_is_refused_unless_the_settings_let_everybody_in(tmp_path: Path) -> None:
    """[M11]"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, listen=[f"tcp:0.0.0.0:{port}"])
        allowed = refused(tmp_path, listen=[f"tcp:0.0.0.0:{port}"], listen_unproved=True)

    assert "NBD by TCP proves nothing" in said
    assert "listen_unproved = true" in said
    assert "in use" in allowed, "it came as far as to listen"


def test_a_state_folder_that_can_not_be_is_one_line_and_no_disk_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    said = refused(tmp_path, state_dir=f"{tmp_path}/file/state")

    assert "state_dir" in said
    assert not (tmp_path / "disk").exists()


def test_an_orphaned_server_serves_until_its_last_client_leaves(process: Process) -> None:
    process.start()
    client = process.client()
    pid = process.status()["server_pid"]
    assert process.child is not None
    process.child.kill()
    process.child.wait()

    client.write(0, bytes(PAGE))
    client.disconnect()

    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), what="the orphan has ended")


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_a_socket_of_our_parents_is_served_by_activation(process: Process) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(process.folder / "given.sock"))
    listener.listen()
    script = 'export LISTEN_PID=$$; exec "$@" 3<&%d' % listener.fileno()  # noqa: UP031 (braces are the shell's)
    process.child = subprocess.Popen(
        ["bash", "-c", script, "-", *process.command()],
        env=dict(os.environ) | {"LISTEN_FDS": "1"},
        pass_fds=(listener.fileno(),),
        stderr=process.log,
    )
    listener.close()

    client = process.adopt(_connected(process.folder / "given.sock"))
    client.write(0, b"x" * PAGE)

    assert client.read(0, PAGE) == b"x" * PAGE
    assert not process.nbd.exists()
    client.disconnect()
    assert process.end() == 0


def test_one_client_is_served_on_standard_input(process: Process) -> None:
    ours, theirs = socket.socketpair()
    process.child = subprocess.Popen(process.command("-s"), stdin=theirs.fileno(), stderr=process.log)
    theirs.close()
    ours.settimeout(60)

    client = process.adopt(ours)
    client.write(0, b"x" * PAGE)
    assert client.read(0, PAGE) == b"x" * PAGE
    client.disconnect()

    assert process.child.wait(60) == 0


@pytest.mark.parametrize("end", ["signal", "client"])
def test_who_waits_on_standard_input_for_donors_that_do_not_come_can_end_it(tmp_path: Path, end: str) -> None:
    process = Process(tmp_path, protection="replica", disk_path="", log_level="info")
    ours, theirs = socket.socketpair()
    process.child = subprocess.Popen(process.command("-s"), stdin=theirs.fileno(), stderr=process.log)
    theirs.close()
    process.until_said("waiting for donors")

    if end == "signal":
        process.child.terminate()
    else:
        ours.close()

    assert process.child.wait(60) == 1
    ours.close()
    process.close()


def test_standard_input_that_is_no_socket_is_said_in_one_line(process: Process) -> None:
    ended = subprocess.run(process.command("-s"), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 2
    assert "standard input is not a socket" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_disk_that_can_not_be_opened_is_said_in_one_line(process: Process) -> None:
    (process.folder / "disk").mkdir()

    ended = subprocess.run(process.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 2
    assert f"disk {process.folder / 'disk'}" in ended.stderr.splitlines()[-1]


@pytest.mark.long
def test_a_second_device_on_the_same_disk_is_refused_also_after_a_replacement(process: Process) -> None:
    process.start()
    pids = {process.status()["supervisor_pid"], process.status()["server_pid"]}
    (process.folder / "second").mkdir()
    second = Process(process.folder / "second", disk_path=str(process.folder / "disk"))

    for replaced in (False, True):
        if replaced:
            pids.add(admin.call(process.admin, "replace", timeout_s=60)["server_pid"])
        ended = subprocess.run(second.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        named = re.search(r"is in use by process (\d+);", ended.stderr.splitlines()[-1])
        assert named is not None
        assert int(named[1]) in pids

    second.close()


def test_ready_is_said_to_the_service_manager(process: Process) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(process.folder / "notify"))
        manager.settimeout(60)
        process.child = subprocess.Popen(
            process.command(),
            env=dict(os.environ) | {"NOTIFY_SOCKET": str(process.folder / "notify")},
            stderr=process.log,
            stdin=subprocess.DEVNULL,
        )

        assert b"READY=1" in manager.recv(100).splitlines()


def test_faults_are_set_over_the_admin_socket_and_nonsense_is_refused(process: Process) -> None:
    process.start()

    admin.call(process.admin, "fault", donor="disk", kind="delay", every=2, delay_s=0.001)

    with pytest.raises(PeerError, match="no donor 'nobody'"):
        admin.call(process.admin, "fault", donor="nobody", kind="error", every=1)
    with pytest.raises(PeerError, match="kinds are"):
        admin.call(process.admin, "fault", donor="disk", kind="gremlins", every=1)


def test_a_successor_whose_peers_file_is_broken_serves_all_the_same(process: Process) -> None:
    process.start()
    load = Load(process.client())
    pid = process.status()["server_pid"]
    (process.folder / "peers.toml").write_text("half a fi")

    os.kill(pid, signal.SIGKILL)
    process.until_another_serves(pid)
    seen = load.requests
    until(lambda: load.requests > seen + 100, what="the load goes on")

    load.end()
