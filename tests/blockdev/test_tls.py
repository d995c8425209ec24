"""TLS of NBD clients, at a device's own processes and with programs that nobody here wrote."""

import os
import random
import selectors
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from farside.blockdev.client import listener
from farside.blockdev.client.handshake import IHAVEOPT, REPLY_MAGIC, Option, Rep
from farside.kmod_shim.engine.binding import features
from tests.blockdev.test_process import MIB, PAGE, Process, refused
from tests.support.certificates import SERVER, Authority, Made
from tests.support.namespaces import FIRST, two_machines
from tests.support.nbd_client import Command, NbdClient
from tests.support.ports import free_port
from tests.support.programs import need, outcome, run
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(
    "tls" not in features(), reason="the engine was built without GnuTLS (Debian: libgnutls28-dev)"
)
KEY, OTHER_KEY = "ab" * 32, "cd" * 32
NOBODY = 65534
TLS_HANDSHAKE = b"\x16"  # the first byte of its records


class Door:
    """A device that serves by TLS at a port of this machine, with the files of its clients."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.host = str(settings.pop("host", "127.0.0.1"))
        self.port = free_port()
        self.authority = Authority(folder / "ca")
        self.device = self.authority.make("device", says=SERVER)
        self.client = self.authority.make("client")
        self.users = self.psk("users", f"n1:{KEY}", f"n2:{OTHER_KEY}")
        (folder / "process").mkdir()
        both: dict[str, object] = {
            "tls_psk_file": self.users, "tls_cert": self.device.cert, "tls_key": self.device.key,
            "tls_client_ca": self.authority.cert,
        }  # fmt: skip
        told = {
            name: value if isinstance(value, bool) else str(value) for name, value in (both | settings).items() if value
        }
        nbd = folder / "process/nbd.sock"
        self.process = Process(
            folder / "process", workers=4, listen=[f"unix:{nbd}", f"tcp:{self.host}:{self.port}"], **told
        )

    def psk(self, name: str, *lines: str) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o600)
        return path

    def uri(self, user: str = "n1", psk: Path | None = None) -> str:
        return f"nbds://{user}@{self.host}:{self.port}/?tls-psk-file={psk or self.users}"

    def folder_of(self, made: Made, ca: Path | None = None) -> Path:
        """Certificates as libnbd and qemu look for them."""
        folder = self.folder / f"pki-{made.cert.stem}-{(ca or self.authority.cert).parent.name}"
        folder.mkdir(exist_ok=True)
        for source, name in (
            (ca or self.authority.cert, "ca-cert.pem"),
            (made.cert, "client-cert.pem"),
            (made.key, "client-key.pem"),
        ):
            shutil.copy(source, folder / name)
        return folder

    def x509_uri(self, made: Made, ca: Path | None = None) -> str:
        return f"nbds://127.0.0.1:{self.port}/?tls-certificates={self.folder_of(made, ca)}"

    def expired(self) -> Made:
        """A certificate that is over: GnuTLS counts it until its last second has passed."""
        made, now_s = self.authority.make("old", days=0), time.time()
        until(lambda: time.time() > now_s + 1, what="it is over")
        return made

    def context(self, made: Made | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.cert)
        if made is not None:
            context.load_cert_chain(made.cert, made.key)
        if version is not None:
            context.maximum_version = version
        return context

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.process.sockets.append(sock)
        return sock

    def begin(self, sock: socket.socket) -> None:
        """The clear part of the negotiation, up to the answer to NBD_OPT_STARTTLS."""
        assert exactly(sock, 18).startswith(b"NBDMAGIC")
        sock.sendall(struct.pack(">I", 3) + option(Option.STARTTLS))
        assert answer(sock) == (Option.STARTTLS, Rep.ACK)

    def secure(self, made: Made | None = None, version: ssl.TLSVersion | None = None) -> NbdClient:
        """A client behind TLS and the shortest negotiation, which knows no more of TLS than Python's module."""
        sock = self.connect()
        self.begin(sock)
        tls = self.context(made or self.client, version).wrap_socket(sock, server_hostname="localhost")
        self.process.sockets.append(tls)
        tls.sendall(option(Option.GO, struct.pack(">IH", 0, 0)))
        while answer(tls) != (Option.GO, Rep.ACK):
            pass
        return NbdClient(tls)


