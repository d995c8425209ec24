"""A device in donors' memory for one worker alone: `farside blockdev -s` at the other end of a socket, by NBD.

The worker starts it with a borrower's settings when a block is first to go there, and nobody else can reach it. It ends
when the worker's end of the socket does, however that comes, and donors have their memory back then. What is written to
it is on the disk as well, so it has no second copy of its own.
"""

import errno
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from farside.config import BlockdevConfig, load_config
from farside.errors import ConfigError, FarsideError, RemoteProtocolError
from farside.kmod_shim.nbd.dial import negotiate

START_LIMIT_S = 60.0
"""For all of the device to have its memory at donors; meanwhile blocks go to the disk, and nothing waits for it."""
STILL_AFTER_S = 1.0
"""A device on which nothing moves for so long after its borrower has given up any donor has failed."""
RELEASE_LIMIT_S = 5.0
REQUEST_BYTES = 1 << 20
_REQUEST_MAGIC, _REPLY_MAGIC = 0x25609513, 0x67446698
_READ, _WRITE = 0, 1
_REQUEST = struct.Struct(">IHHQQI")
_REPLY = struct.Struct(">IIQ")
# The disk has all that is written here, so that a borrower's own second copy would be a third one.
_ALWAYS = {
    "protection": "none", "i_accept_data_loss": True, "disk_path": "", "donors_hold": "hot", "log_level": "error",
}  # fmt: skip


class PeerDevice:
    """Such a device, as a place for blocks. Several threads may use it.

    Attributes:
        name: The file of its settings, for messages.
        is_gone: It has failed, and does not come back.
    """

    def __init__(self, settings: Path) -> None:
        """Reads the settings; nothing is borrowed before room is asked for.

        Raises:
            ConfigError: The settings are not those of a borrower.
        """
        self.name, self.is_gone = os.fspath(settings), False
        told = _ALWAYS | {"name": f"train-{os.getpid()}"}
        try:
            config = load_config(BlockdevConfig, (settings,), told)
        except FarsideError as error:
            lines = "; ".join(str(error).splitlines())
            raise ConfigError(f"--spill-peer: {lines}") from error
        words = [word for name, value in told.items() for word in ("--set", f"{name}={_toml(value)}")]
        self._argv = [sys.executable, "-m", "farside", "blockdev", "-s", "--config", self.name, *words]
        self._still_s = config.deadline_s + config.grace_s + STILL_AFTER_S
        self._lock = threading.Lock()
        self._end = self._size_bytes = 0
        self._is_open = False
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0

    def room_for(self, size_bytes: int) -> int | None:
        """Where the next bytes are to be written; None: it is full, or does not have its memory yet.

        Who asks first starts it.

        Raises:
            OSError: It has failed.
        """
        with self._lock:
            if self._process is None and not self.is_gone:
                self._start()
            if not self._is_open and not self.is_gone and not self._has_greeted():
                return None
            self._opened()
            if self._end + size_bytes > self._size_bytes:
                return None
            at, self._end = self._end, self._end + size_bytes
            return at

    def forget(self) -> None:
        """Nothing that was written is needed any more."""
        with self._lock:
            self._end = 0

    def write(self, view: memoryview, offset: int) -> None:
        """Writes all of it.

        Raises:
            OSError: It can't be written.
        """
        self._transfer(_WRITE, view, offset)

    def read(self, view: memoryview, offset: int) -> None:
        """Fills all of it.

        Raises:
            OSError: It can't be read.
        """
        self._transfer(_READ, view, offset)

    def cpu_s(self) -> float:
        """CPU time that the device has taken, in its process."""
        if self._process is None:
            return 0.0
        try:
            # The kernel's clock of another process: clock_getcpuclockid(3) makes the same number.
            return time.clock_gettime(~self._process.pid << 3 | 2)
        except OSError:
            return 0.0

    def close(self) -> None:
        """Gives the memory back."""
        with self._lock:
            self._give_up()
        if self._process is None:
            return
        try:
            self._process.wait(RELEASE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # --- the connection

    def _start(self) -> None:
        self._sock, theirs = socket.socketpair()
        self._until_s = time.monotonic() + START_LIMIT_S
        with theirs:
            try:
                self._process = subprocess.Popen(self._argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            except OSError:
                self._give_up()
                raise

    def _has_greeted(self) -> bool:
        """Whether the handshake need not be waited for."""
        is_readable = self._sock is not None and bool(select.select([self._sock], [], [], 0)[0])
        return is_readable or time.monotonic() > self._until_s

    def _opened(self) -> socket.socket:
        sock = self._sock
        if self.is_gone or sock is None:
            raise OSError(errno.ENOTCONN, "it has failed before" if self.is_gone else "it was not started")
        if not self._is_open:
            sock.settimeout(max(1.0, self._until_s - time.monotonic()))
            try:
                self._size_bytes = negotiate(sock, "").size_bytes
            except (OSError, FarsideError) as error:
                self._give_up()
                raise OSError(errno.ENOTCONN, f"donors have not given its memory: {error}") from error
            sock.settimeout(None)
            still = struct.pack("ll", *divmod(round(1e6 * self._still_s), 10**6))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, still)
            self._is_open = True
        return sock

    def _transfer(self, command: int, view: memoryview, offset: int) -> None:
        with self._lock:
            sock = self._opened()
            parts = dict(enumerate(_parts(len(view))))
            try:
                for number, (at, size_bytes) in parts.items():
                    sock.sendall(_REQUEST.pack(_REQUEST_MAGIC, 0, command, number, offset + at, size_bytes))
                    if command == _WRITE:
                        sock.sendall(view[at : at + size_bytes])
                failed = self._answers(sock, parts, view if command == _READ else None)
            except (OSError, FarsideError) as error:
                self._give_up()
                raise OSError(errno.EIO, f"the device has ended: {error}") from error
        if failed:
            raise OSError(failed, os.strerror(failed))

    def _answers(self, sock: socket.socket, parts: dict[int, tuple[int, int]], into: memoryview | None) -> int:
        """Takes an answer to each part, in any order; the last error, 0 for none."""
        failed = 0
        while parts:
            head = bytearray(_REPLY.size)
            _fill(sock, memoryview(head))
            magic, error, number = _REPLY.unpack(head)
            if magic != _REPLY_MAGIC or number not in parts:
                raise RemoteProtocolError("an answer belongs to no request")
            at, size_bytes = parts.pop(number)
            failed = error or failed
            if into is not None and not error:
                _fill(sock, into[at : at + size_bytes])
        return failed

    def _give_up(self) -> None:
        self.is_gone = True
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()


def _fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        found = sock.recv_into(view, 0, socket.MSG_WAITALL)
        if not found:
            raise OSError(errno.ECONNRESET, "it hung up")
        view = view[found:]


def _parts(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each request begins, and how long it is."""
    for at in range(0, size_bytes, REQUEST_BYTES):
        yield at, min(REQUEST_BYTES, size_bytes - at)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
