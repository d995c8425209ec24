"""Client of munged: makes and opens MUNGE credentials, which prove a user of another machine.

By munge's own library, which talks to the munged of this machine. Both machines have the same key, clocks that agree,
and the same uids. A credential is good for one opening: munged remembers those that it has opened until they expire.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from farside.errors import FarsideError, Unavailable

LIBRARY = "libmunge.so.2"
SOCKET = Path("/run/munge/munge.socket.2")
SCHEME = "Munge"
"""Of the header that has a credential: ``Authorization: Munge MUNGE:...``."""

# munge.h: options of a context
_ENCODE_TIME, _DECODE_TIME, _SOCKET = 6, 7, 8


class Fault(IntEnum):
    """Why a credential was not made or opened; numbers of munge.h."""

    OTHER = 1
    BAD_ARGUMENT = 2
    BAD_LENGTH = 3
    SOCKET = 6
    TIMEOUT = 7
    BAD_CREDENTIAL = 8
    BAD_VERSION = 9
    INVALID = 14
    EXPIRED = 15
    REWOUND = 16
    REPLAYED = 17
    UNAUTHORIZED = 18


IS_OURS = frozenset({Fault.SOCKET, Fault.TIMEOUT, Fault.OTHER})
"""Faults of this machine's munged, not of a credential."""


class MungeError(FarsideError):
    """Munge refused; ``fault`` says why."""

    def __init__(self, message: str, *, fault: Fault, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a credential says: the user who made it, and what that user put into it."""

    uid: int
    payload: bytes


def request_mark(method: str, target: str, key: str, body: bytes) -> bytes:
    """What a request's credential holds: so it is good for this request, and no other that somebody puts it before.

    ``target`` is path and query as they were sent, ``key`` the Idempotency-Key or nothing.
    """
    told = "\n".join((method, target, key, hashlib.sha256(body).hexdigest()))
    return b"farside 1 " + hashlib.sha256(told.encode()).hexdigest().encode()


def make_credential(payload: bytes, socket: Path = SOCKET) -> str:
    """A credential of this process's user. Waits for munged.

    Raises:
        Unavailable: Munge's library is not here.
        MungeError: Munged does not answer.
    """
    library = _library()
    made = ctypes.c_void_p()
    with _context(socket) as context:
        _check(library.munge_encode(ctypes.byref(made), context, payload, len(payload)), context, socket)
    try:
        return ctypes.string_at(made.value or 0).decode()
    finally:
        library.free(made)


def open_credential(credential: str, socket: Path = SOCKET) -> Opened:
    """Who made a credential; the second time it is refused. Waits for munged.

    Raises:
        Unavailable: Munge's library is not here.
        MungeError: It was opened before, has expired, is from the future or no credential; or munged does not answer.
    """
    library = _library()
    payload, length, uid, gid = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint32(), ctypes.c_uint32()
    told = (ctypes.byref(one) for one in (payload, length, uid, gid))
    try:
        with _context(socket) as context:
            _check(library.munge_decode(credential.encode(), context, *told), context, socket)
        found = ctypes.string_at(payload, length.value) if payload.value else b""
        return Opened(uid=uid.value, payload=found)
    finally:
        library.free(payload)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Unavailable(f"{LIBRARY} is not on this machine", hint="apt-get install munge") from error
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.munge_ctx_create.restype = pointer
    library.munge_ctx_destroy.argtypes = [pointer]
    library.munge_ctx_set.argtypes = library.munge_ctx_get.argtypes = [pointer, number]  # one more, of any type
    library.munge_encode.argtypes = [pointer, pointer, ctypes.c_char_p, number]
    library.munge_decode.argtypes = [ctypes.c_char_p, *[pointer] * 5]
    library.free.argtypes = [pointer]  # of the C library, which it brings along
    return library


@contextmanager
def _context(socket: Path) -> Iterator[int]:
    library = _library()
    context = library.munge_ctx_create()
    if not context:
        raise MemoryError
    try:
        library.munge_ctx_set(context, _SOCKET, ctypes.c_char_p(bytes(socket)))
        yield context
    finally:
        library.munge_ctx_destroy(context)


def _check(code: int, context: int, socket: Path) -> None:
    if not code:
        return
    fault = Fault(code) if code in set(Fault) else Fault.OTHER
    if fault in IS_OURS:
        raise MungeError(f"munged at {socket} does not answer", fault=fault, hint="systemctl start munge")
    message, hint = _SAYS.get(fault, ("is no credential of munge", "send what libmunge made"))
    made_s, opened_s = (_time(context, option) for option in (_ENCODE_TIME, _DECODE_TIME))
    apart = f" by {abs(opened_s - made_s)} s" if fault in (Fault.EXPIRED, Fault.REWOUND) else ""
    raise MungeError(f"munge: this credential {message}{apart}", fault=fault, hint=hint)


def _time(context: int, option: int) -> int:
    found = ctypes.c_long()
    _library().munge_ctx_get(context, option, ctypes.byref(found))
    return found.value


_CLOCKS = "compare `date` on both machines, and fix NTP"
_SAYS: Mapping[Fault, tuple[str, str]] = {
    Fault.INVALID: ("was made with another key", "/etc/munge/munge.key must be the same on both machines"),
    Fault.BAD_VERSION: ("is of another version of munge", "install the same on both machines"),
    Fault.EXPIRED: ("is too old,", f"it was made long ago, or clocks are apart: {_CLOCKS}"),
    Fault.REWOUND: ("is from the future,", _CLOCKS),
    Fault.REPLAYED: ("was used before", "each is good for one request"),
    Fault.UNAUTHORIZED: ("is for another user", "make it for all users, or for the manager's user"),
}