def option(number: int, data: bytes = b"") -> bytes:
    return struct.pack(">QII", IHAVEOPT, number, len(data)) + data


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the server hung up")
        data += part
    return data


def answer(sock: socket.socket) -> tuple[int, int]:
    """Option and type of the next reply; its data is skipped."""
    magic, number, kind, length = struct.unpack(">QIII", exactly(sock, 20))
    assert magic == REPLY_MAGIC
    exactly(sock, length)
    return number, kind


def listed(context: ssl.SSLContext, sock: socket.socket) -> tuple[int, int]:
    """The answer to NBD_OPT_LIST by TLS; in TLS 1.3 a client hears only then that its certificate was refused."""
    with context.wrap_socket(sock, server_hostname="localhost") as tls:
        tls.sendall(option(Option.LIST))
        return answer(tls)


def read_to_the_end(sock: socket.socket) -> None:
    """Returns when the server has hung up, or raises as it did."""
    while sock.recv(4096):
        pass


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    made.process.start()
    yield made
    made.process.close()


def random_file(path: Path, size_bytes: int, seed: int) -> bytes:
    data = random.Random(seed).randbytes(size_bytes)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("how", ["psk", "certificate"])
def test_libnbd_copies_by_tls_what_the_unix_socket_gives_back_in_the_clear(
    door: Door, tmp_path: Path, how: str
) -> None:
    """[M11] With a queue, several connections, and back again."""
    need("nbdcopy", "nbdinfo")
    uri = door.uri() if how == "psk" else door.x509_uri(door.client)
    data = random_file(tmp_path / "in", 24 * MIB, 1)

    run(["nbdcopy", "--connections=3", "--requests=32", str(tmp_path / "in"), uri])
    status = door.process.status()
    run(["nbdcopy", "--connections=3", "--requests=32", uri, str(tmp_path / "out")])

    assert status["errors"]["requests"] == 0
    assert (tmp_path / "out").read_bytes()[: len(data)] == data
    client = door.process.client()
    assert b"".join(client.read(at, MIB) for at in range(0, len(data), MIB)) == data
    assert "TLS 1.3" in (door.process.folder / "log").read_text()


def test_qemu_writes_and_reads_by_a_pre_shared_key(door: Door, tmp_path: Path) -> None:
    """[M11]"""
    need("qemu-img", "qemu-io")
    (tmp_path / "qemu").mkdir()
    shutil.copy(door.users, tmp_path / "qemu/keys.psk")
    creds = f"tls-creds-psk,id=tls0,dir={tmp_path}/qemu,endpoint=client,username=n2"
    image = f"driver=nbd,host=127.0.0.1,port={door.port},tls-creds=tls0"

    argv = ["qemu-io", "--object", creds, "--image-opts", image]
    told = run([*argv, "-c", "write -P 0x5a 1M 3M", "-c", "flush", "-c", "read -P 0x5a 1M 3M", "-c", "read -P 0 4M 1M"])

    assert "Pattern verification failed" not in told
    assert door.process.client().read(2 * MIB, PAGE) == b"\x5a" * PAGE


