"""A kernel's nbd netlink family for tests: bytes in, bytes out, as Linux 6.1 answers; no device behind it.

It reads requests with its own small reader of netlink attributes, not with the code under test.
"""

import errno
import struct
from collections import deque
from dataclasses import dataclass, field

CONTROL, NBD = 0x10, 0x1C
GROUP = 7
_HEADER, _GENERIC, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBH"), struct.Struct("=HH")
INDEX, SIZE, BLOCK, TIMEOUT, FLAGS, CLIENT_FLAGS, SOCKETS, DEAD, DEVICES, BACKEND = range(1, 11)  # nbd-netlink.h


def attribute(kind: int, data: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + b"\0" * (-length % 4)


def attributes(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        found.append((kind & 0x3FFF, data[_ATTRIBUTE.size : length]))
        data = data[length + (-length % 4) :]
    return found


@dataclass
class Device:
    connected: bool = False
    sockets: list[int] = field(default_factory=list)
    backend: str = ""
    told: dict[int, int] = field(default_factory=dict)


class FakeKernel:
    """Answers one socket. ``devices`` are those of nbds_max; a CONNECT without an index takes the first free one."""

    def __init__(self, *, devices: int = 2, has_nbd: bool = True, may: bool = True) -> None:
        self.devices = {index: Device() for index in range(devices)}
        self.has_nbd = has_nbd
        self.may = may
        self.joined: list[int] = []
        self._answers: deque[bytes] = deque()

    # --- what the code under test calls

    def send(self, data: bytes, /) -> int:
        _, kind, flags, sequence, _ = _HEADER.unpack_from(data)
        command, _, _ = _GENERIC.unpack_from(data, _HEADER.size)
        told = attributes(data[_HEADER.size + _GENERIC.size :])
        code, answer = self._control(told) if kind == CONTROL else self._nbd(command, told)
        if answer:
            self._say(kind, sequence, command, answer)
        elif code or flags & 4:
            self._answers.append(_HEADER.pack(36, 2, 0, sequence, 0) + struct.pack("=i", -code) + data[:16])
        return len(data)

    def recv(self, size: int, /) -> bytes:
        if not self._answers:
            raise TimeoutError
        return self._answers.popleft()

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        self.joined.append(value)

    def settimeout(self, seconds: float | None, /) -> None:
        pass

    def close(self) -> None:
        pass

    # --- what tests do

    def kill_socket(self, index: int) -> None:
        """A socket of the device dies: the group hears of it."""
        self.devices[index].sockets.pop()
        self._say(NBD, 0, 4, attribute(INDEX, struct.pack("=I", index)))

    def late_answer(self, sequence: int) -> None:
        """An answer to something that was asked before."""
        self._say(NBD, sequence, 1, attribute(INDEX, struct.pack("=I", 99)))

    # --- inside

    def _say(self, kind: int, sequence: int, command: int, data: bytes) -> None:
        length = _HEADER.size + _GENERIC.size + len(data)
        self._answers.append(_HEADER.pack(length, kind, 0, sequence, 0) + _GENERIC.pack(command, 1, 0) + data)

    def _control(self, told: list[tuple[int, bytes]]) -> tuple[int, bytes]:
        name = dict(told)[2].rstrip(b"\0")
        if name != b"nbd" or not self.has_nbd:
            return errno.ENOENT, b""
        group = attribute(1, b"nbd_mc_group\0") + attribute(2, struct.pack("=I", GROUP))
        groups = attribute(7, attribute(1, group))
        return 0, attribute(1, struct.pack("=H", NBD)) + attribute(2, b"nbd\0") + groups

    def _nbd(self, command: int, told: list[tuple[int, bytes]]) -> tuple[int, bytes]:
        if not self.may:
            return errno.EPERM, b""
        values = dict(told)
        index = struct.unpack("=I", values[INDEX])[0] if INDEX in values else None
        handler = {1: self._connect, 2: self._disconnect, 3: self._reconfigure, 5: self._status}[command]
        return handler(index, values)

    def _connect(self, index: int | None, values: dict[int, bytes]) -> tuple[int, bytes]:
        if index is None:
            index = next((i for i, device in self.devices.items() if not device.connected), len(self.devices))
        device = self.devices.setdefault(index, Device())
        if device.connected:
            return errno.EBUSY, b""
        sockets = _fds(values.get(SOCKETS, b""))
        if SIZE not in values or not sockets:
            return errno.EINVAL, b""
        numbers = {kind: struct.unpack("=Q", data)[0] for kind, data in values.items() if len(data) == 8}
        backend = values.get(BACKEND, b"").rstrip(b"\0").decode()
        self.devices[index] = Device(connected=True, sockets=sockets, backend=backend, told=numbers)
        return 0, attribute(INDEX, struct.pack("=I", index))

    def _reconfigure(self, index: int | None, values: dict[int, bytes]) -> tuple[int, bytes]:
        device = self.devices.get(-1 if index is None else index)
        if device is None or not device.connected:
            return errno.EINVAL, b""
        if device.backend and values.get(BACKEND, b"").rstrip(b"\0").decode() != device.backend:
            return errno.EINVAL, b""
        device.sockets += _fds(values[SOCKETS])
        return 0, b""

    def _disconnect(self, index: int | None, values: dict[int, bytes]) -> tuple[int, bytes]:
        if index not in self.devices:
            return errno.EINVAL, b""
        self.devices[index] = Device()
        return 0, b""

    def _status(self, index: int | None, values: dict[int, bytes]) -> tuple[int, bytes]:
        items = b"".join(
            attribute(1, attribute(1, struct.pack("=I", i)) + attribute(2, bytes([device.connected])))
            for i, device in reversed(self.devices.items())
            if index in (None, i)
        )
        return 0, attribute(DEVICES, items)


def _fds(data: bytes) -> list[int]:
    return [struct.unpack("=I", dict(attributes(item))[1])[0] for _, item in attributes(data)]
