"""TLS of NBD clients in the engine: `engine.h`'s ``ne_tls_*``, call for call; errors are exceptions.

A session is the negotiation's until `Device.conn_attach`, and the engine's from then on.
"""

import errno
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from farside.errors import ConfigError, EngineError, PeerError
from farside.kmod_shim.engine.binding import ffi, lib

USERS_MAX: int = lib.NE_TLS_USERS_MAX
USER_BYTES_MAX: int = lib.NE_TLS_USER_BYTES_MAX
KEY_BYTES_MIN: int = lib.NE_TLS_KEY_BYTES_MIN
KEY_BYTES_MAX: int = lib.NE_TLS_KEY_BYTES_MAX
_REASON_BYTES: int = lib.NE_TLS_REASON_BYTES
_READ_BYTES = 65536


class Wants(IntEnum):
    """What the socket must be for the next step of a handshake; NOTHING: it is done."""

    NOTHING = 0
    READ = lib.NE_TLS_WANTS_READ
    WRITE = lib.NE_TLS_WANTS_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM texts: our certificate with its chain, its key, and what clients' certificates are signed by."""

    cert: bytes
    key: bytes
    client_ca: bytes


class Tls:
    """Keys and certificates by which clients prove themselves. `destroy` frees them; sessions begun with them go on."""

    def __init__(self, psks: Mapping[bytes, bytes], certificates: Certificates | None = None) -> None:
        """Pre-shared keys by user, KEY_BYTES_MIN to KEY_BYTES_MAX long; or certificates; or either.

        Raises:
            ConfigError: Why they can't be used, or that this build or machine has no GnuTLS.
        """
        # cffi frees what `new` made once nobody refers to it: `kept` does until the engine has copied all.
        kept: list[Any] = []
        rows = ffi.new("struct ne_tls_psk[]", max(1, len(psks)))
        for row, (user, key) in zip(rows, psks.items(), strict=False):
            kept += [ffi.new("char[]", user), ffi.new("uint8_t[]", key)]
            row.user, row.key = kept[-2:]
            row.user_bytes, row.key_bytes = len(user), len(key)
        keys = ffi.new("struct ne_tls_keys *", {"psk": rows, "psks": len(psks)})
        if certificates is not None:
            kept += [ffi.new("char[]", text) for text in (certificates.cert, certificates.key, certificates.client_ca)]
            keys.cert, keys.key, keys.client_ca = kept[-3:]
        reason, handle = ffi.new("char[]", _REASON_BYTES), ffi.new("struct ne_tls **")
        answer = int(lib.ne_tls_create(keys, reason, handle))
        if answer < 0:
            raise ConfigError(_text(reason) or str(EngineError("tls_create", -answer)))
        self._handle = handle[0]

    def begin(self, sock: int) -> "TlsSession":
        """A session on a connected socket, which stays the caller's."""
        handle = ffi.new("struct ne_tls_session **")
        _check("tls_begin", lib.ne_tls_begin(self._handle, sock, handle))
        return TlsSession(handle[0])

    def destroy(self) -> None:
        """Frees it. A second call does nothing."""
        handle, self._handle = self._handle, ffi.NULL
        lib.ne_tls_destroy(handle)


class TlsSession:
    """One client's session. Every call is short: none waits for the socket.

    A handshake's step may run in another thread than `close`: who comes second waits for the first, or finds it closed.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle  # the engine's once it has taken the connection; NULL then
        self._lock = threading.Lock()

    def handshake(self) -> Wants:
        """One step.

        Raises:
            PeerError: The client has not proved itself, and why.
            EngineError: The connection is gone.
        """
        reason = ffi.new("char[]", _REASON_BYTES)
        with self._lock:
            answer = int(lib.ne_tls_handshake(self._open(), reason))
        if answer < 0 and _text(reason):
            raise PeerError(_text(reason))
        return Wants(_check("tls_handshake", answer))

    def read(self, count: int) -> bytes | None:
        """At most ``count`` clear bytes; none at the end of the stream; None: there are none now."""
        room = ffi.new("uint8_t[]", min(count, _READ_BYTES))
        with self._lock:
            moved = _moved("tls_read", lib.ne_tls_read(self._open(), room, len(room)))
        return None if moved is None else bytes(ffi.buffer(room, moved))

    def write(self, data: bytes) -> int:
        """How many of these bytes were sent; the rest, at least, is to be given again."""
        with self._lock:
            return _moved("tls_write", lib.ne_tls_write(self._open(), data, len(data))) or 0

    def describe(self) -> str:
        """Version and name of the client, for the log: "TLS 1.3, PSK user n1"."""
        text = ffi.new("char[]", _REASON_BYTES)
        with self._lock:
            _check("tls_describe", lib.ne_tls_describe(self._open(), text))
        return _text(text)

    def close(self) -> None:
        """Says goodbye and frees it, if it is still ours. A second call does nothing."""
        with self._lock:
            handle, self.handle = self.handle, ffi.NULL
            lib.ne_tls_end(handle)

    def _open(self) -> Any:
        if self.handle == ffi.NULL:
            raise EngineError("tls", errno.EBADF)
        return self.handle


def _text(of: Any) -> str:
    return str(ffi.string(of).decode(errors="replace"))


def _check(op: str, answer: int) -> int:
    if answer < 0:
        raise EngineError(op, -answer)
    return int(answer)


def _moved(op: str, answer: int) -> int | None:
    return None if -answer == errno.EAGAIN else _check(op, answer)