def test_qemu_goes_on_over_a_replacement_as_it_connects_again(door: Door, tmp_path: Path) -> None:
    """[M11]"""
    need("qemu-io")
    (tmp_path / "qemu").mkdir()
    shutil.copy(door.users, tmp_path / "qemu/keys.psk")
    creds = f"tls-creds-psk,id=tls0,dir={tmp_path}/qemu,endpoint=client,username=n1"
    image = f"driver=nbd,host=127.0.0.1,port={door.port},tls-creds=tls0,reconnect-delay=60"
    clear, pid = door.process.client(), door.process.status()["server_pid"]
    qemu = subprocess.Popen(
        ["qemu-io", "--object", creds, "--image-opts", image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with qemu:
        assert qemu.stdin is not None
        qemu.stdin.write("write -P 0x11 0 1M\n")
        qemu.stdin.flush()
        until(lambda: clear.read(MIB - PAGE, PAGE) == b"\x11" * PAGE, what="it has written", deadline_s=30)

        door.process.replace()
        door.process.until_another_serves(pid)
        told, _ = qemu.communicate("read -P 0x11 0 1M\nwrite -P 0x22 1M 1M\nread -P 0x22 1M 1M\nquit\n", timeout=60)

    assert qemu.returncode == 0
    assert "failed" not in told
    assert clear.read(2 * MIB - PAGE, PAGE) == b"\x22" * PAGE


def test_nbd_client_of_before_tls_1_3_is_served_with_a_cipher_whose_keys_last(door: Door) -> None:
    """[M11] Its TLS is 1.2, whose keys can't be changed: AES-GCM's are worn out after 2^24 records."""
    client = door.secure(version=ssl.TLSVersion.TLSv1_2)

    client.write(0, b"x" * PAGE)

    assert isinstance(client.sock, ssl.SSLSocket)
    name, version, _ = client.sock.cipher() or ("", "", 0)
    assert "CHACHA20" in name
    assert client.sock.version() == "TLSv1.2", version
    assert client.read(0, PAGE) == b"x" * PAGE


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        (lambda door: door.uri("n1", door.psk("wrong", f"n1:{OTHER_KEY}")), "another one than that of PSK user n1"),
        (lambda door: door.uri("n7", door.psk("unknown", f"n7:{KEY}")), "there is no PSK user n7"),
        (lambda door: door.x509_uri(door.expired()), "expired"),
    ],
    ids=["wrong key", "unknown user", "expired"],
)  # fmt: skip
def test_who_does_not_prove_itself_is_not_served_and_named_in_one_line(door: Door, uri: object, says: str) -> None:
    """[M11]"""
    need("nbdinfo")
    assert callable(uri)
    told = str(uri(door))

    assert [outcome(["nbdinfo", "--size", told]).status for _ in range(3)] == [1, 1, 1]

    lines = [line for line in (door.process.folder / "log").read_text().splitlines() if "turned away" in line]
    assert len(lines) == 1, lines
    assert says in lines[0]
    assert "client=127.0.0.1" in lines[0]
    assert run(["nbdinfo", "--size", door.uri()]).strip() == str(64 * MIB), "others are served"


def hang_up_in_the_handshake(listener: socket.socket, door: Door) -> None:
    """Passes a client's bytes on until it and the server have begun the TLS handshake, and closes both."""
    client, _ = listener.accept()
    with client, door.connect() as server, selectors.DefaultSelector() as ready:
        ready.register(client, selectors.EVENT_READ, server)
        ready.register(server, selectors.EVENT_READ, client)
        has_begun = False
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 16)
                if not data or (has_begun and key.fileobj is server):
                    return
                has_begun = has_begun or data.startswith(TLS_HANDSHAKE)
                key.data.sendall(data)


def test_a_client_that_hangs_up_in_the_handshake_has_not_been_turned_away(door: Door) -> None:
    """[M11]"""
    need("nbdinfo")
    with socket.create_server(("127.0.0.1", 0)) as relay, ThreadPoolExecutor(1) as beside:
        relay.settimeout(60)
        passed = beside.submit(hang_up_in_the_handshake, relay, door)
        port = relay.getsockname()[1]
        uri = f"nbds://n1@127.0.0.1:{port}/?tls-psk-file={door.users}"
        assert outcome(["nbdinfo", "--size", uri]).status == 1
        passed.result(60)

    door.process.until_said("a handshake failed")
    assert "turned away" not in (door.process.folder / "log").read_text(), "its key is right"


def test_a_client_without_a_certificate_is_not_served(door: Door) -> None:
    """[M11]"""
    sock = door.connect()
    door.begin(sock)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        listed(door.context(None), sock)

    door.process.until_said("Certificate is required")
    assert door.process.status()["connections"] == 0


