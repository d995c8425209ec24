"""Control of /dev/nbdX by generic netlink: connect, reconfigure, disconnect, status, and lost sockets.

The device lives in the kernel, not in the process that made it: the kernel keeps references of its own to the sockets,
so the process that attached it may end. This needs CAP_SYS_ADMIN, the module nbd, and Linux 4.12 (commit e46c7287b1c2),
which gave nbd its netlink family; older kernels are served by client.py.
"""

import errno
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self

from farside.errors import ConfigError, FarsideError, Unavailable
from farside.kmod_shim.nbd import message as nbd_message
from farside.kmod_shim.nbd.genetlink import GenericNetlink, NetlinkRefusal, Socket
from farside.kmod_shim.nbd.message import Connection, DeviceState

_NO_FAMILY = "the kernel has no nbd netlink family"
_NO_FAMILY_HINT = "modprobe nbd; a kernel older than 4.12 has none: attach with --nbd-client"
# What the kernel means by an errno of this family. With these the user can do something; any other is a plain failure.
_HINTS: Mapping[int, str] = MappingProxyType(
    {
        errno.EPERM: "it needs root, or CAP_SYS_ADMIN in the machine's own user namespace",
        errno.EBUSY: "that device is connected already: `farside swap status`, or name another with --device",
        errno.EINVAL: "the kernel takes TCP and unix stream sockets, and a device number that exists; see dmesg",
        errno.ENOENT: "there is no such device",
        errno.ENOMEM: "memory is out",
    }
)


class NbdNetlink:
    """The kernel's nbd family. Close it, or use it with ``with``."""

    def __init__(self, sock: Socket | None = None) -> None:
        """Finds the family. Raises Unavailable when this kernel does not have it."""
        self._netlink = GenericNetlink(sock)
        family = self._netlink.family(nbd_message.FAMILY)
        if family is None:
            # The caller gets no object that it could close.
            self._netlink.close()
            raise Unavailable(_NO_FAMILY, hint=_NO_FAMILY_HINT)
        self._family = family

    def close(self) -> None:
        """Ends the socket; devices stay."""
        self._netlink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, connection: Connection) -> int:
        """Makes a device of the sockets; returns X of /dev/nbdX. The sockets stay the caller's, to close.

        Raises:
            ConfigError: No such right, device busy, or sockets that the kernel does not take.
        """
        where = "any device" if connection.index is None else f"/dev/nbd{connection.index}"
        return nbd_message.read_index(self._ask(f"connect {where}", nbd_message.connect_message(connection)))

    def reconfigure(self, connection: Connection) -> None:
        """Gives dead sockets of a connected device new ones; a live one's replacement is dropped silently."""
        message = nbd_message.reconfigure_message(connection)
        self._ask(f"reconfigure /dev/nbd{connection.index}", message, wants_ack=True)

    def disconnect(self, index: int) -> None:
        """Ends the device's connections. With swap on it, or a file system mounted, that loses what is there."""
        self._ask(f"disconnect /dev/nbd{index}", nbd_message.disconnect_message(index), wants_ack=True)

    def devices(self) -> tuple[DeviceState, ...]:
        """Every device of the module, connected or not, by index."""
        return nbd_message.read_status(self._ask("status of nbd", nbd_message.status_message()))

    def is_connected(self, index: int) -> bool:
        """Whether that device has a server; False where there is no such device."""
        return any(state.is_connected for state in self.devices() if state.index == index)

    def watch(self) -> None:
        """Receive notices of lost sockets from now on; on a netlink object of its own: notices mix with answers."""
        self._netlink.join(dict(self._family.groups)[nbd_message.GROUP])

    def dead_links(self, timeout_s: float | None) -> Iterator[int]:
        """Device of each lost socket; ends when none came within the limit. After `watch`.

        Raises:
            Unheard: Some notices were lost.
        """
        while (data := self._netlink.heard(timeout_s)) is not None:
            index = nbd_message.read_dead_link(data)
            # The group gets other messages of the family too.
            if index is not None:
                yield index

    def _ask(self, name: str, message: nbd_message.NbdMessage, *, wants_ack: bool = False) -> bytes:
        try:
            return self._netlink.request(self._family.number, message, name=name, wants_ack=wants_ack)
        except NetlinkRefusal as refusal:
            # ConfigError is for what the user can put right, and has an exit code of its own.
            kind = ConfigError if refusal.errno in _HINTS else FarsideError
            raise kind(str(refusal), hint=_HINTS.get(refusal.errno, "")) from refusal
