"""RDMA devices of this machine, their ports and addresses, as sysfs tells them.

Everything is read below a root folder, so that tests give a fake tree.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from farside.errors import ConfigError, Unavailable

ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One row of a port's table of addresses. Verbs programs name the row by `index`."""

    index: int
    address: IPv6Address
    kind: str  # "RoCE v2", "IB/RoCE v1"
    netdev: str  # the network device that has the address; empty for InfiniBand's own

    @property
    def ipv4(self) -> IPv4Address | None:
        """The IPv4 address that stands behind it, None where it is another one."""
        return self.address.ipv4_mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of a device, numbered from 1."""

    number: int
    state: str  # the kernel's word: "ACTIVE", "DOWN", "INIT", "ARMED"
    gids: tuple[Gid, ...]

    @property
    def is_active(self) -> bool:
        """Packets may go."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """One device by the name that `ibv_devices` shows."""

    name: str
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an RDMA connection is opened on: a device, one of its ports, and a row of that port's GID table."""

    device: str
    port: int
    gid: Gid


def devices(root: Path = Path("/")) -> tuple[RdmaDevice, ...]:
    """All RDMA devices by name; none where the kernel has no RDMA."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return ()
    return tuple(RdmaDevice(name=path.name, ports=_ports(path)) for path in sorted(folder.iterdir()))


def find_place(found: Sequence[RdmaDevice], name: str = "") -> Place:
    """Where to open a connection: on the device or network device `name`, else on the first that is active.

    Of a port's addresses an IPv4 one of RoCE v2 is taken first, since peers are configured by IP address; then any
    other of RoCE v2; then the first.

    Raises:
        Unavailable: There is no RDMA device, or none of them is active.
        ConfigError: `name` names none of those there are.
    """
    if not found:
        raise Unavailable("no RDMA device", hint="`modprobe` your card's driver, or make a soft one with farside's rxe")
    named = [device for device in found if not name or name == device.name or name in _netdevs(device)]
    if not named:
        raise ConfigError(f"no RDMA device {name}", hint=f"there are: {', '.join(device.name for device in found)}")
    for device in named:
        for port in device.ports:
            if port.is_active and port.gids:
                return Place(device=device.name, port=port.number, gid=min(port.gids, key=_preference))
    states = ", ".join(f"{device.name} port {port.number} {port.state}" for device in named for port in device.ports)
    raise Unavailable(f"no RDMA port is active: {states}", hint="is its network device up, with an address?")


def _preference(gid: Gid) -> tuple[bool, bool, int]:
    return gid.kind != ROCE_V2, gid.ipv4 is None, gid.index


def _netdevs(device: RdmaDevice) -> set[str]:
    return {gid.netdev for port in device.ports for gid in port.gids if gid.netdev}


def _ports(device: Path) -> tuple[Port, ...]:
    numbers = sorted(int(path.name) for path in (device / "ports").iterdir())
    return tuple(_port(device / "ports" / str(number), number) for number in numbers)


def _port(folder: Path, number: int) -> Port:
    # "4: ACTIVE"
    state = re.sub(r"^\d+:\s*", "", _text(folder / "state"))
    rows = sorted(int(path.name) for path in (folder / "gids").iterdir())
    gids = (_gid(folder, row) for row in rows)
    return Port(number=number, state=state, gids=tuple(gid for gid in gids if gid is not None))


def _gid(port: Path, row: int) -> Gid | None:
    text = _text(port / "gids" / str(row))
    # Rows without an address are all zeros, and their attributes answer EINVAL.
    if not text or not int(text.replace(":", ""), 16):
        return None
    attributes = port / "gid_attrs"
    kind, netdev = _text(attributes / "types" / str(row)), _text(attributes / "ndevs" / str(row))
    return Gid(index=row, address=IPv6Address(text), kind=kind, netdev=netdev)


def _text(path: Path) -> str:
    # A row may lose its address between two reads; then it is an empty one.
    try:
        return path.read_text().strip()
    except OSError:
        return ""