def test_a_certificate_of_another_ca_is_not_served(door: Door) -> None:
    """[M11] Python's client shows it all the same, where libnbd's keeps it back."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        door.secure(Authority(door.folder / "other", "other").make("client"))

    door.process.until_said("The certificate is NOT trusted")
    assert door.process.status()["connections"] == 0


def test_a_certificate_that_was_revoked_is_not_served_from_then_on(door: Door) -> None:
    """[M11] Without a restart, and others are."""
    stolen = door.authority.make("stolen")
    before = door.secure(stolen)
    listed = door.authority.revoking(stolen)
    os.replace(listed, door.authority.cert)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        door.secure(stolen)

    door.process.until_said("revoked")
    assert before.read(0, PAGE) == bytes(PAGE), "what stands goes on"
    assert door.secure().read(0, PAGE) == bytes(PAGE)


def test_by_the_unix_socket_there_is_no_tls_and_by_loopback_whom_the_kernel_knows_may_do_without(door: Door) -> None:
    client = door.process.client()
    sock = door.connect()
    assert exactly(sock, 18).startswith(b"NBDMAGIC")
    sock.sendall(struct.pack(">I", 3) + option(Option.LIST))

    assert answer(sock)[1] == Rep.SERVER
    with socket.socket(socket.AF_UNIX) as unix:
        unix.settimeout(60)
        unix.connect(str(door.process.nbd))
        assert exactly(unix, 18).startswith(b"NBDMAGIC")
        unix.sendall(struct.pack(">I", 3) + option(Option.STARTTLS))
        assert answer(unix) == (Option.STARTTLS, Rep.ERR_UNSUP)
    assert client.read(0, PAGE) == bytes(PAGE)


CLEAR = """
import os, socket, struct
os.setuid(%d)
sock = socket.create_connection(("127.0.0.1", %d), timeout=60)
sock.recv(18)
sock.sendall(struct.pack(">I", 3))
for number in (3, 6, 7):
    data = b"" if number == 3 else bytes(6)
    sock.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
    magic, option, kind, length = struct.unpack(">QIII", sock.recv(20))
    sock.recv(length)
    print(option, kind)
sock.sendall(b"IHAVEOPT" + struct.pack(">II", 1, 0))
print(sock.recv(100))
"""


def test_another_user_of_this_machine_is_not_served_in_the_clear(door: Door) -> None:
    """[M11] By any option, the old one included."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    told = run([sys.executable, "-S", "-c", CLEAR % (NOBODY, door.port)])

    required = int(Rep.ERR_TLS_REQD)
    assert told.splitlines() == [f"3 {required}", f"6 {required}", f"7 {required}", "b''"]
    door.process.until_said("it does without TLS")


def test_another_user_of_this_machine_is_served_that_has_a_key(door: Door, tmp_path: Path) -> None:
    """[M11]"""
    need("nbdinfo")
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with open_folder() as folder:
        key = folder / "psk"
        key.write_text(f"n1:{KEY}\n")
        os.chown(key, NOBODY, NOBODY)
        argv = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "nbdinfo", "--size"]

        assert run([*argv, door.uri(psk=key)]).strip() == str(64 * MIB)
        assert outcome([*argv, f"nbd://127.0.0.1:{door.port}"]).status == 1


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; pytest's own ones they do not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_nbd_client_lists_the_device_by_a_certificate(door: Door) -> None:
    """[M11] The tool of the kernel's device, whose TLS is 1.2; as another user, which is not served in the clear."""
    need("nbd-client")
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with open_folder() as folder:
        files = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]
        for source, file in zip((door.client.cert, door.client.key, door.authority.cert), files, strict=True):
            shutil.copy(source, file)
            os.chown(file, NOBODY, NOBODY)
        argv = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "nbd-client", "-l", "127.0.0.1", str(door.port)]
        cert, key, ca = map(str, files)

        told = run([*argv, "-certfile", cert, "-keyfile", key, "-cacertfile", ca, "-tlshostname", "localhost"])

        assert "swap0" in told
        assert "swap0" not in outcome(argv).stdout


def test_another_machine_is_served_by_tls_alone(tmp_path: Path) -> None:
    """[M11] Its connection crosses a network, of which the kernel here says nothing."""
    need("nbdinfo")
    with two_machines() as cable:
        with cable.on_first():
            door = Door(tmp_path, host=FIRST)
            door.process.start()
        try:
            assert run([*cable.second, "nbdinfo", "--size", door.uri()]).strip() == str(64 * MIB)
            assert outcome([*cable.second, "nbdinfo", "--size", f"nbd://{FIRST}:{door.port}"]).status == 1
        finally:
            door.process.close()


def test_what_was_sent_in_the_clear_behind_starttls_is_never_taken_as_if_it_came_by_tls(door: Door) -> None:
    """[M11] Who stands on the way puts a request there; servers that had it in a buffer answered it."""
    sock = door.connect()
    assert exactly(sock, 18).startswith(b"NBDMAGIC")
    sock.sendall(struct.pack(">I", 3) + option(Option.STARTTLS) + option(Option.GO, struct.pack(">IH", 0, 0)))
    assert answer(sock) == (Option.STARTTLS, Rep.ACK)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        listed(door.context(door.client), sock)

    door.process.until_said("turned away")
    assert door.process.status()["connections"] == 0


def test_a_handshake_that_stops_half_way_keeps_nobody_out_and_ends(door: Door) -> None:
    """[M11]"""
    halves = []
    for _ in range(listener.HANDSHAKES_MAX):
        sock = door.connect()
        door.begin(sock)
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        halves.append(sock)

    assert door.process.client().read(0, PAGE) == bytes(PAGE)
    for sock in halves:
        assert sock.recv(100) == b"" or sock.recv(100) == b""


def test_a_client_comes_again_after_a_replacement_and_finds_all_that_was_answered(door: Door) -> None:
    """[M11] A TLS session can't be passed to another process: such a connection ends; others go on."""
    clear, client = door.process.client(), door.secure()
    pid = door.process.status()["server_pid"]
    answered = {}
    for number in range(64):
        data = random.Random(number).randbytes(PAGE)
        client.write(number * PAGE, data)
        answered[number] = data
    cookies = [client.send(Command.WRITE, (100 + number) * PAGE, data=b"z" * PAGE) for number in range(32)]

    door.process.replace()
    heard = 0
    with suppress(ConnectionError, ssl.SSLError, OSError):
        for cookie in cookies:
            assert client.wait(cookie).error == 0
            heard += 1
        client.sock.recv(1)
    door.process.until_another_serves(pid)

    again = door.secure()
    for number, data in answered.items():
        assert again.read(number * PAGE, PAGE) == data
    for number in range(heard):
        assert clear.read((100 + number) * PAGE, PAGE) == b"z" * PAGE, "the clear connection stands"
    until(lambda: door.process.status()["connections_tls"] == 1, what="the old connection's worker is free")


def test_a_server_that_is_killed_ends_a_tls_client_and_loses_nothing_that_was_answered(door: Door) -> None:
    """[M11]"""
    client = door.secure()
    client.write(0, b"k" * MIB)
    pid = door.process.until_spare() and door.process.status()["server_pid"]
    os.kill(pid, signal.SIGKILL)

    with suppress(ConnectionError, ssl.SSLError):
        read_to_the_end(client.sock)
    door.process.until_another_serves(pid)

    assert door.secure().read(0, MIB) == b"k" * MIB


def test_a_device_waits_for_tls_clients_when_it_ends(door: Door) -> None:
    client = door.secure()
    assert door.process.child is not None
    door.process.child.send_signal(signal.SIGTERM)
    door.process.until_said("waiting for clients to leave")

    client.write(0, b"x" * PAGE)
    client.disconnect()

    assert door.process.child.wait(60) == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls_key": ""}, "tls_key"),
        ({"tls_client_ca": ""}, "tls_client_ca"),
        ({"tls_cert": "", "tls_key": ""}, "tls_client_ca"),
        ({"listen_unproved": True}, "listen_unproved"),
        ({"tls_psk_file": "/nowhere/psk"}, "tls_psk_file /nowhere/psk: No such file"),
    ],
)
def test_settings_that_are_half_or_contradict_are_refused_with_what_to_do(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    """[M11]"""
    door = Door(tmp_path, **settings)
    ended = subprocess.run(door.process.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    door.process.close()

    assert ended.returncode == 2
    assert says in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "process/disk").exists()


def test_with_tls_a_listener_may_be_reached_by_others(tmp_path: Path) -> None:
    """[M11]"""
    door = Door(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        folder = tmp_path / "second"
        folder.mkdir()
        said = refused(
            folder, listen=[f"tcp:0.0.0.0:{taken.getsockname()[1]}"], tls_psk_file=str(door.users)
        )  # fmt: skip
    door.process.close()

    assert "in use" in said, "it came as far as to listen"
